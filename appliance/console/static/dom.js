// Owns making elements. Text goes in as text: nothing here, or anywhere else, parses HTML.

/**
 * An element.
 * @param {string} tag
 * @param {Object} attributes by name; `on…` are listeners, `true` an attribute without value, null and false none.
 * @param {...(Node|string|null)} children null is left out.
 */
export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== null && value !== false && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

/** The element of that id. */
export const byId = (id) => document.getElementById(id);

/** A button that does not submit. */
export function button(text, onclick, attributes = {}) {
  return el("button", { type: "button", onclick, ...attributes }, text);
}

/** Tell a screen reader, once. */
export function announce(text) {
  byId("status").textContent = text;
}
