// Owns showing where the time of one answer went. The service tells how long each stage took, not when it began: stages
// are laid out in the order in which they run.

import { el } from "./dom.js";
import { duration, t, words } from "./i18n.js";

// What runs one after the other; lists inside run side by side with one another.
const ORDER = ["queue", "filter", [["embed_query", "recall_dense"], ["recall_lexical"]], "fuse", "rerank", "prompt"];
const LAST = ["prefill", "decode"];
const NOT_STAGES = new Set(["total", "ttft"]);

/** Stages as `{name, start, ms}`, in milliseconds since the question came. */
export function layOut(timings) {
  const bars = [];
  const told = (stage) => stage in timings;
  const place = (stages, start) => {
    let at = start;
    for (const stage of stages) {
      if (Array.isArray(stage)) {
        at = Math.max(...stage.map((branch) => place(branch, at)));
      } else if (told(stage)) {
        bars.push({ name: stage, start: at, ms: timings[stage] });
        at += timings[stage];
      }
    }
    return at;
  };
  const known = new Set([...ORDER, ...LAST].flat(2));
  const others = Object.keys(timings).filter((stage) => !known.has(stage) && !NOT_STAGES.has(stage));
  place([...ORDER, ...others, ...LAST], 0);
  return bars;
}

/** The waterfall of one answer's `timings_ms`. */
export function waterfall(timings) {
  const bars = layOut(timings).map((bar) => ({ ...bar, name: words(`stage.${bar.name}`, bar.name) }));
  const sums = ["ttft", "total"].filter((name) => name in timings).map((name) => [t(`stage.${name}`), timings[name]]);
  return chart(bars, sums, timings.total ?? 0);
}

/**
 * Bars under one another, each where it began.
 * @param {Object[]} bars name, start, ms; depth: within how many others; told: what else is known of it
 * @param {Array} sums of name and milliseconds, below
 * @param {number} total milliseconds that the width stands for, at least
 */
export function chart(bars, sums, total) {
  const scale = Math.max(total, ...bars.map(({ start, ms }) => start + ms), 1e-3);
  const rows = bars.flatMap(({ name, start, ms, depth = 0, told }) => {
    const bar = el("span", { class: "bar" });
    // Properties, not a style attribute: the page's policy allows no inline styles.
    bar.style.marginInlineStart = `${(100 * start) / scale}%`;
    bar.style.inlineSize = `${(100 * ms) / scale}%`;
    const head = el("th", { scope: "row" }, name);
    head.style.paddingInlineStart = `${depth * 0.7}rem`;
    const row = el("tr", {}, head, el("td", { class: "track" }, bar), el("td", {}, duration(ms)));
    return told ? [row, el("tr", {}, el("td", { class: "told", colspan: "3" }, told))] : [row];
  });
  const last = sums.map(([name, ms]) => {
    return el("tr", { class: "sum" }, el("th", { scope: "row", colspan: "2" }, name), el("td", {}, duration(ms)));
  });
  const caption = el("caption", { class: "unseen" }, t("answer.times"));
  return el("table", { class: "waterfall" }, caption, el("tbody", {}, ...rows, ...last));
}
