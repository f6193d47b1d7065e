// Owns putting into words what the service tells: reasons, failures, places.

import { t, words } from "./i18n.js";

/** A reason of the service, `code: details`, in plain words; its details where there are none for it. */
export function reason(told) {
  const [code, ...details] = told.split(": ");
  return words(`degraded.${code}`, details.join(": ") || told);
}

/** A failure in plain words. */
export function failureText({ code, message }) {
  return words(`error.${code}`, message || code, { message: message ?? "" });
}

/** Where in a document: page and heading, as far as they are known. */
export function place({ page, heading }) {
  return [page == null ? "" : t("source.page", { page }), heading].filter(Boolean).join(" · ");
}
