// Owns the conversations that this browser keeps. Nobody else has them: the service keeps none.

import { keep, kept } from "./kept.js";

const MOST = 50;
const UNFINISHED = new Set(["waiting", "streaming", "offline"]);

/** All, the latest first. */
export function all() {
  try {
    const found = JSON.parse(kept("conversations") ?? "[]");
    return Array.isArray(found) ? found : [];
  } catch {
    return []; // damaged: they are not worth a broken page
  }
}

/** One by its id, its unfinished answers stopped: who asked them is gone. */
export function find(id) {
  const found = all().find((one) => one.id === id);
  for (const turn of found?.turns ?? []) if (UNFINISHED.has(turn.state)) turn.state = "stopped";
  return found;
}

/** A new one, kept with its first question. */
export const begin = () => ({ id: Date.now() + Math.random().toString(36).slice(1), at: Date.now(), turns: [] });

/** Keep it, before all others; where there is no room, the oldest go. */
export function save(conversation) {
  const others = all().filter((one) => one.id !== conversation.id);
  const list = [conversation, ...others].slice(0, MOST);
  while (list.length > 0 && !keep("conversations", JSON.stringify(list))) list.pop();
}

/** Forget one. */
export function remove(id) {
  keep("conversations", JSON.stringify(all().filter((one) => one.id !== id)));
}

/** Forget all. */
export function clear() {
  keep("conversations", null);
}
