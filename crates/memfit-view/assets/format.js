// Numbers and elements: how everything on the page is written, and how elements are made.

const UNITS = ["KiB", "MiB", "GiB", "TiB", "PiB"];

/** A size with its unit, in three digits or so. */
function size(bytes) {
  if (!(Math.abs(bytes) >= 1024)) return `${Math.round(bytes || 0)} B`;
  let value = Math.abs(bytes) / 1024;
  let unit = 0;
  while (value >= 1023.95 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  const digits = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  return `${bytes < 0 ? "−" : ""}${value.toFixed(digits)} ${UNITS[unit]}`;
}

/** A size with a sign, for differences. */
const change = (bytes) => (bytes > 0 ? `+${size(bytes)}` : size(bytes));

const count = (number) => Math.round(number).toLocaleString("en-US");

const many = (number, one, more = `${one}s`) => `${count(number)} ${number === 1 ? one : more}`;

function share(part, whole) {
  if (!whole) return "0 %";
  const percent = (100 * part) / whole;
  return percent > 0 && percent < 0.1 ? "< 0.1 %" : `${percent.toFixed(percent < 9.95 ? 1 : 0)} %`;
}

/** Microseconds, in the unit that reads best. */
function duration(micros, step = Math.abs(micros) / 100) {
  if (!micros) return "0 s";
  const [unit, scale] = step >= 1e4 ? ["s", 1e6] : step >= 10 ? ["ms", 1e3] : ["µs", 1];
  const digits = clamp(Math.ceil(-Math.log10(Math.max(step, 1e-9) / scale) - 1e-9), 0, 3);
  return `${(micros / scale).toFixed(digits)} ${unit}`;
}

/** The last parts of a path, enough to know it again. */
function shortPath(path, parts = 2) {
  const split = path.split("/");
  return split.length > parts + 1 ? `…/${split.slice(-parts).join("/")}` : path;
}

const clamp = (value, low, high) => Math.max(low, Math.min(high, value));

/**
 * An element. Texts become text nodes, never markup: names in recordings are somebody else's.
 * @param {string} tag its name, with classes after dots
 * @param {object} [attributes] attributes; those that begin with `on` are listeners
 */
function el(tag, attributes = {}, ...children) {
  const [name, ...classes] = tag.split(".");
  const element = document.createElement(name);
  if (classes.length) element.className = classes.join(" ");
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "style") Object.assign(element.style, value);
    else if (key === "colour") element.style.setProperty("--colour", value);
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

const byId = (id) => document.getElementById(id);

/** Runs a function at most once a frame. */
function everyFrame(work) {
  let waiting = false;
  return () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      work();
    });
  };
}

/** The first place in a sorted array whose value is greater. */
function after(sorted, value, length = sorted.length) {
  let low = 0;
  let high = length;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (sorted[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low;
}
