// Owns sending files: a queue of them, what became of each, and how that looks.

import * as api from "./api.js";
import { announce, byId, button, el } from "./dom.js";
import * as health from "./health.js";
import { bytes, count, t, words } from "./i18n.js";
import { failureText } from "./wording.js";

const AT_ONCE = 2; // the service reads no more at a time
const TRIES = 4;
const OVER = new Set(["done", "failed", "stopped"]);

let queue = [];
let changed = () => {};

/** Have `listener()` called when documents were added. */
export function onAdded(listener) {
  changed = listener;
}

/** Send files, as `{file, source}`, to a collection. */
export function add(files, collection) {
  queue = queue.filter(({ state }) => !OVER.has(state) || state === "failed");
  for (const { file, source } of files) {
    queue.push({ file, source, collection, state: "queued", sent: 0, stopping: new AbortController(), row: el("li") });
  }
  draw();
  advance();
}

/** Draw all rows anew. */
export function draw() {
  for (const item of queue) drawRow(item);
  byId("uploads").replaceChildren(...queue.map(({ row }) => row));
}

function advance() {
  const free = AT_ONCE - queue.filter(({ state }) => ["sending", "reading", "offline"].includes(state)).length;
  for (const item of queue.filter(({ state }) => state === "queued").slice(0, Math.max(0, free))) run(item);
}

async function run(item) {
  item.state = "sending";
  drawRow(item);
  try {
    item.outcome = await untilSent(item);
    item.state = "done";
    changed();
  } catch (error) {
    item.state = item.stopping.signal.aborted ? "stopped" : "failed";
    item.failure = { code: error.code ?? "failed", message: error.message };
  }
  drawRow(item);
  advance();
  if (queue.every(({ state }) => OVER.has(state))) announce(summary());
}

/** Send until the service has taken it: sent twice, a file is unchanged the second time. */
async function untilSent(item) {
  for (let tries = 1; ; tries += 1) {
    try {
      return await api.upload({
        collection: item.collection,
        source: item.source,
        file: item.file,
        signal: item.stopping.signal,
        progress: (sent) => advanceTo(item, sent),
      });
    } catch (error) {
      if (!(error instanceof api.Failure) || !error.passes || tries === TRIES) throw error;
      item.state = "offline";
      drawRow(item);
      health.check();
      await health.ready(item.stopping.signal);
    }
  }
}

// A row that only gets on is not made anew: its button may have the focus.
function advanceTo(item, sent) {
  const before = item.state;
  item.sent = sent;
  item.state = sent < item.file.size ? "sending" : "reading";
  if (item.state !== before) {
    drawRow(item);
  } else if (item.state === "sending") {
    item.row.querySelector(".told").textContent = said(item);
    item.row.querySelector("progress").value = sent;
  }
}

function summary() {
  const added = queue.filter(({ state }) => state === "done").length;
  const failed = queue.filter(({ state }) => state === "failed").length;
  return failed > 0 ? t("upload.summary_failed", { added, failed }) : count("upload.summary", added);
}

function drawRow(item) {
  const { row, file, state } = item;
  row.className = `upload ${state}`;
  const name = el("span", { class: "name" }, item.source);
  const told = el("span", { class: "told" }, said(item));
  const parts = [el("div", { class: "row" }, name, told)];
  if (state === "sending" || state === "reading") {
    // One without value: how long the service reads is not known.
    const value = state === "sending" ? { value: String(item.sent), max: String(file.size || 1) } : {};
    parts.push(el("progress", { "aria-label": item.source, ...value }));
  }
  const losses = item.outcome?.losses ?? [];
  if (losses.length > 0) parts.push(lossReport(losses));
  if (!OVER.has(state)) parts[0].append(button(t("cancel"), () => stop(item), { class: "quiet" }));
  if (state === "failed") parts[0].append(button(t("upload.again"), () => retry(item), { class: "quiet" }));
  row.replaceChildren(...parts);
}

function stop(item) {
  item.stopping.abort();
  if (item.state === "queued") {
    item.state = "stopped";
    drawRow(item);
  }
}

function retry(item) {
  Object.assign(item, { state: "queued", sent: 0, stopping: new AbortController() });
  drawRow(item);
  advance();
}

function said({ state, sent, file, outcome, failure }) {
  switch (state) {
    case "sending":
      return t("upload.sending", { sent: bytes(sent), size: bytes(file.size) });
    case "failed":
      return failureText(failure);
    case "done": {
      const words = t(`upload.${outcome.status}`);
      return outcome.status === "skipped" ? `${words}: ${outcome.reason}` : words;
    }
    default:
      return t(`upload.${state}`);
  }
}

/** What was lost in reading a document, to be opened. */
export function lossReport(losses) {
  const item = ({ kind, detail, page }) => {
    const what = words(`loss.${kind}`, kind);
    const where = page == null ? "" : t("source.page", { page });
    return el("li", {}, el("strong", {}, what), ` ${[where, detail].filter(Boolean).join(" · ")}`);
  };
  const list = el("ul", {}, ...losses.map(item));
  return el("details", { class: "losses" }, el("summary", {}, count("losses", losses.length)), list);
}
