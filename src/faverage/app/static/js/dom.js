// Small helpers for the page: elements, words, messages.

export const $ = (selector, root = document) => root.querySelector(selector);
export const percent = (share) => {
  if (share > 0 && share < 0.005) return "<1\u00a0%";
  return share >= 0.995 && share < 0.9995 ? ">99\u00a0%" : `${Math.round(100 * share)}\u00a0%`;
};
export const plural = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;
export const quoted = (name) => `“${name}”`;

export function make(tag, options = {}, ...children) {
  const { class: kind, colour, ...rest } = options;
  const element = Object.assign(document.createElement(tag), rest);
  if (kind) element.className = kind;
  if (colour) element.style.setProperty("--c", colour);
  element.append(...children);
  return element;
}

export function bar(name, share, colour, tag = "div") {
  const fill = make("i");
  fill.style.width = `${100 * Math.min(share, 1)}%`;
  return make(tag, { class: "bar", colour }, make("span", { textContent: name }),
    make("span", { class: "track", ariaHidden: "true" }, fill), make("span", { class: "n", textContent: percent(share) }));
}

export function hear(words) { $("#heard").textContent = words; }

// ---- what goes wrong, said where it went wrong; the next thing that a person does clears it ---------------------

export class Trouble extends Error {}

export function complain(place, error) {
  const words = error instanceof Trouble ? error.message : "Something went wrong on this page. Load it again.";
  const said = words.charAt(0).toUpperCase() + words.slice(1);
  if (place.hidden || place.textContent !== said) place.textContent = said; // a screen reader reads it again otherwise
  place.classList.remove("good");
  place.hidden = false;
  if (!(error instanceof Trouble)) console.error(error);
}

export function praise(words) {
  const place = $("#notice");
  place.textContent = words;
  place.classList.add("good");
  place.hidden = false;
}

export function clearMessages() {
  for (const place of document.querySelectorAll(".error, #notice")) {
    place.hidden = true;
    place.textContent = "";
  }
}

for (const kind of ["click", "change", "input", "drop", "paste"]) document.addEventListener(kind, clearMessages, { capture: true });
