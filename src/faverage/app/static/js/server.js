// The server: questions, answers, and its refusals in words.

import { $, Trouble } from "./dom.js";

export async function ask(path, options = {}) {
  let response, said;
  try {
    response = await fetch(path, options);
  } catch {
    throw new Trouble("The server does not answer. Is it still running?");
  }
  try { said = await response.json(); } catch { said = {}; }
  if (response.status === 401) {
    $("#sign").hidden = false;
    for (const part of document.querySelectorAll("[data-needs-token]")) part.hidden = true;
  }
  if (!response.ok) throw new Trouble(said.error || `The server answered with status ${response.status}.`);
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
