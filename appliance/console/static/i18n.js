// Owns the words of the page in the language that is chosen, and how numbers, sizes and times are written in it.

import { keep } from "./kept.js";

let spoken = {};

/** "en" or "zh". */
export const language = () => (document.documentElement.lang.startsWith("zh") ? "zh" : "en");

/** Load the words of a language and make it the page's. */
export async function speak(wanted) {
  const reply = await fetch(`/console/${wanted}.json`);
  if (!reply.ok) throw new Error(`no words: ${reply.status}`);
  spoken = await reply.json();
  document.documentElement.lang = wanted === "zh" ? "zh-CN" : "en";
}

/** Speak another language from now on, in later visits too. */
export async function switchTo(wanted) {
  await speak(wanted);
  keep("language", wanted);
}

/** The words of `key`, `{name}` replaced by `values.name`. */
export function t(key, values = {}) {
  return (spoken[key] ?? key).replace(/\{(\w+)\}/g, (whole, name) => String(values[name] ?? whole));
}

/** The words of `key` where there are some: keys that are made of what the service tells may be new. */
export const words = (key, otherwise, values) => (key in spoken ? t(key, values) : otherwise);

/** The words of `key` for so many: `key.one` or `key.other`, `{count}` replaced. */
export function count(key, number, values = {}) {
  const form = new Intl.PluralRules(language()).select(number) === "one" ? "one" : "other";
  return t(`${key}.${form}`, { count: format(number), ...values });
}

/** A number. */
export const format = (number, digits = 0) =>
  new Intl.NumberFormat(document.documentElement.lang, { maximumFractionDigits: digits }).format(number);

/** A size. */
export function bytes(number) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let size = number;
  let unit = 0;
  while (size >= 999.5 && unit < units.length - 1) {
    size /= 1000;
    unit += 1;
  }
  return `${format(size, size < 10 && unit > 0 ? 1 : 0)} ${units[unit]}`;
}

/** A duration. */
export const duration = (ms) => (ms < 999.5 ? `${format(ms, ms < 10 ? 1 : 0)} ms` : `${format(ms / 1000, 1)} s`);

/** A moment, from ISO 8601 or milliseconds since 1970. */
export const moment = (at) =>
  new Intl.DateTimeFormat(document.documentElement.lang, { dateStyle: "medium", timeStyle: "short" }).format(
    new Date(at),
  );

/** Write the words into all elements of `root` that name a key. */
export function write(root) {
  for (const found of root.querySelectorAll("[data-t]")) found.textContent = t(found.dataset.t);
  for (const found of root.querySelectorAll("[data-t-label]")) found.ariaLabel = t(found.dataset.tLabel);
}
