// The page: try a model, teach it, see what it knows. Plain modules, one a panel, no build step.

import { $, complain } from "./js/dom.js";
import { showModels } from "./js/models.js";
import { Source } from "./js/source.js";
import { refresh, state } from "./js/state.js";
import { trying } from "./js/try.js";
import "./js/teach.js";
import "./js/classes.js";
import "./js/matrix.js";
import "./js/files.js";
import "./js/explain.js";

document.addEventListener("paste", (event) => {
  const files = [...(event.clipboardData?.files ?? [])];
  if (!files.length) return;
  event.preventDefault();
  (Source.last ?? trying).files(files);
});
for (const kind of ["dragover", "drop"]) document.addEventListener(kind, (event) => event.preventDefault());
refresh().then(() => {
  const first = state.drawing.likely ? "draw" : state.classes.length ? "file" : "camera";
  for (const source of Source.all) source.show(first);
  return showModels();
}).catch((error) => complain($("#notice"), error));
