// The switch between the models, where several are served: each has a page of its own.

import { $, make } from "./dom.js";
import { ask, at } from "./server.js";

export async function showModels() {
  const { models, note } = await ask("/api/models");
  $("#note").textContent = note ?? "";
  $("#note").hidden = !note;
  if (models.length < 2) return;
  const here = models.find(({ address }) => address === `${at}/`) ?? models[0];
  document.title = `${here.name}: teach it a new class`;
  $("#models ul").replaceChildren(...models.map((one) =>
    make("li", {}, make("a", { href: one.address, textContent: one.name, ariaCurrent: one === here ? "page" : null }))));
  $("#models").hidden = false;
}
