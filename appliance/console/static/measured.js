// Owns showing what the service measured: requests of lately with their spans, what stages take, how busy it is.

import * as api from "./api.js";
import { button, el } from "./dom.js";
import { duration, format, moment, t, words } from "./i18n.js";
import { histograms, parse } from "./prometheus.js";
import { section, table } from "./tables.js";
import { chart } from "./waterfall.js";
import { failureText } from "./wording.js";

const LISTED = 20;
const SECOND_MS = 1000;

/** What stages take and how busy the service is, from the text of `GET /metrics`. */
export function figures(text) {
  const samples = parse(text);
  return [stages(samples), now(samples)];
}

function stages(samples) {
  const of = [
    ...histograms(samples, "appliance_stage_duration_seconds", "stage"),
    ["ttft", histograms(samples, "gen_ai_server_time_to_first_token_seconds", "").get("")],
    ["between_tokens", histograms(samples, "gen_ai_server_time_per_output_token_seconds", "").get("")],
  ];
  const rows = of
    .filter(([, found]) => found?.count > 0)
    .map(([name, found]) => {
      const [median, most] = [0.5, 0.99].map((q) => duration(found.quantile(q) * SECOND_MS));
      return [stageName(name), format(found.count), median, most];
    });
  const heads = [t("measured.stage"), t("measured.count"), t("measured.median"), t("measured.most")];
  return section(t("measured.stages"), table(t("measured.stages"), heads, rows));
}

const stageName = (name) => words(`stage.${name.replaceAll(".", "_")}`, name);

function now(samples) {
  const rows = [];
  const sums = (name, label, title, shown = format) => {
    const found = samples.get(name) ?? [];
    if (found.length === 0) return;
    const parts = found.map(({ labels, value }) => {
      const what = labels[label];
      return what === undefined ? shown(value) : `${words(`measured.${what}`, what)}: ${shown(value)}`;
    });
    rows.push([t(title), parts.join(" · ")]);
  };
  sums("appliance_queue_length", "queue", "measured.waiting");
  sums("appliance_queue_age_seconds", "queue", "measured.oldest", (s) => duration(s * SECOND_MS));
  sums("appliance_engine_sequences", "", "measured.together");
  sums("appliance_kv_cells", "state", "measured.cells");
  sums("appliance_prefix_tokens_total", "kind", "measured.prefix");
  sums("appliance_answers_total", "cache", "measured.answers");
  sums("appliance_degraded_total", "reason", "measured.degraded");
  sums("appliance_engine_restarts_total", "", "measured.restarts");
  return section(t("measured.now"), table(t("measured.now"), [t("measured.what"), t("measured.value")], rows));
}

/** Requests of lately; each opens to where its time went. `again` loads them anew. */
export function requests(traces, again) {
  // Looking at the service asks it many small things: of those only what was slow or failed is of interest.
  const ours = ({ name, kind }) => name.startsWith("GET ") && (kind === "ordinary" || name === "GET /readyz");
  const shown = traces.filter((trace) => !ours(trace)).slice(0, LISTED);
  const items = shown.map((trace) => {
    const head = [duration(trace.ms), trace.name, moment(trace.started_s * 1000)].join(" · ");
    const parts = [el("summary", {}, head)];
    if (trace.kind !== "ordinary") parts[0].append(" ", el("span", { class: "badge" }, t(`measured.${trace.kind}`)));
    const item = el("details", { class: "times", ontoggle: () => open(item, trace) }, ...parts);
    return item;
  });
  const hint = el("p", { class: "hint" }, t(items.length > 0 ? "measured.requests_hint" : "measured.no_requests"));
  const row = el("div", { class: "row" }, button(t("measured.again"), again));
  return section(t("measured.requests"), hint, ...items, row);
}

async function open(item, { id, ms, request_id: request }) {
  if (!item.open || item.childElementCount > 1) return;
  const shown = el("div");
  item.append(shown);
  try {
    const { spans } = await api.trace(id);
    const bars = inOrder(spans).map(([depth, span]) => ({
      name: stageName(span.name),
      depth,
      start: span.start_ms,
      ms: span.ms,
      told: told(span),
    }));
    shown.append(chart(bars, [], ms));
    if (request) shown.append(el("p", { class: "hint" }, t("system.request", { id: request })));
  } catch (error) {
    if (!(error instanceof api.Failure)) throw error;
    shown.append(el("p", { class: "failure" }, failureText(error)));
  }
}

const told = ({ attributes = {}, error = "" }) =>
  [error, ...Object.entries(attributes).map(([name, value]) => `${name}=${value}`)].filter(Boolean).join("  ");

/** Spans with their depth, each followed by those within it. */
export function inOrder(spans) {
  const known = new Set(spans.map(({ id }) => id));
  const within = new Map();
  for (const span of spans) {
    const parent = known.has(span.parent) ? span.parent : "";
    within.set(parent, [...(within.get(parent) ?? []), span]);
  }
  const below = (parent, depth) =>
    (within.get(parent) ?? []).flatMap((span) => [[depth, span], ...below(span.id, depth + 1)]);
  return below("", 0);
}
