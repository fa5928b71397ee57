// Files: pictures and models, out and in.

import { $, complain, hear, make, plural, quoted, Trouble } from "./dom.js";
import { change } from "./dialog.js";
import { ask, at } from "./server.js";
import { onChange, state } from "./state.js";

const error = $("#files .error"), working = $("#working");

async function during(words, work) {
  working.textContent = words;
  working.hidden = false;
  try { await work(); } catch (trouble) { complain(error, trouble); } finally { working.hidden = true; }
}

async function download(path) {
  let response;
  try {
    response = await fetch(at + path);
  } catch {
    throw new Trouble("The server does not answer. Is it still running?");
  }
  if (!response.ok) throw new Trouble((await response.json().catch(() => ({}))).error || `The server answered with status ${response.status}.`);
  const name = /filename="([^"]+)"/.exec(response.headers.get("content-disposition") || "")?.[1] || "download";
  const url = URL.createObjectURL(await response.blob());
  make("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
  hear(`Downloaded ${name}`);
}

function brought(said) {
  if (said.pictures !== undefined) {
    const again = said.lessons.reduce((sum, lesson) => sum + lesson.again, 0), names = said.lessons.map(({ name }) => quoted(name));
    return `It learned ${plural(said.pictures, "picture")} of ${names.join(", ")}.${again ? ` It knew ${plural(again, "other")} already.` : ""}`;
  }
  return said.new.length ? `Merged: it now also knows ${said.new.map(quoted).join(", ")}.` : "Merged: it brought no new class.";
}

for (const button of document.querySelectorAll("[data-get]")) {
  button.addEventListener("click", () => during("Making the file …", () => download(button.dataset.get)));
}
for (const input of document.querySelectorAll("[data-put]")) {
  input.addEventListener("change", () => {
    const [file] = input.files;
    input.value = "";
    if (file) during(`Reading ${file.name} …`, () => change(() => ask(input.dataset.put, { method: "POST", headers: { "Content-Type": "application/zip" }, body: file }), brought));
  });
}
onChange(() => { for (const button of document.querySelectorAll("[data-get]")) button.disabled = !state.classes.length; });
