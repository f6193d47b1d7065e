// Owns the view where people ask: the conversation, the field for the question, the list of conversations.

import { AnswerView } from "./answer.js";
import * as api from "./api.js";
import { confirmed } from "./asking.js";
import * as conversations from "./conversations.js";
import { announce, byId, button, el } from "./dom.js";
import * as health from "./health.js";
import { count, moment, t } from "./i18n.js";
import { keep, kept } from "./kept.js";
import * as source from "./source.js";
import { failureText } from "./wording.js";

const TRIES = 4; // of one question, when the service goes away while it answers
const NEAR_END_PX = 160;

let conversation = conversations.begin();
let views = []; // of the turns that are shown
let running = null; // {turn, stop, view}: one answer at a time
let known = null; // the collections, once they were loaded
let wanted = null; // the collection that was chosen for this conversation

/** Draw everything anew: words and collections may have changed. */
export function draw() {
  views = conversation.turns.map(viewOf);
  byId("turns").replaceChildren(...(views.length > 0 ? views.map(({ node }) => node) : [welcome()]));
  if (running) running.view = views.find(({ turn }) => turn === running.turn) ?? running.view;
  drawList();
  drawComposer();
}

/** The collections to choose from. */
export function setCollections(collections) {
  known = collections;
  drawComposer();
  if (conversation.turns.length === 0) byId("turns").replaceChildren(welcome());
}

function viewOf(turn) {
  const open = (found, of) => source.show(found, () => source.passageOf(found, of));
  return new AnswerView(turn, { open, again: (of) => ask(of.question, of.collection) });
}

function welcome() {
  const empty = known?.every(({ documents }) => documents === 0) ?? false;
  const hint = el("p", {}, t(empty ? "ask.no_documents" : "ask.hint"));
  const parts = [el("h2", {}, t("ask.welcome")), hint];
  if (empty) parts.push(el("p", {}, el("a", { href: "#/documents", class: "primary" }, t("ask.add_documents"))));
  return el("div", { class: "welcome" }, ...parts);
}

function drawComposer() {
  const field = byId("question");
  field.placeholder = t(conversation.turns.length > 0 ? "ask.follow_up" : "ask.placeholder");
  const [shown, hidden] = running ? [byId("stop"), byId("send")] : [byId("send"), byId("stop")];
  shown.hidden = false;
  if (document.activeElement === hidden) shown.focus();
  hidden.hidden = true;
  const names = known?.length > 0 ? known.map(({ name }) => name) : ["default"];
  const likely = wanted ?? conversation.turns.at(-1)?.collection ?? kept("collection") ?? "default";
  const options = names.map((name) => el("option", { value: name, selected: name === likely }, name));
  byId("ask-collection").replaceChildren(...options);
}

function drawList() {
  const items = conversations.all().map((one) => {
    const open = button(one.turns[0].question, () => choose(one.id), { title: moment(one.at) });
    if (one.id === conversation.id) open.setAttribute("aria-current", "true");
    const label = t("history.delete", { question: one.turns[0].question });
    const remove = button("×", () => forget(one.id), { class: "quiet", "aria-label": label, title: label });
    return el("li", {}, open, remove);
  });
  byId("conversations").replaceChildren(...items);
  byId("clear-history").hidden = items.length === 0;
  byId("history-toggle").textContent = `${t("history.title")} (${items.length})`;
}

function choose(id) {
  show(running?.conversation.id === id ? running.conversation : (conversations.find(id) ?? conversations.begin()));
}

function show(chosen) {
  conversation = chosen;
  wanted = null;
  openHistory(false);
  draw();
  byId("question").focus();
}

function forget(id) {
  if (running?.conversation.id === id) running.stop();
  conversations.remove(id);
  if (conversation.id === id) show(conversations.begin());
  else drawList();
}

async function forgetAll() {
  if (!(await confirmed(t("history.clear"), t("history.clear_text"), t("delete")))) return;
  running?.stop();
  conversations.clear();
  show(conversations.begin());
}

function openHistory(open) {
  byId("history-toggle").setAttribute("aria-expanded", String(open));
}

/** Ask, in the conversation that is shown; what was answered before in it goes along. */
async function ask(question, collection) {
  if (running || !question.trim()) return;
  // What the documents did not bear out helps no later answer.
  const earlier = conversation.turns.filter((turn) => turn.report?.grounded && turn.collection === collection);
  const turn = { question: question.trim(), collection, at: Date.now() };
  Object.assign(turn, { text: "", sources: [], report: null, state: "waiting" });
  const stopping = new AbortController();
  running = { turn, conversation, view: viewOf(turn), stop: () => stopping.abort() };
  if (conversation.turns.length === 0) byId("turns").replaceChildren();
  conversation.turns.push(turn);
  views.push(running.view);
  byId("turns").append(running.view.node);
  byId("question").value = "";
  fit();
  conversations.save(conversation);
  drawList();
  drawComposer();
  running.view.node.scrollIntoView({ block: "start" });
  announce(t("answer.waiting"));
  try {
    await untilAnswered(turn, earlier, stopping.signal);
  } catch (error) {
    if (stopping.signal.aborted) {
      turn.state = "stopped";
    } else {
      turn.state = "failed";
      turn.failure = { code: error.code ?? "failed", message: error.message };
    }
  }
  const { view, conversation: of } = running;
  running = null;
  view.update();
  if (conversations.all().some(({ id }) => id === of.id)) conversations.save(of); // it may have been deleted meanwhile
  drawList();
  drawComposer();
  tell(turn);
}

/** Read answers to the question until one is whole: one that a restart of the service breaks off is asked for again. */
async function untilAnswered(turn, earlier, signal) {
  for (let tries = 1; ; tries += 1) {
    try {
      await read(turn, earlier, signal);
      return;
    } catch (error) {
      if (!(error instanceof api.Failure) || !error.passes || tries === TRIES) throw error;
      Object.assign(turn, { text: "", sources: [], report: null, state: "offline" });
      running.view.update();
      health.check();
      await health.ready(signal);
    }
  }
}

async function read(turn, earlier, signal) {
  const { question, collection } = turn;
  turn.state = "waiting";
  running.view.update();
  for await (const { sources, text, report } of api.answer({ question, collection, earlier, signal })) {
    if (sources) turn.sources = sources;
    if (text) {
      turn.text += text;
      turn.state = "streaming";
    }
    if (report) {
      Object.assign(turn, { report, sources: report.sources, state: "done" });
    }
    follow(() => running.view.update());
  }
}

/** Change what is shown; who was reading at the end stays there. */
function follow(change) {
  const room = document.scrollingElement;
  const atEnd = room.scrollHeight - room.scrollTop - room.clientHeight < NEAR_END_PX;
  change();
  if (atEnd && running.conversation === conversation) {
    requestAnimationFrame(() => requestAnimationFrame(() => room.scrollTo({ top: room.scrollHeight })));
  }
}

/** Tell a screen reader the whole answer, once, instead of every piece. */
function tell(turn) {
  if (turn.state === "stopped") announce(t("answer.stopped"));
  else if (turn.state === "failed") announce(failureText(turn.failure));
  else {
    const text = turn.text.replace(/\s*\[\d{1,3}\]/g, "");
    const verdict = turn.report.grounded ? "" : `${t("answer.not_found")}. `;
    announce(`${t("answer.ready")} ${verdict}${text} ${count("answer.count", turn.sources.length)}`);
  }
}

function fit() {
  const field = byId("question");
  field.style.blockSize = "auto";
  field.style.blockSize = `${field.scrollHeight + 2}px`;
}

/** Wire the view, once. */
export function start() {
  const field = byId("question");
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    ask(field.value, byId("ask-collection").value);
  });
  field.addEventListener("keydown", (event) => {
    // Enter also ends the choice of a character in an input method: that is no question yet.
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    byId("composer").requestSubmit();
  });
  field.addEventListener("input", fit);
  byId("stop").addEventListener("click", () => running?.stop());
  byId("ask-collection").addEventListener("change", (event) => {
    wanted = event.target.value;
    keep("collection", wanted);
  });
  byId("new-conversation").addEventListener("click", () => show(conversations.begin()));
  byId("clear-history").addEventListener("click", forgetAll);
  byId("history-toggle").addEventListener("click", (event) => {
    openHistory(event.target.getAttribute("aria-expanded") !== "true");
  });
}
