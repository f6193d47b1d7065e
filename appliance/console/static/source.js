// Owns the panel that shows a source: which document, where in it, the passage, and in the passage what was quoted.

import * as api from "./api.js";
import { byId, button, el } from "./dom.js";
import { t } from "./i18n.js";
import { failureText, place } from "./wording.js";

const MOST_PASSAGES = 50;
const NARROW = "(max-width: 60rem)";

let shown = 0; // which call of `show` the panel is for
let opener = null;

/** What names a source in a list, and opens it; with its text where it is known. */
export function sourceLink(source, open) {
  const named = [el("span", { class: "name" }, source.document), " ", el("span", { class: "where" }, place(source))];
  if (source.text) named.push(el("span", { class: "excerpt" }, source.text));
  const number = el("span", { class: "number" }, String(source.n));
  return el("button", { type: "button", class: "source-link", onclick: open }, number, el("span", {}, ...named));
}

/**
 * Show a passage.
 * @param {Object} source n, document, title, page, heading, quote; text where it is known
 * @param {Function} passage called where `text` is not: a promise of it, or of null
 */
export async function show(source, passage) {
  const panel = byId("source");
  const mine = (shown += 1);
  if (!panel.open) {
    opener = document.activeElement;
    if (matchMedia(NARROW).matches) panel.showModal();
    else panel.show();
  }
  const quote = el("mark", {}, source.quote ?? "");
  const text = el("div", { class: "passage", tabindex: "0", role: "group", "aria-label": t("source.passage") }, quote);
  const facts = [
    [t("source.document"), source.document],
    [t("source.title"), source.title === source.document ? "" : source.title],
    [t("source.page_label"), source.page == null ? "" : pages(source)],
    [t("source.heading"), source.heading],
  ].filter(([, value]) => value);
  const original = source.document_id == null ? [] : [originalLink(source)];
  const title = el("h2", { id: "source-title", tabindex: "-1" }, t("source.number", { n: source.n }));
  panel.replaceChildren(
    el("header", {}, title, button("×", close, { class: "quiet close", "aria-label": t("close") })),
    el("dl", {}, ...facts.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])),
    text,
    ...original,
  );
  title.focus();
  try {
    const whole = source.text ?? (await passage());
    if (mine !== shown || whole === null) return;
    text.replaceChildren(...highlighted(whole, source.quote));
    text.querySelector("mark")?.scrollIntoView({ block: "nearest" });
  } catch (error) {
    if (mine === shown && error instanceof api.Failure) panel.append(el("p", { class: "failure" }, failureText(error)));
  }
}

/** Close the panel; the focus goes back to where it was opened from. */
export function close() {
  byId("source").close();
}

/** The passage of an answer's source. The search finds it again: the answer was made of what it found. */
export async function passageOf(source, { question, collection }) {
  const { results } = await api.search({ query: question, collection, rerank: false, top_k: MOST_PASSAGES });
  return results.find(({ chunk }) => chunk === source.chunk)?.text ?? null;
}

/** The document itself, at the page; with a key, which a link cannot send, it is fetched and saved. */
function originalLink(source) {
  const page = source.page == null ? "" : `#page=${source.page}`;
  const address = api.originalAddress(source.document_id) + page;
  const link = el("a", { class: "original", href: address, target: "_blank", rel: "noopener" }, t("source.original"));
  link.addEventListener("click", async (event) => {
    if (!api.hasKey()) return;
    event.preventDefault();
    try {
      const saved = el("a", { href: URL.createObjectURL(await api.original(source.document_id)) });
      saved.download = source.document;
      saved.click();
      URL.revokeObjectURL(saved.href);
    } catch (error) {
      if (error instanceof api.Failure) link.after(el("p", { class: "failure" }, failureText(error)));
    }
  });
  return el("p", {}, link);
}

function pages({ page, page_last: last }) {
  return last == null || last === page ? String(page) : `${page}–${last}`;
}

/** `text` with `quote` marked; white space may differ between the two, and a long quotation ends in an ellipsis. */
export function highlighted(text, quote) {
  const words = (quote ?? "").replace(/…$/, "").trim().split(/\s+/).filter(Boolean);
  if (words.length === 0) return [text];
  const pattern = words.map((word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join("\\s+");
  const found = new RegExp(pattern).exec(text);
  if (!found) return [el("mark", {}, quote), "\n\n", text];
  const end = found.index + found[0].length;
  return [text.slice(0, found.index), el("mark", {}, found[0]), text.slice(end)];
}

/** Wire the panel, once. */
export function start() {
  const panel = byId("source");
  panel.addEventListener("close", () => {
    panel.replaceChildren();
    if (opener?.isConnected) opener.focus();
    opener = null;
  });
  panel.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !event.defaultPrevented) close(); // a dialog that is not modal does not do it itself
  });
}
