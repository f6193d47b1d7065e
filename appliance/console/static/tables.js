// Owns sections with a heading, and tables in them that scroll on their own where they are wide.

import { el } from "./dom.js";

/** A section. */
export function section(title, ...parts) {
  return el("section", {}, el("h2", {}, title), ...parts);
}

/** A table; the first cell of a row names it. */
export function table(caption, heads, rows) {
  const head = el("tr", {}, ...heads.map((text) => el("th", { scope: "col" }, text)));
  const body = rows.map(([first, ...rest]) => {
    return el("tr", {}, el("th", { scope: "row" }, first), ...rest.map((text) => el("td", {}, text)));
  });
  const named = el("caption", { class: "unseen" }, caption);
  const whole = el("table", {}, named, el("thead", {}, head), el("tbody", {}, ...body));
  return el("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": caption }, whole);
}
