// What is confused with what: a row a class, a column an answer, the pictures in the cells; move or remove them.

import { $, complain, make, plural, quoted } from "./dom.js";
import { change } from "./dialog.js";
import { prepareLesson } from "./teach.js";
import { ask, post } from "./server.js";
import { onChange, state } from "./state.js";

const SHOWN = 3; // small pictures in a cell
const LARGEST = 40; // classes of a whole table; of more, only what is confused is listed
let found = null, cell = null, chosen = new Set();

const inCell = (name, answered) => found.examples.filter((one) => one.name === name && one.answered === answered);

async function load() {
  const place = $("#matrix-body");
  try {
    found = await ask("/api/matrix");
  } catch (error) {
    complain($("#matrix .error"), error);
    return;
  }
  $("#next").hidden = !found.next;
  if (found.next) {
    const add = make("button", { type: "button", class: "plain", textContent: "Add pictures" });
    add.addEventListener("click", () => prepareLesson(found.next.name));
    $("#next").replaceChildren(make("span", { textContent: found.next.words }), add);
  }
  const others = found.examples.filter(({ alone }) => !alone), lone = found.examples.length - others.length;
  const wrong = others.filter(({ name, answered }) => name !== answered).length, all = others.length;
  $("#matrix-words").textContent = !all ? "There is nothing to compare yet."
    : `Each of the ${plural(all, "picture")} that it keeps was left out in turn, and answered by what it learned from the others: ${all - wrong} right, ${wrong} wrong.${lone ? ` ${lone === 1 ? "One more is" : `${lone} more are`} alone in ${lone === 1 ? "its" : "their"} class, with nothing to be recognised by.` : ""}`;
  place.replaceChildren(found.classes.length < 2 || !found.examples.length ? "" : found.classes.length <= LARGEST ? table() : list());
  if (cell) openCell(...cell);
}

function cellButton(name, answered) {
  const own = inCell(name, answered);
  if (!own.length) return "";
  const pictures = own.filter(({ picture }) => picture).slice(0, SHOWN).map(({ picture }) => make("img", { src: picture, alt: "", loading: "lazy" }));
  const right = name === answered;
  const button = make("button", { type: "button", class: `cell ${right ? "right" : "wrong"}`, ariaLabel: `${plural(own.length, "picture")} of ${name}, answered ${answered}` },
    make("b", { textContent: own.length }), ...pictures);
  button.addEventListener("click", () => openCell(name, answered));
  return button;
}

function table() {
  const head = make("tr", {}, make("td", { class: "corner", textContent: "is ↓ answered →" }), ...found.classes.map((name) => make("th", { scope: "col" }, make("span", { textContent: name }))));
  const rows = found.classes.map((name) => make("tr", {}, make("th", { scope: "row", textContent: name }),
    ...found.classes.map((answered) => make("td", {}, cellButton(name, answered)))));
  return make("table", { class: "matrix" }, make("thead", {}, head), make("tbody", {}, ...rows));
}

function list() {
  const pairs = [...new Set(found.examples.filter((e) => e.name !== e.answered).map((e) => JSON.stringify([e.name, e.answered])))].map(JSON.parse);
  return make("ul", { class: "pairs" }, ...pairs.map(([name, answered]) => make("li", {}, `${name} → ${answered} `, cellButton(name, answered))));
}

function openCell(name, answered) {
  const own = inCell(name, answered), place = $("#cell");
  cell = own.length ? [name, answered] : null;
  chosen = new Set();
  place.hidden = !own.length;
  if (!own.length) return;
  const lone = own.every(({ alone }) => alone);
  const title = name === answered ? `${quoted(name)}, recognised` : lone ? `The only picture of ${quoted(name)}: without it, there is nothing to recognise it by` : `${quoted(name)}, taken for ${quoted(answered)}`;
  const items = own.map((one, k) => {
    const box = make("input", { type: "checkbox", ariaLabel: `Choose picture ${k + 1}` });
    box.addEventListener("change", () => { if (box.checked) chosen.add(one.id); else chosen.delete(one.id); ready(); });
    return make("li", {}, make("label", {}, one.picture ? make("img", { src: one.picture, alt: `Picture ${k + 1} of ${name}` }) : make("span", { class: "gone", textContent: "not kept" }), box));
  });
  const to = make("select", { ariaLabel: "Move to the class" }, ...state.classes.filter((known) => known.name !== name).map((known) => make("option", { value: known.name, textContent: known.name })));
  if (name !== answered) to.value = answered;
  const move = make("button", { type: "button", textContent: "Move" }), remove = make("button", { type: "button", class: "plain", textContent: "Remove" });
  const ready = () => {
    move.disabled = !chosen.size || !to.value;
    remove.disabled = !chosen.size;
    $("#cell-count").textContent = chosen.size ? `${chosen.size} chosen` : "Choose pictures to move or remove them.";
  };
  move.addEventListener("click", () => change(() => post("/api/move", { ids: [...chosen].slice(0, 100), to: to.value }), ({ words }) => `Done: ${words}. You can undo it.`));
  remove.addEventListener("click", () => change(() => post("/api/remove", { ids: [...chosen].slice(0, 100) }), ({ words }) => `Done: ${words}. You can undo it.`));
  place.replaceChildren(make("h3", { textContent: title }), make("ul", { class: "picks" }, ...items), make("p", { class: "soft small", id: "cell-count" }),
    make("div", { class: "row" }, make("label", { class: "grow" }, "Move to ", to), move, remove));
  ready();
  place.scrollIntoView({ block: "nearest" });
}

onChange(() => {
  $("#matrix").hidden = !state.classes.length;
  if (state.classes.length) load();
});
