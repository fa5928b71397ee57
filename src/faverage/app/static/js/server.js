// The server: questions, answers, and its refusals in words.

import { $, Trouble } from "./dom.js";
import { zip } from "./zip.js";

const TOGETHER = 20; // pictures that the server takes in one form

export const at = location.pathname.replace(/\/[^/]*$/, ""); // what the addresses of this model begin with

export async function ask(path, options = {}) {
  let response, said;
  try {
    response = await fetch(at + path, options);
  } catch {
    throw new Trouble("The server does not answer. Is it still running?");
  }
  try { said = await response.json(); } catch { said = {}; }
  if (response.status === 401) {
    $("#sign").hidden = false;
    for (const part of document.querySelectorAll("[data-needs-token]")) part.hidden = true;
  }
  if (!response.ok) throw Object.assign(new Trouble(said.error || `The server answered with status ${response.status}.`), { status: response.status });
  return said;
}

export const post = (path, what) =>
  ask(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(what) });

export function form(pictures, name) {
  const body = new FormData();
  if (name !== undefined) body.append("name", name);
  for (const { blob, called } of pictures) body.append("images", blob, called);
  return body;
}

export const predict = (pictures) =>
  ask("/api/predict?unknown=0.05", { method: "POST", body: form(pictures) }).then((said) => said.answers);

export async function teach(name, pictures) {
  // more than one form takes travel as a zip, which is one change, too
  if (pictures.length <= TOGETHER) return ask("/api/teach", { method: "POST", body: form(pictures, name) });
  const folder = encodeURIComponent(name).replaceAll(".", "%2E");
  const body = await zip(pictures.map(({ blob }, k) => ({ path: `${folder}/${k}`, blob })));
  return (await ask("/api/pictures.zip", { method: "POST", headers: { "Content-Type": "application/zip" }, body })).lessons[0];
}
