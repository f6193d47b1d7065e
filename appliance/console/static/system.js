// Owns the view for who runs the appliance: what is ready, which models, the caches, where the time of answers went.

import * as api from "./api.js";
import * as conversations from "./conversations.js";
import { byId, el } from "./dom.js";
import * as health from "./health.js";
import { bytes, duration, format, moment, t, words } from "./i18n.js";
import * as measured from "./measured.js";
import { section, table } from "./tables.js";
import { waterfall } from "./waterfall.js";
import { failureText } from "./wording.js";

const ANSWERS = 10;

let facts = { models: [], caches: null, traces: null, metrics: null }; // null: not for the key that is used, or off

/** Load what the service tells of itself, and draw. */
export async function load() {
  try {
    const asked = [api.models(), api.caches(), api.traces(), api.metrics()];
    const [models, caches, traces, metrics] = await Promise.all(asked);
    facts = { models, caches, traces, metrics };
  } catch (error) {
    if (!(error instanceof api.Failure)) throw error;
    if (!error.passes) {
      byId("facts").replaceChildren(el("p", { class: "failure" }, failureText(error)));
      return;
    }
  }
  draw();
}

/** Draw everything anew. */
export function draw() {
  const parts = [readiness(), models()];
  if (facts.traces) parts.push(measured.requests(facts.traces, load));
  if (facts.metrics) parts.push(...measured.figures(facts.metrics));
  if (facts.caches) parts.push(caches());
  byId("facts").replaceChildren(...parts, answers());
}

function readiness() {
  const { status, components } = health.current();
  const rows = Object.entries(components).map(([name, { state, detail }]) => [
    words(`component.${name}`, name),
    el("span", { class: `state ${state}` }, t(`state.${state}`)),
    detail,
  ]);
  const now = el("p", { class: `state ${status}` }, t(`service.${status || "loading"}`));
  const title = t("system.readiness");
  if (rows.length === 0) return section(title, now);
  return section(title, now, table(title, [t("system.component"), t("system.state"), t("system.detail")], rows));
}

function models() {
  const rows = facts.models.map(({ id, appliance: { role, languages, context_tokens: tokens } }) => [
    words(`role.${role}`, role),
    id,
    languages.length > 0 ? languages.join(", ") : t("system.any"),
    format(tokens),
  ]);
  const heads = [t("system.role"), t("system.model"), t("system.languages"), t("system.context")];
  return section(t("system.models"), table(t("system.models"), heads, rows));
}

function caches() {
  const rows = Object.entries(facts.caches).map(([name, found]) => {
    const hits = found.memory_hits + found.disk_hits;
    const asked = hits + found.misses;
    const share = asked > 0 ? `${format((100 * hits) / asked)} %` : "–";
    const sizes = [format(found.entries + found.disk_entries), bytes(found.memory_bytes), bytes(found.disk_bytes)];
    return [words(`cache.${name}`, name), ...sizes, share];
  });
  const heads = [t("system.cache"), t("system.entries"), t("system.memory"), t("system.disk"), t("system.hits")];
  return section(t("system.caches"), table(t("system.caches"), heads, rows));
}

function answers() {
  const turns = conversations.all().flatMap(({ turns: of }) => of);
  const done = turns.filter(({ report }) => report).sort((a, b) => b.at - a.at).slice(0, ANSWERS);
  const items = done.map(({ question, at, report }) => {
    const head = `${duration(report.timings_ms.total ?? 0)} · ${question}`;
    const { prompt, cached, generated } = report.tokens;
    const told = [
      moment(at),
      t(`cached.${report.cache}`),
      t("system.tokens", { prompt: format(prompt), cached: format(cached), generated: format(generated) }),
      ...report.degraded,
      t("system.request", { id: report.request_id }),
    ];
    const list = el("ul", { class: "raw" }, ...told.map((text) => el("li", {}, text)));
    return el("details", { class: "times" }, el("summary", {}, head), waterfall(report.timings_ms), list);
  });
  const hint = el("p", { class: "hint" }, t(items.length > 0 ? "system.answers_hint" : "system.no_answers"));
  return section(t("system.answers"), hint, ...items);
}
