// Owns knowing whether the service is there: asks `/readyz` now and then, often while it is not.

import { readiness } from "./api.js";

const CALM_MS = 10_000;
const EAGER_MS = 1_000;

/** `status`: ready, not_ready, loading, stopping, or unreachable; "" until the first reply. */
let state = { status: "", components: {} };
let timer = 0;
let checking = null;
const listeners = new Set();

export const current = () => state;

/** Have `listener(state, before)` called at every change. */
export function watch(listener) {
  listeners.add(listener);
}

/** Ask now. */
export function check() {
  checking ??= look().finally(() => {
    checking = null;
  });
  return checking;
}

async function look() {
  clearTimeout(timer);
  const told = await readiness();
  const before = state;
  state = told ?? { status: "unreachable", components: {} };
  timer = setTimeout(check, state.status === "ready" ? CALM_MS : EAGER_MS);
  if (JSON.stringify(before) !== JSON.stringify(state)) for (const listener of listeners) listener(state, before);
}

/** Wait until the service says that it is ready, as asked from now on; an AbortError where `signal` ends that. */
export async function ready(signal) {
  for (;;) {
    // The pause is first: who waits was just told that it is not there.
    await new Promise((resolve) => setTimeout(resolve, EAGER_MS));
    signal.throwIfAborted();
    await check();
    if (state.status === "ready") return;
  }
}

document.addEventListener("visibilitychange", () => {
  if (document.visibilityState === "visible") check();
});
