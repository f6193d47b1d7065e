// Owns the questions that the page asks in return: whether something shall be done, a name, the key.

import { byId, button, el } from "./dom.js";
import { t } from "./i18n.js";

let turn = Promise.resolve(); // one question at a time

/** Ask in a dialog; what `done` gives when it is confirmed, null when it is not. */
function ask(title, parts, confirm, done) {
  const asked = turn.then(
    () =>
      new Promise((resolve) => {
        const dialog = byId("asking");
        const buttons = el(
          "div",
          { class: "row end" },
          button(t("cancel"), () => dialog.close("")),
          el("button", { type: "submit", class: confirm.danger ? "primary danger" : "primary" }, confirm.text),
        );
        const submit = (event) => {
          event.preventDefault();
          dialog.close("yes");
        };
        const head = el("h2", { id: "asking-title" }, title);
        dialog.replaceChildren(el("form", { onsubmit: submit }, head, ...parts, buttons));
        dialog.returnValue = "";
        dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes" ? done() : null), { once: true });
        dialog.showModal();
      }),
  );
  turn = asked;
  return asked;
}

/** Whether something that cannot be undone shall be done. */
export async function confirmed(title, text, action) {
  return (await ask(title, [el("p", {}, text)], { text: action, danger: true }, () => true)) !== null;
}

/** A line of text; null: none was given. */
export function line(title, label, action, { type = "text", hint }) {
  const limits = { required: true, maxlength: "200", autocomplete: "off" };
  const input = el("input", { id: "asking-line", type, ...limits });
  const parts = [el("label", { for: "asking-line" }, label), input, el("p", { class: "hint" }, hint)];
  return ask(title, parts, { text: action }, () => input.value.trim() || null);
}

/** The key of the service; null: none was given. */
export function key(refused) {
  const hint = t(refused ? "key.refused" : "key.hint");
  return line(t("key.title"), t("key.label"), t("key.use"), { type: "password", hint });
}
