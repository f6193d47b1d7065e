// Owns what the browser keeps: choices in localStorage, the key in sessionStorage. Both may be switched off or full.

const PREFIX = "console.";

/** What was kept under `name`; null where nothing was. */
export function kept(name, storage = "localStorage") {
  try {
    return window[storage].getItem(PREFIX + name);
  } catch {
    return null;
  }
}

/** Keep `value`, or nothing for null; whether that worked. */
export function keep(name, value, storage = "localStorage") {
  try {
    if (value === null) window[storage].removeItem(PREFIX + name);
    else window[storage].setItem(PREFIX + name, value);
    return true;
  } catch {
    return false;
  }
}
