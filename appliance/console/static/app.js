// Owns the page as a whole: which view is shown, language and colours, the banner about the service.

import * as api from "./api.js";
import * as ask from "./ask.js";
import { key } from "./asking.js";
import * as documents from "./documents.js";
import { byId } from "./dom.js";
import * as health from "./health.js";
import { language, speak, switchTo, t, words, write } from "./i18n.js";
import { keep } from "./kept.js";
import * as source from "./source.js";
import * as system from "./system.js";

const VIEWS = { ask, documents, system };
const WELCOME_BACK_MS = 4000;

let view = "";

// What the view shows of the service; where one asks, that is the collections to choose from.
const refresh = () => (VIEWS[view].load ?? documents.load)();

function route(focus) {
  const wanted = location.hash.replace(/^#\//, "");
  view = wanted in VIEWS ? wanted : "ask";
  for (const name of Object.keys(VIEWS)) byId(name).hidden = name !== view;
  for (const link of document.querySelectorAll("[data-view]")) {
    if (link.dataset.view === view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${t(`nav.${view}`)} · Appliance`;
  if (byId("source").open) source.close();
  refresh();
  if (!focus) return;
  byId(`${view}-title`).focus({ preventScroll: true });
  scrollTo(0, 0);
}

function draw() {
  write(document);
  byId("language").textContent = language() === "zh" ? "English" : "中文";
  byId("language").lang = language() === "zh" ? "en" : "zh-CN";
  const dark = document.documentElement.dataset.theme === "dark";
  byId("theme").textContent = dark ? "☀\ufe0e" : "☾\ufe0e"; // as text, not as a picture
  byId("theme").ariaLabel = byId("theme").title = t(dark ? "theme.light" : "theme.dark");
  document.title = `${t(`nav.${view}`)} · Appliance`;
  for (const one of Object.values(VIEWS)) one.draw();
  drawBanner(health.current());
}

/** What is wrong with the service, in words; nothing while all is well. */
function drawBanner({ status, components }) {
  const banner = byId("banner");
  banner.hidden = status === "ready" || status === "";
  const parts = Object.entries(components)
    .filter(([, { state }]) => state === "loading" || state === "failed")
    .map(([name, { state }]) => `${words(`component.${name}`, name)}: ${t(`state.${state}`)}`);
  banner.textContent = [t(`service.${status || "loading"}`), parts.join(", ")].filter(Boolean).join(" ");
}

function onHealth(state, before) {
  drawBanner(state);
  if (state.status === "ready") {
    if (before.status === "") return;
    refresh();
    const banner = byId("banner");
    banner.hidden = false;
    banner.textContent = t("service.back");
    setTimeout(() => drawBanner(health.current()), WELCOME_BACK_MS);
  } else if (view === "system") {
    system.draw();
  }
}

function switchTheme() {
  const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  keep("theme", theme);
  draw();
}

async function switchLanguage() {
  await switchTo(language() === "zh" ? "en" : "zh");
  if (byId("source").open) source.close();
  draw();
}

await speak(language());
api.onKeyNeeded(key);
documents.onCollections(ask.setCollections);
ask.start();
documents.start();
source.start();
byId("language").addEventListener("click", switchLanguage);
byId("theme").addEventListener("click", switchTheme);
window.addEventListener("hashchange", () => route(true));
health.watch(onHealth);
route(false);
draw();
health.check();
