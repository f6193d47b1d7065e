// Owns reading figures in Prometheus' text format, and what is read off histograms.

const LINE = /^(\w+)(?:\{(.*)\})? (\S+)$/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;

/** Samples by name: `{labels, value}`. */
export function parse(text) {
  const samples = new Map();
  for (const line of text.split("\n")) {
    const found = LINE.exec(line);
    if (!found) continue; // a comment
    const labels = {};
    for (const [, name, value] of (found[2] ?? "").matchAll(LABEL)) labels[name] = value.replace(/\\(["\\])/g, "$1");
    if (!samples.has(found[1])) samples.set(found[1], []);
    samples.get(found[1]).push({ labels, value: Number(found[3].replace("Inf", "Infinity")) });
  }
  return samples;
}

/** The histograms of `name` by the value of their label: `{count, quantile(q)}`. */
export function histograms(samples, name, label) {
  const found = new Map();
  for (const { labels, value } of samples.get(`${name}_bucket`) ?? []) {
    const key = labels[label] ?? "";
    if (!found.has(key)) found.set(key, []);
    found.get(key).push({ most: Number(labels.le.replace("Inf", "Infinity")), count: value });
  }
  for (const [key, buckets] of found) {
    buckets.sort((a, b) => a.most - b.most);
    found.set(key, { count: buckets.at(-1).count, quantile: (q) => quantile(buckets, q) });
  }
  return found;
}

/** What a share `q` of all lies below, as if they were spread evenly in their bucket; the last bound at most. */
function quantile(buckets, q) {
  const rank = q * buckets.at(-1).count;
  const at = buckets.findIndex(({ count }) => count >= rank);
  const below = at > 0 ? buckets[at - 1] : { most: 0, count: 0 };
  const { most, count } = buckets[at];
  if (most === Infinity) return below.most;
  return below.most + ((most - below.most) * (rank - below.count)) / (count - below.count || 1);
}
