// Try it: the answer to a picture, why, and the pictures that it is like.

import { $, bar, hear, make, percent, quoted, Trouble } from "./dom.js";
import { clearTable, tryMany } from "./batch.js";
import { drop, fromFile, keptBy } from "./pictures.js";
import { predict } from "./server.js";
import { Source } from "./source.js";
import { colourOf, onChange, state } from "./state.js";

const NOTHING = "It knows nothing yet: teach it a class first.";
const tried = { picture: null, best: null };
keptBy((picture) => picture === tried.picture);

export const trying = new Source($("#try"), { add: tryPictures, live });
trying.whole = tryFiles;

export function showAnswer(picture, answer) {
  const { top, unknown } = answer, before = tried.picture;
  tried.picture = picture;
  if (before !== picture) drop(before);
  $("#hint").hidden = true;
  $("#answer").hidden = false;
  $("#seen").src = picture.url;
  $("#answer").classList.toggle("none", Boolean(unknown));
  $("#best").textContent = unknown ? "none of these" : answer.answer;
  $("#strange").hidden = !unknown;
  $("#strange").textContent = `It is unlike all pictures that it knows. The nearest class would be ${quoted(answer.answer)}.`;
  $("#top").replaceChildren(...top.slice(0, 5).map(({ name, probability }) => bar(name, probability, colourOf(name), "li")));
  showNearest(answer.nearest);
  showWhy(answer);
  const said = unknown ? "none of these" : answer.answer;
  if (said !== tried.best) hear(`This looks like ${said}${unknown ? "" : `, ${percent(top[0].probability)}`}`);
  tried.best = said;
}

function showNearest(nearest) {
  const shown = nearest.filter(({ picture }) => picture);
  $("#nearest").hidden = !shown.length;
  $("#nearest ul").replaceChildren(...shown.map(({ name, similarity, picture }) =>
    make("li", { colour: colourOf(name), title: `similarity ${similarity.toFixed(2)}` }, make("img", { src: picture, alt: "" }), make("span", { textContent: name }))));
}

function showWhy({ answer, top, heads, nearest }) {
  const against = top[1]?.name, pushes = heads.length > 0 && heads.every(({ push }) => push !== null);
  const parts = heads.length === 1 ? "One part of the model decides" : `${heads.length} parts of the model decide together`;
  $("#because").textContent = `${parts}. For ${quoted(answer)}${against && pushes ? ` and against ${quoted(against)}, the next best` : ""}:`;
  const largest = Math.max(...heads.map(({ push }) => Math.abs(push ?? 0)), 1e-9);
  $("#heads").replaceChildren(...heads.map((said) => {
    const { head, best, probability, push } = said, knows = said.knows !== false;
    const own = best === answer ? `says ${quoted(best)} too` : `would say ${quoted(best)}`;
    const gives = knows ? `gives ${quoted(answer)} ${percent(probability)}` : `does not know ${quoted(answer)}`;
    const item = make("li", {}, make("b", { textContent: head }), ` ${own}, ${gives}`);
    if (pushes && against) {
      const fill = make("i", { class: push < 0 ? "against" : "for" });
      fill.style.width = `${50 * Math.abs(push) / largest}%`;
      const size = Math.abs(push) < 0.05 * largest ? "hardly counts" : `${knows ? "pushes" : "which counts"} ${push < 0 ? "against" : "for"} it, ${push < 0 ? "−" : "+"}${Math.abs(push).toFixed(1)}`;
      item.append(`, ${size}.`, make("span", { class: "push", ariaHidden: "true" }, fill));
    } else {
      item.append(".");
    }
    return item;
  }));
  const alike = nearest.filter(({ name }) => name === answer).length;
  $("#alike").textContent = nearest.length ? `Of the ${nearest.length} most similar pictures that it keeps, ${alike} ${alike === 1 ? "is" : "are"} ${quoted(answer)}.` : "";
}

export function clearAnswer() {
  const before = tried.picture;
  tried.picture = tried.best = null;
  drop(before);
  $("#answer").hidden = true;
  clearTable();
  trying.preview(null);
  $("#hint").hidden = false;
}

async function live(picture, still) {
  if (!picture) { clearAnswer(); return true; }
  if (!state.classes.length) return false; // the hint says so
  const [answer] = await predict([picture]);
  if (!still()) return false;
  clearTable();
  showAnswer(picture, answer);
  return true;
}

async function tryFiles(files) {
  clearAnswer();
  if (!state.classes.length) throw new Trouble(NOTHING);
  if (files.length === 1) await tryPictures([await fromFile(files[0])]);
  else await tryMany(files, showAnswer);
}

async function tryPictures([picture]) {
  const [answer] = await predict([picture]);
  showAnswer(picture, answer);
  trying.show("file");
  trying.preview(picture);
}

export const triedPicture = () => tried.picture;

onChange(() => {
  const names = state.classes.map((known) => known.name), some = names.slice(0, 12).join(", ");
  const first = !names.length ? "It knows nothing yet. Teach it two classes: a few pictures of each are enough."
    : state.drawing.likely ? "Draw one of the things it knows, and watch it guess." : "Show it a picture: drop one, paste one, or use the camera.";
  const known = make("p", {}, "It knows ", make("b", { textContent: some }), names.length > 12 ? ` and ${names.length - 12} more.` : ".");
  $("#hint").replaceChildren(make("p", { textContent: first }), ...(names.length ? [known, make("p", { textContent: "Something else? Teach it from five pictures." })] : []));
});
