// What the page knows of the model; panels hear of every change.

import { ask } from "./server.js";

export const state = { version: 0, model: "", classes: [], drawing: { likely: false, ground: "white" }, last: null };

const listeners = [];

export function onChange(listener) { listeners.push(listener); }

export async function refresh(fresh) {
  Object.assign(state, await ask("/api/classes"));
  for (const listener of listeners) listener(fresh);
}

export function colourOf(name) {
  // what the model was made with is blue; what was taught since has colours of its own
  const index = state.classes.filter((known) => known.session > 0).findIndex((known) => known.name === name);
  return index < 0 ? "var(--s0)" : `var(--s${1 + (index % 13)})`;
}
