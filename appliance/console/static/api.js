// Owns talking to the service: every request goes through here, with the key where one is needed.

import { keep, kept } from "./kept.js";
import { events } from "./sse.js";

const EARLIER_TURNS = 6; // the service itself cuts what its model cannot take

/** Why a request failed: the service's code and words, or `unreachable`, `interrupted`. */
export class Failure extends Error {
  constructor(code, message = "", status = 0) {
    super(message || code);
    this.code = code;
    this.status = status;
  }

  /** It will work when the service is back. */
  get passes() {
    return ["unreachable", "interrupted", "unavailable"].includes(this.code);
  }
}

let askForKey = null;
let asking = null; // the promise of a key that is asked for

/** Have `show(refused)` called when a key is needed, for a promise of it, or of null; `refused`: the last is wrong. */
export function onKeyNeeded(show) {
  askForKey = show;
}

/** Wait for another key than `tried`; it is asked for once for all requests that wait. */
function newKey(tried) {
  if (kept("key", "sessionStorage") !== tried) return Promise.resolve(); // another request has asked meanwhile
  asking ??= askForKey(tried !== null)
    .then((key) => {
      if (key === null) throw new Failure("no_key", "", 401);
      keep("key", key, "sessionStorage");
    })
    .finally(() => {
      asking = null;
    });
  return asking;
}

const authorization = (key) => (key === null ? {} : { Authorization: `Bearer ${key}` });

function failureOf(status, text) {
  try {
    const { code, message } = JSON.parse(text).error;
    return new Failure(code, message, status);
  } catch {
    return new Failure("failed", `HTTP ${status}`, status);
  }
}

/** A reply with a status below 400; asks for a key when the service wants one. */
async function request(path, { method = "GET", body, signal } = {}) {
  for (;;) {
    const key = kept("key", "sessionStorage");
    const headers = { ...authorization(key), ...(body === undefined ? {} : { "Content-Type": "application/json" }) };
    let reply;
    try {
      reply = await fetch(path, { method, headers, body: body && JSON.stringify(body), signal, cache: "no-store" });
    } catch (error) {
      if (signal?.aborted) throw error;
      throw new Failure("unreachable");
    }
    if (reply.ok) return reply;
    const text = await reply.text().catch(() => "");
    if (reply.status !== 401) throw failureOf(reply.status, text);
    await newKey(key);
  }
}

const json = async (path, options) => (await request(path, options)).json();
const name = encodeURIComponent;

export const collections = async () => (await json("/v1/collections")).collections;
export const documents = async (collection) => (await json(`/v1/documents?collection=${name(collection)}`)).documents;
export const deleteDocument = (id) => request(`/v1/documents/${id}`, { method: "DELETE" });
export const deleteCollection = (collection) => request(`/v1/collections/${name(collection)}`, { method: "DELETE" });
/** What `promise` gives; null where the key is not for it, or it is switched off. */
async function whereAllowed(promise) {
  try {
    return await promise;
  } catch (error) {
    if (error.status === 403 || error.status === 404) return null;
    throw error;
  }
}

export const models = async () => (await json("/v1/models")).data;
export const caches = async () => (await whereAllowed(json("/v1/cache")))?.caches ?? null;
export const traces = async () => (await whereAllowed(json("/v1/traces?limit=200")))?.traces ?? null;
export const trace = (id) => json(`/v1/traces/${name(id)}`);
export const metrics = async () => (await whereAllowed(request("/metrics")))?.text() ?? null;
export const originalAddress = (id) => `/v1/documents/${id}/content`;
export const original = async (id) => (await request(originalAddress(id))).blob();
export const hasKey = () => kept("key", "sessionStorage") !== null;
export const search = (body, signal) => json("/v1/search", { method: "POST", body, signal });

/** What `/readyz` says; null when nobody answers. */
export async function readiness() {
  try {
    const reply = await fetch("/readyz", { cache: "no-store", signal: AbortSignal.timeout(5000) });
    return await reply.json();
  } catch {
    return null;
  }
}

/**
 * The answer to a question as it comes: `{sources}`, `{text}`…, `{report}`.
 * A first question goes to `/v1/ask`; a follow-up, which needs what was said before, to the chat.
 */
export async function* answer({ question, collection, earlier, signal }) {
  const followUp = earlier.length > 0;
  const reply = followUp
    ? await request("/v1/chat/completions", { method: "POST", body: chat(question, collection, earlier), signal })
    : await request("/v1/ask", { method: "POST", body: { question, collection }, signal });
  let whole = false;
  try {
    for await (const event of events(reply.body)) {
      if (event.data === "[DONE]") continue;
      const data = JSON.parse(event.data);
      if (data.error) throw new Failure(data.error.code, data.error.message);
      for (const part of followUp ? ofChunk(data) : ofEvent(event.name, data)) {
        whole ||= "report" in part;
        yield part;
      }
    }
  } catch (error) {
    if (error instanceof Failure || signal.aborted) throw error;
    throw new Failure("interrupted");
  }
  if (!whole) throw new Failure("interrupted");
}

function chat(question, collection, earlier) {
  const said = earlier.slice(-EARLIER_TURNS).flatMap((turn) => [
    { role: "user", content: turn.question },
    // Its numbers are those of other sources.
    { role: "assistant", content: turn.text.replace(/\s*\[\d{1,3}\]/g, "") },
  ]);
  return { messages: [...said, { role: "user", content: question }], stream: true, appliance: { collection } };
}

function* ofEvent(event, data) {
  if (event === "sources") yield { sources: data.sources };
  else if (event === "delta") yield { text: data.text };
  else if (event === "done") yield { report: data.appliance };
}

function* ofChunk(chunk) {
  const text = chunk.choices[0]?.delta.content;
  if (text) yield { text };
  if (chunk.appliance) {
    yield { sources: chunk.appliance.sources };
    yield { report: chunk.appliance };
  }
}

/** Send a file; `progress(sent)` in bytes. What became of it, as the service tells. */
export async function upload({ collection, source, file, progress, signal }) {
  const path = `/v1/collections/${name(collection)}/documents?source=${name(source)}&name=${name(file.name)}`;
  for (;;) {
    const key = kept("key", "sessionStorage");
    const { status, text } = await send(path, file, authorization(key), progress, signal);
    if (status < 400) return JSON.parse(text);
    if (status !== 401) throw failureOf(status, text);
    await newKey(key);
  }
}

// fetch does not tell how much of a body was sent.
function send(path, file, headers, progress, signal) {
  return new Promise((resolve, reject) => {
    const sending = new XMLHttpRequest();
    sending.open("PUT", path);
    for (const [header, value] of Object.entries(headers)) sending.setRequestHeader(header, value);
    sending.upload.onprogress = (event) => progress(event.loaded);
    sending.onload = () => resolve({ status: sending.status, text: sending.responseText });
    sending.onerror = () => reject(new Failure("unreachable"));
    sending.onabort = () => reject(new Failure("stopped"));
    signal.addEventListener("abort", () => sending.abort());
    sending.send(file);
  });
}
