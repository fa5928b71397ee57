// Many pictures at once: a table of answers, and the same as CSV.

import { $, hear, make, percent, plural, Trouble } from "./dom.js";
import { drop, fromFile, keptBy } from "./pictures.js";
import { predict } from "./server.js";

const TOGETHER = 10; // pictures in one request
let rows = [];
keptBy((picture) => rows.some((row) => row.picture === picture));

export function clearTable() {
  const before = rows;
  rows = [];
  before.forEach(({ picture }) => drop(picture));
  $("#batch").hidden = true;
  $("#batch tbody").replaceChildren();
}

export async function tryMany(files, choose) {
  // what cannot be read gets a line of its own; the others are answered
  const mine = rows = files.map((file) => ({ file, called: file.name || "picture" }));
  $("#batch").hidden = false;
  $("#hint").hidden = true;
  for (let start = 0; start < files.length && rows === mine; start += TOGETHER) {
    const some = mine.slice(start, start + TOGETHER);
    for (const row of some) {
      try { row.picture = await fromFile(row.file); } catch (error) { row.trouble = words(error); }
    }
    await answerTogether(some.filter(({ picture }) => picture));
    if (rows === mine) show(choose);
  }
  if (rows === mine) hear($("#batch-count").textContent);
}

async function answerTogether(some) {
  if (!some.length) return;
  try {
    (await predict(some.map(({ picture }) => picture))).forEach((answer, k) => { some[k].answer = answer; });
  } catch (error) {
    if (some.length === 1) some[0].trouble = words(error);
    else for (const row of some) await answerTogether([row]); // one of them is at fault
  }
}

const words = (error) => (error instanceof Trouble ? error.message : "It could not be opened.");
const said = ({ answer }) => (answer.unknown ? "none of these" : answer.answer);

function show(choose) {
  const done = rows.filter(({ answer }) => answer), broken = rows.filter(({ trouble }) => trouble);
  $("#batch-count").textContent = `${done.length} of ${plural(rows.length, "picture")} answered${broken.length ? `, ${broken.length} could not be read` : ""}`;
  $("#batch tbody").replaceChildren(...rows.filter(({ answer, trouble }) => answer || trouble).map((row) => {
    const { picture, called, answer, trouble } = row;
    if (trouble) return make("tr", { class: "broken" }, make("td"), make("th", { scope: "row", textContent: called }), make("td", { colSpan: 2, textContent: trouble }));
    const look = make("button", { type: "button", class: "link", textContent: called, ariaLabel: `Why: ${called}` });
    look.addEventListener("click", () => { choose(picture, answer); $("#answer").scrollIntoView({ block: "nearest" }); });
    return make("tr", {}, make("td", {}, make("img", { src: picture.url, alt: "" })), make("th", { scope: "row" }, look),
      make("td", { textContent: said(row) }), make("td", { class: "n", textContent: percent(answer.top[0].probability) }));
  }));
}

function csv() {
  // a cell that begins like a formula must not become one in a spreadsheet
  const cell = (value) => `"${String(value).replace(/^[=+\-@\t\r]/, "'$&").replaceAll('"', '""')}"`;
  const lines = rows.filter(({ answer, trouble }) => answer || trouble).map((row) => (row.trouble
    ? [row.called, "", "", "", "", row.trouble]
    : [row.called, said(row), row.answer.answer, row.answer.top[0].probability.toFixed(4), row.answer.familiarity.toFixed(4), ""]));
  return [["picture", "answer", "nearest class", "probability", "familiarity", "error"], ...lines]
    .map((line) => line.map((value, k) => (k === 3 || k === 4 ? value : cell(value))).join(",")).join("\r\n");
}

$("#csv").addEventListener("click", () => {
  const url = URL.createObjectURL(new Blob([`\ufeff${csv()}\r\n`], { type: "text/csv" }));
  make("a", { href: url, download: "answers.csv" }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
});
