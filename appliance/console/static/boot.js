// Before the first paint: language and colours, so that nothing flashes. A classic script; all others are modules.
"use strict";
(() => {
  const kept = (name) => {
    try {
      return localStorage.getItem(name);
    } catch {
      return null; // storage is switched off
    }
  };
  const root = document.documentElement;
  const language = kept("console.language") ?? navigator.language;
  root.lang = /^zh\b/i.test(language) ? "zh-CN" : "en";
  const theme = kept("console.theme") ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  root.dataset.theme = theme === "dark" ? "dark" : "light";
})();
