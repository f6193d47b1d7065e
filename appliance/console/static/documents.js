// Owns the view of documents: collections, what is in them, adding, searching and deleting.

import * as api from "./api.js";
import { confirmed, line } from "./asking.js";
import { announce, byId, button, el } from "./dom.js";
import { dropped, picked } from "./files.js";
import { bytes, count, format, moment, t } from "./i18n.js";
import { keep, kept } from "./kept.js";
import * as source from "./source.js";
import * as uploads from "./uploads.js";
import { failureText } from "./wording.js";

const AT_FIRST = 100; // documents that are shown before more are asked for
const FOUND = 10;

let collection = kept("collection") ?? "default";
let fresh = null; // a collection that is there as soon as its first document is
let known = [];
let list = null; // the documents of the collection, once they were loaded
let most = AT_FIRST;
let found = null; // what the last search gave
let told = () => {};
let rows = new Map(); // by what they were made from

/** Have `listener(collections)` called whenever they were loaded. */
export function onCollections(listener) {
  told = listener;
}

/** Load collections and documents, and draw. */
export async function load() {
  try {
    known = await api.collections();
    const names = known.map(({ name }) => name);
    if (!names.includes(collection) && collection !== fresh) collection = names[0] ?? "default";
    told(known);
    const wanted = collection;
    const found = names.includes(wanted) ? await api.documents(wanted) : [];
    if (wanted !== collection) return; // another one was chosen meanwhile
    list = found;
    drawStored();
  } catch (error) {
    if (!(error instanceof api.Failure)) throw error;
    // The banner tells of a service that is away.
    if (!error.passes) byId("list").replaceChildren(el("p", { class: "failure" }, failureText(error)));
  }
}

/** Draw everything anew. */
export function draw() {
  rows.clear();
  drawStored();
  drawFound();
  uploads.draw();
}

function drawStored() {
  const names = known.map(({ name }) => name);
  if (!names.includes(collection)) names.unshift(collection);
  byId("collection").replaceChildren(
    ...names.map((name) => el("option", { value: name, selected: name === collection }, name)),
  );
  byId("delete-collection").hidden = !known.some(({ name }) => name === collection);
  if (list === null) return;
  byId("list-title").textContent = count("documents.count", list.length);
  drawDocuments();
}

function drawDocuments() {
  if (list.length === 0) {
    byId("list").replaceChildren(el("p", { class: "hint" }, t("documents.none")));
    return;
  }
  // Rows that stay the same stay where they are: what is open in them, and the focus.
  const before = rows;
  rows = new Map(list.slice(0, most).map((one) => [JSON.stringify(one), null]));
  for (const key of rows.keys()) rows.set(key, before.get(key) ?? documentRow(JSON.parse(key)));
  const parts = [el("ul", { class: "documents" }, ...rows.values())];
  if (list.length > most) {
    const more = () => {
      most += AT_FIRST;
      drawDocuments();
    };
    parts.push(button(t("documents.more", { left: format(list.length - most) }), more));
  }
  const focused = document.activeElement;
  byId("list").replaceChildren(...parts);
  if (byId("list").contains(focused)) focused.focus({ preventScroll: true });
}

function documentRow(one) {
  const facts = [
    one.pages == null ? "" : count("documents.pages", one.pages),
    bytes(one.size_bytes),
    count("documents.passages", one.chunks),
    moment(one.added_at),
  ].filter(Boolean);
  const parts = [el("strong", { class: "name" }, one.name)];
  if (one.title && one.title !== one.name) parts.push(el("span", { class: "title" }, one.title));
  parts.push(el("span", { class: "where" }, facts.join(" · ")));
  if (one.source !== one.name) parts.push(el("span", { class: "where" }, one.source));
  if (one.losses.length > 0) parts.push(uploads.lossReport(one.losses));
  const label = t("documents.delete", { name: one.name });
  const remove = button(t("delete"), () => removeDocument(one), { class: "quiet danger", "aria-label": label });
  return el("li", {}, el("div", {}, ...parts), remove);
}

async function removeDocument(one) {
  const title = t("documents.delete", { name: one.name });
  if (!(await confirmed(title, t("documents.delete_text"), t("delete")))) return;
  await change(() => api.deleteDocument(one.id), t("documents.deleted", { name: one.name }));
}

async function removeCollection() {
  const name = collection;
  const title = t("documents.delete_collection_title", { name });
  const text = count("documents.delete_collection_text", list.length);
  if (!(await confirmed(title, text, t("delete")))) return;
  await change(() => api.deleteCollection(name), t("documents.deleted", { name }));
}

async function change(work, done) {
  try {
    await work();
    announce(done);
  } catch (error) {
    if (!(error instanceof api.Failure)) throw error;
    announce(failureText(error));
    byId("list").prepend(el("p", { class: "failure" }, failureText(error)));
    return;
  }
  found = null;
  drawFound();
  await load();
  byId("documents-title").focus(); // what had it is gone
}

async function newCollection() {
  const hint = t("documents.new_hint");
  const name = await line(t("documents.new_collection"), t("documents.name"), t("documents.create"), { hint });
  if (name === null) return;
  fresh = name;
  await choose(name);
}

async function choose(name) {
  collection = name;
  keep("collection", name);
  most = AT_FIRST;
  found = null;
  drawFound();
  await load();
}

async function search() {
  const query = byId("query").value.trim();
  if (!query) return;
  try {
    const { results } = await api.search({ query, collection, top_k: FOUND });
    found = { results };
    announce(count("search.found", results.length));
  } catch (error) {
    if (!(error instanceof api.Failure)) throw error;
    found = { failure: error };
  }
  drawFound();
}

function drawFound() {
  if (found === null) {
    byId("results").replaceChildren();
    return;
  }
  if (found.failure) {
    byId("results").replaceChildren(el("p", { class: "failure", role: "alert" }, failureText(found.failure)));
    return;
  }
  const open = (result) => source.show(result, null);
  const items = found.results.map((result) => el("li", {}, source.sourceLink(result, () => open(result))));
  const head = el("p", { class: "hint" }, count("search.found", items.length));
  byId("results").replaceChildren(head, el("ul", { class: "sources" }, ...items));
}

/** Wire the view, once. */
export function start() {
  byId("collection").addEventListener("change", (event) => choose(event.target.value));
  byId("new-collection").addEventListener("click", newCollection);
  byId("delete-collection").addEventListener("click", removeCollection);
  byId("choose").addEventListener("click", () => byId("files").click());
  byId("files").addEventListener("change", (event) => {
    uploads.add(picked(event.target.files), collection);
    event.target.value = ""; // the same file may be chosen again
  });
  byId("search").addEventListener("submit", (event) => {
    event.preventDefault();
    search();
  });
  const zone = byId("documents"); // the whole view: the frame alone is easily missed
  const over = (is) => byId("drop").classList.toggle("over", is);
  zone.addEventListener("dragover", (event) => {
    event.preventDefault();
    over(true);
  });
  zone.addEventListener("dragleave", (event) => over(zone.contains(event.relatedTarget)));
  zone.addEventListener("drop", async (event) => {
    event.preventDefault();
    over(false);
    uploads.add(await dropped(event.dataTransfer), collection);
  });
  uploads.onAdded(load);
}
