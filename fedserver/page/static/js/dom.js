// Elements. Texts are only ever set as text, so that nothing that a device or an operator wrote becomes markup.

const SVG = "http://www.w3.org/2000/svg";

// An HTML element. Attributes that are null or false are left out; functions become listeners, as in {onclick: f}.
export function html(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

// The same for SVG.
export function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

// A text of a stranger, whose writing direction does not reach what stands beside it.
export function name(text) {
  return html("bdi", { class: "name", title: text.length > 24 ? text : null }, text);
}

// Set a text only where it differs: a screen reader would read it out again otherwise.
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// Remember the number of an element by what it stands for.
let last = 0;
export function fresh(what) {
  last += 1;
  return `${what}-${last}`;
}
