// Small pieces: making elements, and numbers as text. Text from data only ever becomes text, never HTML.

const NOTHING = "\u2013";
const MINUS = "\u2212";

/** Return the element with an id. */
const byId = (id) => document.getElementById(id);

/** Make an element; attributes that start with "on" are listeners, null ones are left out. */
function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

/** Give a parent these children; an unchanged list is left alone, so focus and scrolling survive an update. */
function setChildren(parent, nodes) {
  const wanted = nodes.filter((node) => node !== null);
  const same = wanted.length === parent.childNodes.length && wanted.every((n, i) => n === parent.childNodes[i]);
  if (!same) parent.replaceChildren(...wanted);
}

/** Set text only where it changed. */
function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Return a number as text with thousands separated and a true minus sign. */
function number(value, digits = 1) {
  if (value === null || value === undefined || Number.isNaN(value)) return NOTHING;
  const text = value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  return text.replace("-", MINUS);
}

/** Return a difference with its sign; what rounds to zero has none. */
function signed(value, digits = 1) {
  const text = number(value, digits);
  return value > 0 && Number(value.toFixed(digits)) !== 0 ? `+${text}` : text.replace(/^\u2212(0(\.0+)?)$/, "$1");
}

/** Return "1 task" or "3 tasks". */
const count = (many, noun) => `${number(many, 0)} ${noun}${many === 1 ? "" : "s"}`;

/** Return the numbers from 1 to n. */
const oneTo = (n) => Array.from({ length: n }, (_, i) => i + 1);

/** Return the entries of a list by what a function makes of them, in order. */
function grouped(list, by) {
  const found = new Map();
  for (const entry of list) found.set(by(entry), [...(found.get(by(entry)) ?? []), entry]);
  return found;
}

/** Return the sum of some numbers. */
const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);

/** Compare numbers by size and anything else as text in which numbers count as such. */
const inOrder = (a, b) =>
  typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });

/** Return the last entry of a list. */
const last = (list) => list[list.length - 1];

/** Cut a long name; the full one belongs into a title or a table. */
const short = (text, length = 28) => (text.length <= length ? text : `${text.slice(0, length - 1)}\u2026`);

/** Say something to screen readers, and show it for a moment. */
function say(text) {
  const said = byId("said");
  said.textContent = text;
  said.classList.remove("hidden");
  clearTimeout(say.timer);
  say.timer = setTimeout(() => said.classList.add("hidden"), 2500);
}
