// Owns how one question and its answer look, while the answer grows and afterwards.

import { button, el } from "./dom.js";
import { count, duration, t } from "./i18n.js";
import { sourceLink } from "./source.js";
import { waterfall } from "./waterfall.js";
import { failureText, place, reason } from "./wording.js";

const MARKER = /\[(\d{1,3})\]/g;
const QUOTATION = /^[“「]/;

/** The numbers that a text cites. */
const cited = (text) => new Set([...text.matchAll(MARKER)].map((found) => Number(found[1])));

/** One turn of a conversation on the page. */
export class AnswerView {
  /**
   * @param {Object} turn question, text, sources, report, state, failure; whoever changes it calls `update`.
   * @param {Function} open called with (source, turn) when a citation is chosen.
   * @param {Function} again called with (turn) when the question shall be asked again.
   */
  constructor(turn, { open, again }) {
    this.turn = turn;
    this.open = open;
    this.again = again;
    this.blocks = []; // what each paragraph was made from
    this.made = ""; // what all below the text was made from
    this.queued = false;
    this.text = el("div", { class: "text" });
    this.before = el("div", { class: "verdict" });
    this.after = el("div", { class: "after" });
    this.answer = el("div", { class: "answer" }, this.before, this.text, this.after);
    this.node = el("article", { class: "turn" }, el("h2", { class: "question" }, turn.question), this.answer);
    this.draw();
  }

  /** Show what changed, at the next frame. */
  update() {
    if (this.queued) return;
    this.queued = true;
    const draw = () => {
      this.queued = false;
      this.draw();
    };
    // A page that is not seen gets no frames.
    if (document.visibilityState === "visible") requestAnimationFrame(draw);
    else setTimeout(draw);
  }

  draw() {
    const { turn } = this;
    const busy = ["waiting", "streaming", "offline"].includes(turn.state);
    this.answer.setAttribute("aria-busy", String(busy));
    this.answer.dataset.state = turn.state;
    this.drawText();
    const verdict = turn.report ? this.verdict() : this.progress();
    this.before.replaceChildren(...(verdict ? [verdict] : []));
    // While the text grows this changes seldom: what is open in it, and the focus, stay.
    const from = JSON.stringify([turn.state, busy, turn.sources.length, busy && [...cited(turn.text)]]);
    if (this.made === from && busy) return;
    this.made = from;
    this.drawAfter(busy);
  }

  // Only paragraphs that changed are made anew, so that a citation that has the focus keeps it.
  drawText() {
    const paragraphs = this.turn.text.split(/\n{2,}/).filter((text) => text.trim());
    paragraphs.forEach((text, at) => {
      const from = `${this.turn.sources.length}:${text}`;
      if (this.blocks[at] === from) return;
      this.blocks[at] = from;
      const made = el(QUOTATION.test(text) ? "blockquote" : "p", {}, ...this.pieces(text.trim()));
      if (this.text.children[at]) this.text.children[at].replaceWith(made);
      else this.text.append(made);
    });
    this.blocks.length = paragraphs.length;
    while (this.text.children.length > paragraphs.length) this.text.lastChild.remove();
  }

  pieces(text) {
    const made = [];
    let from = 0;
    for (const found of text.matchAll(MARKER)) {
      const source = this.turn.sources.find(({ n }) => n === Number(found[1]));
      if (!source) continue;
      made.push(text.slice(from, found.index).trimEnd(), this.citation(source));
      from = found.index + found[0].length;
    }
    return [...made, text.slice(from)];
  }

  citation(source) {
    const label = t("source.cite", { n: source.n, document: source.document, place: place(source) });
    const open = () => this.open(source, this.turn);
    return button(String(source.n), open, { class: "cite", "aria-label": label, title: label });
  }

  progress() {
    const { state } = this.turn;
    if (state === "waiting" || state === "offline" || state === "stopped") {
      return el("p", { class: `badge ${state}` }, t(`answer.${state}`));
    }
    return null;
  }

  verdict() {
    const { report } = this.turn;
    if (report.grounded) return null;
    const why = report.degraded.some((told) => told.startsWith("unsupported")) ? "unsupported" : "not_found";
    return el("p", { class: `badge ${why}` }, t(`answer.${why}`));
  }

  drawAfter(busy) {
    const { turn } = this;
    const parts = [];
    if (turn.failure) parts.push(el("p", { class: "failure" }, failureText(turn.failure)));
    if (turn.sources.length > 0) parts.push(this.sourceList());
    if (turn.report) parts.push(...this.notes());
    if (!busy) parts.push(this.tools());
    this.after.replaceChildren(...parts);
  }

  sourceList() {
    const { turn } = this;
    const used = cited(turn.text);
    const item = (source) => el("li", {}, sourceLink(source, () => this.open(source, turn)));
    const listed = (label, sources) => el("ul", { class: "sources", "aria-label": t(label) }, ...sources.map(item));
    const first = turn.sources.filter(({ n }) => used.has(n));
    const rest = turn.sources.filter(({ n }) => !used.has(n));
    const parts = [];
    if (first.length > 0) parts.push(listed("answer.sources", first));
    if (rest.length > 0) {
      const head = el("summary", {}, count("answer.others", rest.length));
      parts.push(el("details", {}, head, listed("answer.other_sources", rest)));
    }
    return el("div", {}, ...parts);
  }

  notes() {
    const { report } = this.turn;
    const told = [...new Set(report.degraded.map(reason))];
    if (report.cache === "stale") told.push(t("answer.stale"));
    return told.length > 0 ? [el("ul", { class: "notes" }, ...told.map((text) => el("li", {}, text)))] : [];
  }

  async copy({ target }) {
    await navigator.clipboard.writeText(this.turn.text);
    target.textContent = t("answer.copied");
  }

  tools() {
    const { turn } = this;
    const tools = [button(t("answer.again"), () => this.again(turn), { class: "quiet" })];
    // Browsers have a clipboard for pages of this machine, and over TLS.
    if (turn.text && navigator.clipboard) {
      tools.push(button(t("answer.copy"), (event) => this.copy(event), { class: "quiet" }));
    }
    const row = el("div", { class: "row tools" }, ...tools);
    if (!turn.report) return row;
    const { timings_ms: timings, cache, degraded, prompt } = turn.report;
    const total = duration(timings.total ?? 0);
    const head = t(cache === "miss" ? "answer.took" : "answer.given_before", { total });
    const raw = [...degraded, ...prompt.cut].map((text) => el("li", {}, el("code", {}, text)));
    const parts = [el("summary", {}, head), waterfall(timings)];
    if (raw.length > 0) parts.push(el("ul", { class: "raw" }, ...raw));
    return el("div", {}, row, el("details", { class: "times" }, ...parts));
  }
}
