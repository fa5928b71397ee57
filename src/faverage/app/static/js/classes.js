// What it knows: a card a class, with its pictures; rename, forget, undo.

import { $, make, plural, quoted } from "./dom.js";
import { change, question } from "./dialog.js";
import { ask, post } from "./server.js";
import { colourOf, onChange, state } from "./state.js";
import { prepareLesson } from "./teach.js";

function act(words, name, work) {
  const button = make("button", { type: "button", class: "link", textContent: words, ariaLabel: `${words}${words === "Add" ? " pictures of" : ""} ${name}` });
  button.addEventListener("click", work);
  return button;
}

async function rename(name) {
  const input = make("input", { value: name, maxLength: 80, autocomplete: "off", id: "new-name", required: true });
  const given = await question(`Rename ${quoted(name)}`, "It stays the same class.", "Rename", { label: "New name", input });
  if (given) await change(() => post("/api/rename", { name, new: given }), () => `${quoted(name)} is now called ${quoted(given)}.`);
}

async function forget(name) {
  const sure = await question(`Forget ${quoted(name)}?`, "The model unlearns this class; the others stay as they are. You can undo it.", "Forget");
  if (sure) await change(() => post("/api/forget", { name }), () => `It forgot ${quoted(name)}.`);
}

function card(known, fresh) {
  const { name, count, session, thumbnails } = known;
  const what = make("div", { class: "what" }, make("span", { class: "dot" }), make("strong", { textContent: name }),
    make("span", { class: "n", textContent: plural(count, "picture") }));
  const pictures = make("div", { class: "pics" }, ...thumbnails.map((src) => make("img", { src, alt: "" })));
  const acts = make("div", { class: "acts" }, act("Add", name, () => prepareLesson(name)), act("Rename", name, () => rename(name)), act("Forget", name, () => forget(name)));
  const item = make("li", { class: `card${session > 0 ? " taught" : ""}${name === fresh ? " new" : ""}`, colour: colourOf(name) }, pictures, what, acts);
  item.dataset.name = name;
  return item;
}

onChange((fresh) => {
  const { classes } = state, taught = classes.filter((known) => known.session > 0);
  const number = classes.length ? `knows ${classes.length === 1 ? "1 class" : `${classes.length} classes`}, ${taught.length ? `${taught.length} of them taught` : "none taught yet"}` : "knows nothing yet";
  $("#summary").textContent = `${state.model} ${number}.`;
  const order = [...taught.slice().reverse(), ...classes.filter((known) => known.session === 0)];
  $("#cards").replaceChildren(...order.map((known) => card(known, fresh)));
  $("#known").hidden = $("#explain").hidden = !classes.length;
  $("#undo").disabled = !state.last;
});

$("#undo").addEventListener("click", async () => {
  const sure = await question("Undo the last change?", `The last change: ${state.last?.words || "one of the model"}`, "Undo");
  if (sure) await change(() => ask("/api/undo", { method: "POST" }), ({ undone }) => `Undone: ${undone}`);
});
