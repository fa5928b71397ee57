// How it decides: which member is trusted for which class.

import { $, bar, make, Trouble } from "./dom.js";
import { ask } from "./server.js";
import { colourOf, onChange } from "./state.js";

const WORDS = "Several small classifiers, the members, look at each picture: the base head, which was trained with the network; the nearest prototypes, the means of the pictures of each class; and a ridge regression. What they say is averaged, and these are the weights of that average.";

async function explain() {
  const place = $("#explained");
  try {
    const { means, trusted } = await ask("/api/explain");
    const kinds = means.filter(({ share }) => share > 0).length < 2 ? []
      : [make("h3", { textContent: "Kinds of mean" }), make("div", { class: "bars small" }, ...means.map(({ mean, share }) => bar(mean, share)))];
    place.replaceChildren(make("p", { class: "soft", textContent: WORDS }), ...kinds, make("h3", { textContent: "The most trusted member for each class" }),
      make("div", { class: "bars small" }, ...trusted.map(({ name, head, share }) => bar(`${name}: ${head}`, share, colourOf(name)))));
  } catch (error) {
    place.replaceChildren(make("p", { class: "soft", textContent: error instanceof Trouble ? error.message : "Something went wrong." }));
  }
}

$("#explain").addEventListener("toggle", () => { if ($("#explain").open) explain(); });
onChange(() => { if ($("#explain").open) explain(); });
