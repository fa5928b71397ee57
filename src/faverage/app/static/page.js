// The page: what the model knows, a panel to try it, a panel to teach it. Plain JavaScript, no build step.

const $ = (selector, root = document) => root.querySelector(selector);
const percent = (share) => {
  if (share > 0 && share < 0.005) return "<1\u00a0%";
  return share >= 0.995 && share < 0.9995 ? ">99\u00a0%" : `${Math.round(100 * share)}\u00a0%`;
};
const plural = (n, what) => `${n} ${what}${n === 1 ? "" : "s"}`;
const quoted = (name) => `“${name}”`;
const SUGGESTED = 5, MOST = 20, MOST_BYTES = 8 * 2 ** 20, SIDE = 1024;

const state = { classes: [], drawing: { likely: false, ground: "white" }, last: null, busy: false };

function make(tag, options = {}, ...children) {
  const { class: kind, colour, ...rest } = options;
  const element = Object.assign(document.createElement(tag), rest);
  if (kind) element.className = kind;
  if (colour) element.style.setProperty("--c", colour);
  element.append(...children);
  return element;
}

function colourOf(name) {
  // what the model was made with is blue; what was taught since has colours of its own
  const index = state.classes.filter((known) => known.session > 0).findIndex((known) => known.name === name);
  return index < 0 ? "var(--s0)" : `var(--s${1 + (index % 13)})`;
}

function bar(name, share, colour, tag = "div") {
  const fill = make("i");
  fill.style.width = `${100 * Math.min(share, 1)}%`;
  return make(tag, { class: "bar", colour }, make("span", { textContent: name, title: name }),
    make("span", { class: "track", ariaHidden: "true" }, fill), make("span", { class: "n", textContent: percent(share) }));
}

function hear(words) { $("#heard").textContent = words; }

// ---- the server -------------------------------------------------------------------------------------------------

class Trouble extends Error {}

async function ask(path, options = {}) {
  let response, said;
  try {
    response = await fetch(path, options);
  } catch {
    throw new Trouble("The server does not answer. Is it still running?");
  }
  try { said = await response.json(); } catch { said = {}; }
  if (response.status === 401) {
    $("#sign").hidden = false;
    $("#work").hidden = $("#known").hidden = $("#explain").hidden = true;
  }
  if (!response.ok) throw new Trouble(said.error || `The server answered with status ${response.status}.`);
  return said;
}

function form(pictures, name) {
  const body = new FormData();
  if (name !== undefined) body.append("name", name);
  for (const { blob, called } of pictures) body.append("images", blob, called);
  return body;
}

const predict = (pictures) => ask("/api/predict?unknown=0.05", { method: "POST", body: form(pictures) }).then((said) => said.answers);

function complain(place, error) {
  place.textContent = error instanceof Trouble ? error.message : "Something went wrong on this page. Load it again.";
  place.classList.remove("good");
  place.hidden = false;
  if (!(error instanceof Trouble)) console.error(error);
}

// ---- pictures ---------------------------------------------------------------------------------------------------

const toBlob = (canvas, kind = "image/png") =>
  new Promise((resolve, reject) => canvas.toBlob((b) => (b ? resolve(b) : reject(new Error("no picture"))), kind, 0.92));

async function fromFile(file) {
  // large pictures are made smaller here; what the browser cannot open, the server judges
  const called = file.name || "picture";
  let bitmap;
  try {
    bitmap = await createImageBitmap(file);
  } catch {
    if (file.size > MOST_BYTES) throw new Trouble(`${called} is larger than 8 MB.`);
    await predict([{ blob: file, called }]);
    return { blob: file, called, url: "/icon.svg" };
  }
  let blob = file;
  const scale = SIDE / Math.max(bitmap.width, bitmap.height);
  if (scale < 1) {
    const canvas = make("canvas", { width: Math.max(1, Math.round(bitmap.width * scale)), height: Math.max(1, Math.round(bitmap.height * scale)) });
    canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
    blob = await toBlob(canvas, "image/jpeg");
  }
  bitmap.close();
  return { blob, called, url: URL.createObjectURL(blob) };
}

class Paper {
  // strokes are kept as lines, so that a drawing can be centred and sent with an even pen
  constructor(canvas, changed) {
    this.canvas = canvas;
    this.changed = changed;
    this.strokes = [];
    let stroke = null;
    const point = (event) => {
      const box = canvas.getBoundingClientRect();
      return [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
    };
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      canvas.setPointerCapture(event.pointerId);
      stroke = [point(event)];
      this.strokes.push(stroke);
      this.show();
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!stroke) return;
      for (const one of event.getCoalescedEvents?.() ?? [event]) stroke.push(point(one));
      this.show();
      this.changed();
    });
    for (const kind of ["pointerup", "pointercancel"]) {
      canvas.addEventListener(kind, () => { if (stroke) { stroke = null; this.changed(); } });
    }
    this.show();
  }

  get empty() { return this.strokes.length === 0; }

  clear() { this.strokes = []; this.show(); }

  show() {
    const { width } = this.canvas;
    paint(this.canvas, this.strokes.map((s) => s.map(([x, y]) => [x * width, y * width])), width * 0.055, "white");
    if (!this.empty) return;
    const pen = this.canvas.getContext("2d");
    pen.fillStyle = "#6b7280";
    pen.font = `${width * 0.055}px system-ui, sans-serif`;
    pen.textAlign = "center";
    pen.fillText("Draw here", width / 2, width / 2);
  }

  async picture() {
    const points = this.strokes.flat();
    const [left, right] = [Math.min(...points.map((p) => p[0])), Math.max(...points.map((p) => p[0]))];
    const [top, bottom] = [Math.min(...points.map((p) => p[1])), Math.max(...points.map((p) => p[1]))];
    const side = 128, scale = side * Math.min(PEN.box / Math.max(right - left, bottom - top, 1e-6), 2.5);
    const canvas = make("canvas", { width: side, height: side });
    const place = ([x, y]) => [side / 2 + (x - (left + right) / 2) * scale, side / 2 + (y - (top + bottom) / 2) * scale];
    paint(canvas, this.strokes.map((s) => s.map(place)), side * PEN.width, state.drawing.ground);
    const blob = await toBlob(canvas);
    return { blob, called: "drawing.png", url: URL.createObjectURL(blob) };
  }
}

const PEN = { box: 0.8, width: 0.12 }; // of the side of the picture that is sent

function paint(canvas, strokes, width, ground) {
  const pen = canvas.getContext("2d");
  pen.fillStyle = ground;
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.strokeStyle = ground === "white" ? "black" : "white";
  pen.lineWidth = width;
  pen.lineCap = pen.lineJoin = "round";
  for (const [first, ...rest] of strokes) {
    pen.beginPath();
    pen.moveTo(...first);
    for (const point of rest.length ? rest : [first]) pen.lineTo(...point);
    pen.stroke();
  }
}

class Camera {
  constructor(video) { this.video = video; this.stream = null; }

  async start() {
    if (!navigator.mediaDevices) throw new Trouble("Browsers allow the camera only on this machine (localhost) or over https.");
    try {
      const video = { facingMode: "environment", width: { ideal: 640 }, height: { ideal: 640 } };
      this.stream = await navigator.mediaDevices.getUserMedia({ video, audio: false });
    } catch (error) {
      const denied = error.name === "NotAllowedError";
      throw new Trouble(denied ? "The browser was not allowed to use the camera." : "No camera could be started.");
    }
    this.video.classList.toggle("mirror", this.stream.getVideoTracks()[0].getSettings().facingMode !== "environment");
    this.video.srcObject = this.stream;
    await this.video.play();
  }

  stop() {
    this.stream?.getTracks().forEach((track) => track.stop());
    this.stream = this.video.srcObject = null;
  }

  async picture() {
    const { videoWidth: w, videoHeight: h } = this.video, side = Math.min(w, h);
    const canvas = make("canvas", { width: 256, height: 256 });
    canvas.getContext("2d").drawImage(this.video, (w - side) / 2, (h - side) / 2, side, side, 0, 0, 256, 256);
    const blob = await toBlob(canvas, "image/jpeg");
    return { blob, called: "camera.jpg", url: URL.createObjectURL(blob) };
  }
}

// ---- where pictures come from: the same in both panels ----------------------------------------------------------

class Source {
  constructor(panel, { add, live, many }) {
    this.panel = panel;
    this.add = add;
    this.live = live;
    this.error = $(".error", panel);
    const root = this.root = $(".source", panel);
    root.append($("#source").content.cloneNode(true));
    this.tabs = [...root.querySelectorAll("[role=tab]")];
    for (const tab of this.tabs) {
      const pane = $(`[data-pane=${tab.dataset.tab}]`, root);
      tab.id = `${panel.id}-${tab.dataset.tab}`;
      pane.id = `${tab.id}-pane`;
      tab.setAttribute("aria-controls", pane.id);
      pane.setAttribute("aria-labelledby", tab.id);
      tab.addEventListener("click", () => this.show(tab.dataset.tab));
      tab.addEventListener("keydown", (event) => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (!step) return;
        const next = this.tabs[(this.tabs.indexOf(tab) + step + this.tabs.length) % this.tabs.length];
        this.show(next.dataset.tab);
        next.focus();
      });
    }
    this.paper = new Paper($(".paper", root), () => live && this.feed(() => this.paper.picture(), () => !this.paper.empty));
    $(".clear", root).addEventListener("click", () => { this.paper.clear(); live?.(null); });
    const addDrawing = $(".add", root), shoot = $(".shoot", root), start = $(".start", root), file = $("input[type=file]", root);
    addDrawing.hidden = Boolean(live);
    addDrawing.addEventListener("click", () => this.guard(async () => {
      if (this.paper.empty) throw new Trouble("The paper is empty: draw something first.");
      add([await this.paper.picture()]);
      this.paper.clear();
    }));
    this.camera = new Camera($(".view", root));
    start.addEventListener("click", () => this.guard(() => (this.camera.stream ? this.stopCamera() : this.startCamera())));
    this.holdable(shoot);
    $(".drop-text", root).textContent = many ? "Drop pictures here, paste them, or choose files" : "Drop a picture here, paste one, or choose a file";
    file.addEventListener("change", () => { this.files([...file.files]); file.value = ""; });
    panel.addEventListener("dragover", (event) => { event.preventDefault(); panel.classList.add("over"); });
    panel.addEventListener("dragleave", (event) => { if (!panel.contains(event.relatedTarget)) panel.classList.remove("over"); });
    panel.addEventListener("drop", (event) => {
      event.preventDefault();
      panel.classList.remove("over");
      this.files([...event.dataTransfer.files]);
    });
    for (const kind of ["pointerdown", "focusin"]) panel.addEventListener(kind, () => { Source.last = this; });
    document.addEventListener("visibilitychange", () => { if (document.hidden) this.stopCamera(); });
    this.show("draw");
  }

  show(name) {
    for (const tab of this.tabs) {
      const chosen = tab.dataset.tab === name;
      tab.setAttribute("aria-selected", chosen);
      tab.tabIndex = chosen ? 0 : -1;
      $(`[data-pane=${tab.dataset.tab}]`, this.root).hidden = !chosen;
    }
    if (name !== "camera") this.stopCamera();
    this.error.hidden = true;
  }

  async guard(work) {
    this.error.hidden = true;
    try { await work(); } catch (error) { complain(this.error, error); }
  }

  files(files) {
    if (!files.length) return;
    if (this.live) clearAnswer();
    this.guard(async () => {
      if (files.length > MOST) throw new Trouble(`At most ${MOST} pictures at a time.`);
      this.add(await Promise.all(files.map(fromFile)));
    });
  }

  async startCamera() {
    Source.all.filter((other) => other !== this).forEach((other) => other.stopCamera());
    await this.camera.start();
    $(".start", this.root).textContent = "Stop";
    $(".start", this.root).classList.add("plain");
    $(".shoot", this.root).hidden = Boolean(this.live);
    if (!this.live) return;
    const tick = () => {
      if (!this.camera.stream) return;
      this.feed(() => this.camera.picture(), () => this.camera.stream);
      setTimeout(tick, 200);
    };
    tick();
  }

  stopCamera() {
    if (!this.camera.stream) return;
    this.camera.stop();
    $(".start", this.root).textContent = "Start the camera";
    $(".start", this.root).classList.remove("plain");
    $(".shoot", this.root).hidden = true;
  }

  holdable(button) {
    // a press takes one picture; holding takes one every 0.3 s
    let timer = null;
    const shoot = () => this.guard(async () => this.add([await this.camera.picture()]));
    const stop = () => { clearInterval(timer); timer = null; };
    button.title = "Hold to take several";
    button.addEventListener("pointerdown", () => { shoot(); timer = setInterval(shoot, 300); });
    for (const kind of ["pointerup", "pointerleave", "pointercancel", "blur"]) button.addEventListener(kind, stop);
    button.addEventListener("click", (event) => { if (event.detail === 0) shoot(); }); // by keyboard
  }

  async feed(picture, still) {
    // one question at a time; what happens meanwhile is asked about afterwards
    if (this.feeding) { this.again = [picture, still]; return; }
    this.feeding = true;
    await this.guard(async () => { if (still()) await this.live(await picture(), still); });
    this.feeding = false;
    const again = this.again;
    this.again = null;
    if (again) this.feed(...again);
  }
}
Source.all = [];
Source.last = null;

// ---- try it -----------------------------------------------------------------------------------------------------

const tried = { picture: null, best: null };

function drop(picture) { if (picture?.url.startsWith("blob:") && !lesson.includes(picture)) URL.revokeObjectURL(picture.url); }

function showAnswer(picture, answer) {
  const { top } = answer;
  if (tried.picture !== picture) drop(tried.picture);
  tried.picture = picture;
  $("#hint").hidden = true;
  $("#answer").hidden = false;
  $("#seen").src = picture.url;
  $("#seen").hidden = false;
  $("#best").textContent = answer.answer;
  $("#top").replaceChildren(...top.slice(0, 5).map(({ name, probability }) => bar(name, probability, colourOf(name), "li")));
  $("#because").textContent = because(answer);
  $("#heads").hidden = answer.heads.length < 2;
  $("#heads").replaceChildren(...answer.heads.map(({ head, probability }) => bar(head, probability, colourOf(answer.answer))));
  $("#strange").hidden = !answer.unknown;
  if (answer.answer !== tried.best) hear(`This looks like ${answer.answer}, ${percent(top[0].probability)}${answer.unknown ? ", but may be none of these" : ""}`);
  tried.best = answer.answer;
}

function because({ answer, top, heads }) {
  if (!heads.length) return "";
  const pushes = heads.every((h) => h.push !== null), by = pushes ? "push" : "probability";
  const strongest = heads.reduce((a, b) => (b[by] > a[by] ? b : a));
  let words = heads.length === 1
    ? `One decides so far: “${strongest.head}” gives ${quoted(answer)} ${percent(strongest.probability)}.`
    : pushes && top.length > 1
      ? `“${strongest.head}” speaks most for ${quoted(answer)} and against ${quoted(top[1].name)}.`
      : `“${strongest.head}” is the surest: it gives ${quoted(answer)} ${percent(strongest.probability)}.`;
  const others = heads.filter((h) => h.best !== answer);
  if (others.length === 1) words += ` “${others[0].head}” alone would have said ${quoted(others[0].best)}.`;
  if (others.length > 1) words += ` ${others.length} of ${heads.length} alone would have said something else.`;
  if (heads.length > 1 && !others.length) words += " All agree.";
  return words;
}

function clearAnswer() {
  drop(tried.picture);
  tried.picture = tried.best = null;
  $("#answer").hidden = $("#several").hidden = true;
  $("#hint").hidden = false;
}

async function live(picture, still) {
  if (!picture) return clearAnswer();
  $("#several").hidden = true;
  const [answer] = await predict([picture]);
  if (still()) showAnswer(picture, answer);
}

async function tryPictures(pictures) {
  try {
    const answers = await predict(pictures);
    showAnswer(pictures[0], answers[0]);
    $("#several").hidden = pictures.length < 2;
    $("#several").replaceChildren(...(pictures.length < 2 ? [] : pictures.map((picture, k) => {
      const { name, probability } = answers[k].top[0];
      const row = make("button", { type: "button", class: "plain" }, make("img", { src: picture.url, alt: picture.called }), name,
        make("span", { class: "n", textContent: percent(probability) }));
      row.addEventListener("click", () => { tried.picture = null; showAnswer(picture, answers[k]); });
      return make("li", {}, row);
    })));
    if (pictures.length > 1) tried.picture = null; // kept for the list
  } catch (error) {
    complain($("#try .error"), error);
  }
}

// ---- teach it ---------------------------------------------------------------------------------------------------

const lesson = [];

function addToLesson(pictures) {
  $("#learned").hidden = true;
  if (lesson.length + pictures.length > MOST) throw new Trouble(`At most ${MOST} pictures at a time.`);
  lesson.push(...pictures);
  showLesson();
  hear(`${plural(lesson.length, "picture")} to teach`);
}

function showLesson() {
  const empty = Math.max(SUGGESTED - lesson.length, 0);
  $("#count").textContent = `Pictures: ${lesson.length}${lesson.length < SUGGESTED ? ` of ${SUGGESTED}` : ""}`;
  $("#slots").replaceChildren(
    ...lesson.map((picture, k) => {
      const remove = make("button", { type: "button", textContent: "×", ariaLabel: `Remove picture ${k + 1}` });
      remove.addEventListener("click", () => {
        lesson.splice(k, 1);
        showLesson();
        ($("#slots button") || $("#name")).focus();
      });
      return make("li", { class: "full" }, make("img", { src: picture.url, alt: `Picture ${k + 1}` }), remove);
    }),
    ...Array.from({ length: empty }, () => make("li", { ariaHidden: "true" })),
  );
  readyToTeach();
}

function readyToTeach() {
  const name = $("#name").value.trim();
  $("#go").disabled = state.busy || !lesson.length;
  $("#go").textContent = name ? `Teach ${quoted(name)}` : "Teach";
}

async function teach(event) {
  event.preventDefault();
  const error = $("#teach .error"), name = $("#name").value.trim(), given = lesson.length;
  error.hidden = $("#learned").hidden = true;
  if (!name) {
    complain(error, new Trouble("Give it a name first."));
    $("#name").focus();
    return;
  }
  const since = Date.now();
  const say = () => { $("#doing").textContent = `Learning ${quoted(name)} from ${plural(given, "picture")} … ${Math.round((Date.now() - since) / 1000)} s`; };
  state.busy = true;
  readyToTeach();
  say();
  $("#progress").hidden = false;
  const timer = setInterval(say, 1000);
  try {
    const learned = await ask("/api/teach", { method: "POST", body: form(lesson, name) });
    lesson.splice(0).forEach(drop);
    $("#name").value = "";
    showLesson();
    await refresh(learned.name);
    showLearned(learned);
    clearAnswer();
    for (const source of Source.all) source.paper.clear();
  } catch (trouble) {
    complain(error, trouble);
  } finally {
    clearInterval(timer);
    $("#progress").hidden = true;
    state.busy = false;
    readyToTeach();
  }
}

function showLearned({ name, count, kept, right, confused, before, after, worse }) {
  const place = $("#learned"), own = confused.filter((c) => c.true === name || c.answered === name);
  const of = kept === count ? plural(kept, "picture") : `the ${plural(kept, "picture")} that it keeps`;
  const check = kept > 1 ? ` Check: it recognises ${Math.round(right * kept)} of ${of}, each left out in turn.` : "";
  const loss = worse ? ` But it now recognises ${percent(after)} of the other classes' kept pictures, and ${percent(before)} before: consider undoing this.` : "";
  const first = `It now knows ${quoted(name)}.${check}${loss}`;
  place.replaceChildren(make("p", { textContent: first }));
  if (own.length) {
    const line = (c) => make("li", { textContent: `${quoted(c.true)} taken for ${quoted(c.answered)}, ${c.times === 1 ? "once" : `${c.times} times`}` });
    place.append(make("p", { textContent: "Among its stored examples it confuses:" }), make("ul", {}, ...own.slice(0, 4).map(line)),
      make("p", { textContent: "More pictures that differ would help." }));
  } else {
    place.append(make("p", { textContent: "None of its stored examples is confused with it. Try it!" }));
  }
  place.hidden = false;
  hear(first);
}

// ---- what it knows ----------------------------------------------------------------------------------------------

function card(known, fresh) {
  const taught = known.session > 0, colour = colourOf(known.name);
  const pictures = known.thumbnails.map((src) => make("img", { src, alt: "" }));
  const what = make("div", { class: "what" }, make("span", { class: "dot" }), make("strong", { textContent: known.name, title: known.name }),
    make("span", { class: "n", textContent: plural(known.count, "picture") }));
  const item = make("li", { class: `card${taught ? " taught" : ""}${fresh ? " new" : ""}`, colour }, make("div", { class: "pics" }, ...pictures), what);
  item.dataset.name = known.name;
  const more = make("button", { type: "button", class: "link", textContent: "Add pictures", ariaLabel: `Add pictures of ${known.name}` });
  more.addEventListener("click", () => { $("#name").value = known.name; readyToTeach(); $("#teach").scrollIntoView(); $("#name").focus(); });
  const forget = make("button", { type: "button", class: "link", textContent: "Forget", ariaLabel: `Forget ${known.name}` });
  forget.addEventListener("click", () => change(
    `Forget ${quoted(known.name)}?`, "The model unlearns this class; the others stay as they are. You can undo it.", "Forget",
    () => ask("/api/forget", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ name: known.name }) }),
    () => `It forgot ${quoted(known.name)}.`));
  item.append(make("div", { class: "acts" }, more, forget));
  return item;
}

async function refresh(fresh) {
  const said = await ask("/api/classes");
  Object.assign(state, said);
  const taught = said.classes.filter((known) => known.session > 0);
  $("#summary").textContent = `${said.model} knows ${said.classes.length === 1 ? "1 class" : `${said.classes.length} classes`}, ${taught.length ? `${taught.length} of them taught` : "none taught yet"}.`;
  const order = [...taught.slice().reverse(), ...said.classes.filter((known) => known.session === 0)];
  $("#cards").replaceChildren(...order.map((known) => card(known, known.name === fresh)));
  $("#names").replaceChildren(...said.classes.map((known) => make("option", { value: known.name })));
  $("#undo").disabled = !said.last;
  showHint();
  if ($("#explain").open) explain();
}

function showHint() {
  const names = state.classes.map((known) => known.name), some = names.slice(0, 12).join(", ");
  const first = state.drawing.likely ? "Draw one of the things it knows, and watch it guess." : "Show it a picture: drop one, paste one, or use the camera.";
  $("#hint").replaceChildren(make("p", { textContent: first }), make("p", {}, names.length ? "It knows " : "It knows nothing yet", make("b", { textContent: some }), names.length > 12 ? ` and ${names.length - 12} more.` : "."),
    make("p", { textContent: "Something else? Teach it from five pictures." }));
}

async function change(title, words, yes, work, said) {
  $("#ask-h").textContent = title;
  $("#ask-p").textContent = words;
  $("#ask-yes").textContent = yes;
  const dialog = $("#ask"), notice = $("#notice");
  dialog.returnValue = "no";
  dialog.showModal();
  await new Promise((resolve) => dialog.addEventListener("close", resolve, { once: true }));
  if (dialog.returnValue !== "yes") return;
  notice.hidden = true;
  try {
    const result = await work();
    await refresh();
    clearAnswer();
    $("#learned").hidden = true;
    notice.textContent = said(result);
    notice.classList.add("good");
    notice.hidden = false;
  } catch (error) {
    complain(notice, error);
  }
}

async function explain() {
  const place = $("#explained");
  try {
    const { means, trusted } = await ask("/api/explain");
    place.replaceChildren(
      make("p", { class: "soft", textContent: "Several small classifiers, the members, look at each picture: the base head, which was trained with the network; the nearest prototypes, the means of the pictures of each class; and a ridge regression. What they say is averaged, and these are the weights of that average." }),
      ...(means.filter(({ share }) => share > 0).length < 2 ? [] : [
        make("h3", { textContent: "Kinds of mean" }), make("div", { class: "bars small" }, ...means.map(({ mean, share }) => bar(mean, share)))]),
      make("h3", { textContent: "The most trusted member for each class" }),
      make("div", { class: "bars small" }, ...trusted.map(({ name, head, share }) => bar(`${name}: ${head}`, share, colourOf(name)))));
  } catch (error) {
    place.replaceChildren(make("p", { class: "soft", textContent: error instanceof Trouble ? error.message : "Something went wrong." }));
  }
}

// ---- start ------------------------------------------------------------------------------------------------------

const trying = new Source($("#try"), { add: tryPictures, live, many: false });
const teaching = new Source($("#teach"), { add: addToLesson, many: true });
Source.all = [trying, teaching];
$("#lesson").addEventListener("submit", teach);
$("#name").addEventListener("input", readyToTeach);
$("#wrong").addEventListener("click", () => teaching.guard(() => {
  addToLesson([tried.picture]);
  trying.paper.clear();
  $("#teach").scrollIntoView();
  $("#name").focus();
}));
$("#undo").addEventListener("click", () => {
  change("Undo the last change?", `The last change: ${state.last?.words || "one of the model"}`, "Undo",
    () => ask("/api/undo", { method: "POST" }), ({ undone }) => `Undone: ${undone}`);
});
$("#explain").addEventListener("toggle", () => { if ($("#explain").open) explain(); });
document.addEventListener("paste", (event) => {
  const files = [...(event.clipboardData?.files ?? [])];
  if (!files.length) return;
  event.preventDefault();
  (Source.last ?? trying).files(files);
});
for (const kind of ["dragover", "drop"]) document.addEventListener(kind, (event) => event.preventDefault());
showLesson();
refresh().then(() => { for (const source of Source.all) if (!state.drawing.likely) source.show("file"); }).catch((error) => complain($("#notice"), error));
