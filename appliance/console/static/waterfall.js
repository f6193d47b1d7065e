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
  const bars = layOut(timings);
  const scale = Math.max(timings.total ?? 0, ...bars.map(({ start, ms }) => start + ms), 1e-3);
  const rows = bars.map(({ name, start, ms }) => {
    const bar = el("span", { class: "bar" });
    // Properties, not a style attribute: the page's policy allows no inline styles.
    bar.style.marginInlineStart = `${(100 * start) / scale}%`;
    bar.style.inlineSize = `${(100 * ms) / scale}%`;
    const track = el("td", { class: "track", "aria-hidden": "true" }, bar);
    return el("tr", {}, el("th", { scope: "row" }, words(`stage.${name}`, name)), track, el("td", {}, duration(ms)));
  });
  const told = ["ttft", "total"].filter((name) => name in timings);
  const sums = told.map((name) => {
    const head = el("th", { scope: "row", colspan: "2" }, t(`stage.${name}`));
    return el("tr", { class: "sum" }, head, el("td", {}, duration(timings[name])));
  });
  const caption = el("caption", { class: "unseen" }, t("answer.times"));
  return el("table", { class: "waterfall" }, caption, el("tbody", {}, ...rows, ...sums));
}
