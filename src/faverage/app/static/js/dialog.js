// A question before a change, the change, and what came of it.

import { $, complain, make, praise } from "./dom.js";
import { refresh } from "./state.js";
import { clearAnswer } from "./try.js";

export async function question(title, words, yes, field = null) {
  // resolves to null where the person says no; else to what the field holds, or to true
  $("#ask-h").textContent = title;
  $("#ask-p").replaceChildren(words, ...(field ? [make("label", {}, field.label, field.input)] : []));
  $("#ask-yes").textContent = yes;
  const dialog = $("#ask");
  dialog.returnValue = "no";
  dialog.showModal();
  field?.input.focus();
  field?.input.select?.();
  await new Promise((resolve) => dialog.addEventListener("close", resolve, { once: true }));
  if (dialog.returnValue !== "yes") return null;
  return field ? field.input.value.trim() : true;
}

$("#ask button[value=no]").addEventListener("click", () => $("#ask").close("no")); // not by Enter in the field

export async function change(work, said) {
  $("#notice").hidden = true;
  try {
    const result = await work();
    await refresh();
    clearAnswer();
    $("#learned").hidden = true;
    praise(said(result));
    return true;
  } catch (error) {
    complain($("#notice"), error);
    $("#notice").scrollIntoView({ block: "nearest" });
    return false;
  }
}
