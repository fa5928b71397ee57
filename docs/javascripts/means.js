/* The figure of how-it-works: two members, three classes, weights and a mean to choose; no library. Does nothing elsewhere. */
"use strict";
(() => {
  const place = document.getElementById("means-figure");
  if (!place) return;

  const CLASSES = ["cat", "dog", "fox"];
  const CASES = {
    "both are unsure, in different ways": [[0.6, 0.35, 0.05], [0.1, 0.5, 0.4]],
    "A is sure of cat, B of dog": [[0.96, 0.03, 0.01], [0.05, 0.9, 0.05]],
    "B rules out cat, A says cat": [[0.7, 0.2, 0.1], [0, 0.45, 0.55]],
    "they agree": [[0.7, 0.2, 0.1], [0.6, 0.25, 0.15]],
  };
  // f and its inverse, as in faverage.get_mean(name)
  const hyperbola = (x, eps = 1e-2) => {
    const top = 1 / eps - eps;
    if (x < 0) return top - x / eps ** 2;
    return x > top ? -(eps ** 2) * (x - top) : 1 / (x + eps) - eps;
  };
  const MEANS = {
    arithmetic: { says: "f(x) = x", f: (x) => x, inverse: (y) => y },
    geometric: { says: "f(x) = ln(x + 0.001)", f: (x) => Math.log(x + 1e-3), inverse: (y) => Math.exp(y) - 1e-3 },
    harmonic: { says: "f(x) = 1 / (x + 0.01) − 0.01", f: hyperbola, inverse: hyperbola },
    power: { says: "f(x) = x^q", f: (x) => x ** state.q, inverse: (y) => y ** (1 / state.q) },
  };
  const state = { mean: "arithmetic", q: 3, shared: true, weights: [0.5, 0.5, 0.5], scores: Object.values(CASES)[0] };

  place.innerHTML = `
<style>
  .means { --a: #1f63b5; --b: #b4500b; --fused: #15803d; border: 1px solid var(--md-default-fg-color--lighter);
    border-radius: .4rem; padding: .8rem 1rem; margin: 1em 0; }
  [data-md-color-scheme=slate] .means { --a: #6aa7f0; --b: #fb923c; --fused: #4ade80; }
  .means { display: grid; grid-template-columns: repeat(auto-fit, minmax(15rem, 1fr)); gap: 0 1.2rem; align-items: start; }
  .means > p { grid-column: 1 / -1; }
  .means fieldset { border: 0; padding: 0; margin: 0 0 .7rem; }
  .means legend { font-weight: 700; padding: 0; }
  .means label { display: inline-block; margin: .1rem .9rem .1rem 0; }
  .means .slider { display: grid; grid-template-columns: 2rem 1fr 3.4rem; gap: .5rem; align-items: center; }
  .means .slider label { margin: 0; }
  .means input[type=range] { width: 100%; accent-color: var(--fused); }
  .means select { font: inherit; color: inherit; background: var(--md-default-bg-color); border: 1px solid currentColor;
    border-radius: .2rem; padding: .15rem .3rem; max-width: 100%; }
  .means :focus-visible { outline: 3px solid var(--fused); outline-offset: 2px; }
  .means svg { display: block; width: 100%; height: auto; max-width: 34rem; }
  .means svg text { font-size: 13px; fill: var(--md-default-fg-color); }
  .means .a { fill: var(--a); } .means .b { fill: var(--b); } .means .fused { fill: var(--fused); }
  .means .said { margin: .4rem 0 0; font-weight: 700; }
  .means .formula { margin: .2rem 0 0; font-family: var(--md-code-font-family, monospace); font-size: .85em; overflow-wrap: anywhere; }
  .means [hidden] { display: none; }
</style>
<div class="means" role="group" aria-label="Try it: two members, three classes, fused by a mean"><div>
  <fieldset><legend>What the members say</legend>
    <label>Case <select id="m-case">${Object.keys(CASES).map((name) => `<option>${name}</option>`).join("")}</select></label>
  </fieldset>
  <fieldset><legend>Kind of mean</legend>
    ${Object.keys(MEANS).map((name) => `<label><input type="radio" name="m-mean" value="${name}"
      ${name === state.mean ? "checked" : ""}> ${name}</label>`).join("")}
    <div class="slider" id="m-power" hidden><label for="m-q">q</label><input type="range" id="m-q" min="0.2" max="10" step="0.2"
      value="${state.q}"><span id="m-q-said"></span></div>
  </fieldset>
  <fieldset><legend>Weight of A (B has the rest)</legend>
    <label><input type="checkbox" id="m-shared" checked> the same for all classes</label>
    ${CLASSES.map((name, n) => `<div class="slider" data-n="${n}"><label for="m-w${n}">${name}</label>
      <input type="range" id="m-w${n}" min="0" max="1" step="0.05" value="0.5"><span id="m-w${n}-said"></span></div>`).join("")}
  </fieldset></div>
  <svg viewBox="0 0 330 236" role="img" aria-labelledby="m-said" id="m-chart"></svg>
  <p class="said" id="m-said" aria-live="polite"></p>
  <p class="formula" id="m-formula"></p>
</div>`;

  const find = (id) => document.getElementById(id);
  const percent = (p) => `${(100 * p).toFixed(p > 0 && p < 0.0995 ? 1 : 0)} %`;

  function fuse() {
    const { f, inverse } = MEANS[state.mean];
    const [a, b] = state.scores;
    const raw = CLASSES.map((_, n) => {
      const w = state.weights[n];
      return Math.max(inverse(w * f(a[n]) + (1 - w) * f(b[n])), 0);
    });
    const total = raw.reduce((sum, x) => sum + x, 0);
    return { raw, fused: raw.map((x) => (total > 0 ? x / total : 1 / raw.length)) };
  }

  function bar(y, value, kind, name) {
    const width = Math.max(175 * value, 1).toFixed(1);
    return `<text x="86" y="${y + 13}" text-anchor="end">${name}</text>
      <rect class="${kind}" x="92" y="${y}" width="${width}" height="16" rx="2"/>
      <text x="${98 + Number(width)}" y="${y + 13}">${percent(value)}</text>`;
  }

  function show() {
    const { raw, fused } = fuse();
    find("m-chart").innerHTML = CLASSES.map((name, n) => {
      const y = 4 + 78 * n;
      return `<text x="0" y="${y + 34}" font-weight="700">${name}</text>` + bar(y, state.scores[0][n], "a", "A") +
        bar(y + 20, state.scores[1][n], "b", "B") + bar(y + 40, fused[n], "fused", "fused");
    }).join("");
    const best = fused.indexOf(Math.max(...fused));
    find("m-said").textContent = `Fused: ${CLASSES.map((name, n) => `${name} ${percent(fused[n])}`).join(", ")}. Answer: ${CLASSES[best]}.`;
    const w = state.weights[best];
    find("m-formula").textContent = `${MEANS[state.mean].says};  ${CLASSES[best]}: f⁻¹(${w.toFixed(2)} · f(${state.scores[0][best]}) + ` +
      `${(1 - w).toFixed(2)} · f(${state.scores[1][best]})) = ${raw[best].toFixed(3)}, divided by the sum over classes, ` +
      `${raw.reduce((sum, x) => sum + x, 0).toFixed(3)}`;
    place.dataset.fused = fused.join(" ");
    find("m-power").hidden = state.mean !== "power";
    find("m-q-said").textContent = state.q.toFixed(1);
    CLASSES.forEach((name, n) => {
      const slider = find(`m-w${n}`), one = state.shared && n === 0;
      slider.value = state.weights[n];
      slider.setAttribute("aria-valuetext", `A ${percent(state.weights[n])}, B ${percent(1 - state.weights[n])}`);
      place.querySelector(`label[for=m-w${n}]`).textContent = one ? "all" : name;
      find(`m-w${n}-said`).textContent = `A ${percent(state.weights[n])}`;
      slider.parentElement.hidden = state.shared && n > 0;
    });
  }

  place.addEventListener("input", ({ target }) => {
    if (target.id === "m-case") state.scores = CASES[target.value];
    if (target.name === "m-mean") state.mean = target.value;
    if (target.id === "m-q") state.q = Number(target.value);
    if (target.id === "m-shared") {
      state.shared = target.checked;
      if (state.shared) state.weights.fill(state.weights[0]);
    }
    if (/^m-w\d$/.test(target.id)) {
      if (state.shared) state.weights.fill(Number(target.value));
      else state.weights[Number(target.id.slice(3))] = Number(target.value);
    }
    show();
  });
  show();
})();
