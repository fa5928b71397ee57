// Teach it: pictures, a name, and what came of it.

import { $, complain, hear, make, percent, plural, quoted, Trouble } from "./dom.js";
import { drop, keptBy, MOST } from "./pictures.js";
import { teach as send } from "./server.js";
import { Source } from "./source.js";
import { onChange, refresh, state } from "./state.js";
import { clearAnswer, triedPicture, trying } from "./try.js";

const SUGGESTED = 5;
const lesson = [];
let busy = false;
keptBy((picture) => lesson.includes(picture));

export const teaching = new Source($("#teach"), { add: addToLesson });

function addToLesson(pictures) {
  $("#learned").hidden = true;
  if (lesson.length + pictures.length > MOST) {
    pictures.forEach(drop);
    throw new Trouble(`At most ${MOST} pictures at a time.`);
  }
  lesson.push(...pictures);
  showLesson();
  hear(`${plural(lesson.length, "picture")} to teach`);
}

function showLesson() {
  const empty = Math.max(SUGGESTED - lesson.length, 0);
  $("#count").textContent = `Pictures: ${lesson.length}${lesson.length < SUGGESTED ? ` of ${SUGGESTED}` : ""}`;
  $("#slots").classList.toggle("many", lesson.length > 15);
  $("#slots").replaceChildren(
    ...lesson.map((picture, k) => {
      const remove = make("button", { type: "button", textContent: "×", ariaLabel: `Remove picture ${k + 1}` });
      remove.addEventListener("click", () => {
        drop(...lesson.splice(k, 1));
        showLesson();
        ($("#slots button") || $("#name")).focus();
      });
      return make("li", { class: "full" }, make("img", { src: picture.url, alt: `Picture ${k + 1}` }), remove);
    }),
    ...Array.from({ length: empty }, () => make("li", { ariaHidden: "true" })),
  );
  readyToTeach();
}

function readyToTeach() {
  const name = $("#name").value.trim(), known = state.classes.some((one) => one.name === name);
  $("#go").disabled = busy || !lesson.length;
  $("#go").textContent = !name ? "Teach" : known ? `Add to ${quoted(name)}` : `Teach ${quoted(name)}`;
}

export function prepareLesson(name) {
  $("#name").value = name;
  readyToTeach();
  $("#teach").scrollIntoView();
  $("#name").focus();
}

async function teach(event) {
  event.preventDefault();
  const error = $("#teach .error"), name = $("#name").value.trim(), given = lesson.length;
  error.hidden = $("#learned").hidden = true;
  if (!name) {
    complain(error, new Trouble("Give it a name first."));
    $("#name").focus();
    return;
  }
  const since = Date.now();
  const say = () => { $("#doing").textContent = `Learning ${quoted(name)} from ${plural(given, "picture")} … ${Math.round((Date.now() - since) / 1000)} s`; };
  busy = true;
  readyToTeach();
  say();
  $("#progress").hidden = false;
  const timer = setInterval(say, 1000);
  try {
    const learned = await send(name, lesson);
    lesson.splice(0).forEach(drop);
    $("#name").value = "";
    showLesson();
    await refresh(learned.name);
    showLearned(learned);
    if (!trying.camera.stream) clearAnswer();
    for (const source of Source.all) source.paper.clear();
  } catch (trouble) {
    complain(error, trouble);
  } finally {
    clearInterval(timer);
    $("#progress").hidden = true;
    busy = false;
    readyToTeach();
  }
}

function showLearned({ name, count, kept, right, confused, before, after, worse, again }) {
  const place = $("#learned"), own = confused.filter((c) => c.true === name || c.answered === name);
  const of = kept === count ? plural(kept, "picture") : `the ${plural(kept, "picture")} that it keeps`;
  const check = kept > 1 && state.classes.length > 1 ? ` Check: it recognises ${Math.round(right * kept)} of ${of}, each left out in turn.` : "";
  const known = again ? ` It had ${plural(again, "picture")} of these already.` : "";
  const loss = worse ? ` But it now recognises ${percent(after)} of the other classes' kept pictures, and ${percent(before)} before: consider undoing this.` : "";
  const first = `It now knows ${quoted(name)}.${known}${check}${loss}`;
  place.replaceChildren(make("p", { textContent: first }));
  if (own.length) {
    const line = (c) => make("li", { textContent: `${quoted(c.true)} taken for ${quoted(c.answered)}, ${c.times === 1 ? "once" : `${c.times} times`}` });
    place.append(make("p", { textContent: "Among its stored examples it confuses:" }), make("ul", {}, ...own.slice(0, 4).map(line)),
      make("p", { textContent: "More pictures that differ would help." }));
  } else if (state.classes.length > 1) {
    place.append(make("p", { textContent: "None of its stored examples is confused with it. Try it!" }));
  } else {
    place.append(make("p", { textContent: "Now teach it a second class, so that it has something to tell apart." }));
  }
  place.hidden = false;
  hear(first);
}

$("#lesson").addEventListener("submit", teach);
$("#name").addEventListener("input", readyToTeach);
$("#wrong").addEventListener("click", () => teaching.guard(() => {
  if (triedPicture() && !lesson.includes(triedPicture())) addToLesson([triedPicture()]);
  trying.paper.clear();
  $("#teach").scrollIntoView();
  $("#name").focus();
}));
onChange(() => {
  $("#names").replaceChildren(...state.classes.map((known) => make("option", { value: known.name })));
  readyToTeach();
});
showLesson();
