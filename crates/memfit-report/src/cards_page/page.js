"use strict";
// Draws the rows that the filters leave. All text goes in as text, never as markup.
const report = JSON.parse(document.getElementById("report").textContent);
const rows = report.rows.map((row, index) => ({ ...row, index }));
const GIB = 2 ** 30;
const byId = (id) => document.getElementById(id);
const fits = (row) => row.verdict === "fits-as-is" || row.verdict === "fits-with-plan";
const distinct = (values) => [...new Set(values)];

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value !== null) made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

function drawn(name, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

// Numbers for people.
const digits = (number) =>
  number >= 100 ? Math.round(number).toLocaleString("en-US") : number >= 10 ? number.toFixed(1) : number >= 0.1 ? number.toFixed(2) : number.toPrecision(2);
const gib = (bytes) => (Math.abs(bytes) < GIB ? `${Math.round(bytes / 2 ** 20)} MiB` : `${(bytes / GIB).toFixed(2)} GiB`);
const duration = (ms) => (ms >= 1000 ? `${digits(ms / 1000)} s` : `${digits(ms)} ms`);
const hours = (number) => (number < 1 / 60 ? `${digits(number * 3600)} s` : number < 1 ? `${digits(number * 60)} min` : number < 300 ? `${digits(number)} h` : `${digits(number / 24)} days`);
const title = (row) => `${row.count > 1 ? `${row.count} × ` : ""}${row.gpu}${severalBatches && row.batch ? `, batch ${row.batch}` : ""}`;

const severalBatches = distinct(rows.map((row) => row.batch)).length > 1;
const priced = rows.some((row) => row.price);
const samples = report.priced ? report.priced.samples : null;
const seconds = (row) => (row.samples_per_s ? 1 / row.samples_per_s : row.step_ms_estimate ? row.step_ms_estimate / 1000 / row.count : null);
// Duration of the work: in hours if it has a price, else of a thousand samples in seconds, else of a step.
const sampled = rows.some((row) => row.samples_per_s);
const unitOfTime = priced ? samples / 3600 : sampled ? 1000 : 1;
const time = (row) => (seconds(row) === null ? null : seconds(row) * unitOfTime);
// A tick's round number without the digits that say nothing.
const bare = (text) => text.replace(/(\.\d*?)0+(?= |$)/, "$1").replace(/\.(?= |$)/, "");
const showTime = (number) => (priced ? hours(number) : duration(number * 1000));
const cost = (row) => (priced ? (row.price ? row.price.amount : null) : row.capacity * row.count);
const showCost = (number) => (priced ? `${digits(number)} ${report.priced.currency}` : gib(number));

const state = { architectures: new Set(), counts: new Set(), least: 0, selected: null };

function left() {
  return rows.filter(
    (row) =>
      (!state.architectures.size || state.architectures.has(row.architecture)) &&
      (!state.counts.size || state.counts.has(row.count)) &&
      row.capacity >= state.least
  );
}

function chips(legend, values, chosen, text = String) {
  const labels = values.map((value) =>
    element("label", {}, element("input", {
      type: "checkbox",
      onchange: (event) => { event.target.checked ? chosen.add(value) : chosen.delete(value); draw(); },
    }), text(value))
  );
  return element("fieldset", {}, element("legend", {}, legend), element("div", { class: "chips" }, ...labels));
}

function filters() {
  const sizes = distinct(rows.map((row) => Math.round(row.capacity / GIB))).sort((a, b) => a - b);
  const options = [["any", 0], ...sizes.map((size) => [`${size} GiB`, (size - 0.5) * GIB])];
  const select = element("select", { id: "memory", onchange: (event) => { state.least = Number(event.target.value); draw(); } },
    ...options.map(([text, value]) => element("option", { value }, text)));
  byId("filters").append(
    element("label", { class: "field" }, element("span", {}, "Memory of a card, at least"), select),
    chips("Architecture", distinct(rows.map((row) => row.architecture)), state.architectures)
  );
  const counts = distinct(rows.map((row) => row.count)).sort((a, b) => a - b);
  if (counts.length > 1) byId("filters").append(chips("Cards", counts, state.counts));
}

// The front of what is left: nothing else is both cheaper and faster.
function front(points) {
  return points
    .filter((one) => !points.some((other) => other !== one && other.x <= one.x && other.y <= one.y && (other.x < one.x || other.y < one.y)))
    .sort((a, b) => a.x - b.x);
}

const MARGIN = { left: priced ? 52 : 78, right: 22, top: 14, bottom: 46 };

// As wide as its place, so that letters keep their size on a phone.
function plotSize(place) {
  const width = Math.min(920, Math.max(300, place.clientWidth || 920));
  return { ...MARGIN, width, height: width < 600 ? 320 : 420 };
}

// A logarithmic axis with ticks at 1, 2 and 5 times a power of ten; memory in powers of two.
function axis(values, from, to, binary) {
  const unit = binary ? GIB : 1;
  const [lowest, highest] = [Math.min(...values) / unit, Math.max(...values) / unit];
  // Few points that lie close together still need a tick next to them.
  const room = Math.max(1.15, 2 / Math.sqrt(highest / lowest));
  const least = lowest / room, most = highest * room;
  const at = (value) => from + ((to - from) * Math.log(value / unit / least)) / Math.log(most / least);
  let ticks = [];
  if (binary) for (let power = -4; power < 16; power++) ticks.push(2 ** power);
  else for (let power = -9; power < 12; power++) for (const times of [1, 2, 5]) ticks.push(times * 10 ** power);
  ticks = ticks.filter((tick) => tick >= least && tick <= most);
  if (ticks.length > Math.abs(to - from) / 75) ticks = ticks.filter((tick) => String(tick.toPrecision(1)).replace(/[^1-9]/g, "").startsWith("1") || binary);
  return { at, ticks: ticks.map((tick) => tick * unit) };
}

function plot(shown) {
  const SIZE = plotSize(byId("plot"));
  const points = shown.filter((row) => fits(row) && time(row) && cost(row)).map((row) => ({ row, x: time(row), y: cost(row) }));
  const place = byId("plot");
  const hadFocus = place.contains(document.activeElement);
  const pointOf = (index) => place.querySelector(`[data-row="${index}"]`);
  place.replaceChildren();
  const what = priced ? `Price of ${samples.toLocaleString("en-US")} samples` : "Memory of all cards";
  byId("plot-title").textContent = `${what} against time${priced ? `, in ${report.priced.currency}` : ""}`;
  if (!points.length) {
    place.append(element("p", { class: "soft" }, "Nothing that is left fits with a known price and time."));
    return;
  }
  const x = axis(points.map((point) => point.x), SIZE.left, SIZE.width - SIZE.right, false);
  const y = axis(points.map((point) => point.y), SIZE.height - SIZE.bottom, SIZE.top, !priced);
  const svg = drawn("svg", { viewBox: `0 0 ${SIZE.width} ${SIZE.height}`, role: "img", "aria-label": `${what} against time` });
  for (const tick of y.ticks) {
    svg.append(drawn("line", { class: "grid", x1: SIZE.left, x2: SIZE.width - SIZE.right, y1: y.at(tick), y2: y.at(tick) }));
    svg.append(drawn("text", { x: SIZE.left - 9, y: y.at(tick) + 4, "text-anchor": "end" }, bare(priced ? digits(tick) : gib(tick))));
  }
  for (const tick of x.ticks) {
    svg.append(drawn("line", { class: "grid", x1: x.at(tick), x2: x.at(tick), y1: SIZE.top, y2: SIZE.height - SIZE.bottom }));
    svg.append(drawn("text", { x: x.at(tick), y: SIZE.height - SIZE.bottom + 19, "text-anchor": "middle" }, bare(showTime(tick))));
  }
  const caption = priced ? "time for all samples" : sampled ? "time for 1,000 samples" : "time of a step";
  svg.append(drawn("text", { x: (SIZE.left + SIZE.width) / 2, y: SIZE.height - 6, "text-anchor": "middle" }, `${caption}, as an estimate`));
  const best = front(points);
  const stairs = best.flatMap((point, index) => (index ? [[x.at(point.x), y.at(best[index - 1].y)]] : []).concat([[x.at(point.x), y.at(point.y)]]));
  svg.append(drawn("polyline", { class: "front", points: stairs.map((pair) => pair.map((n) => n.toFixed(1)).join(",")).join(" ") }));
  const onFront = new Set(best.map((point) => point.row.index));
  points.sort((a, b) => onFront.has(a.row.index) - onFront.has(b.row.index));
  const labelled = [];
  for (const point of points) {
    const [cx, cy] = [x.at(point.x), y.at(point.y)];
    const classes = [onFront.has(point.row.index) ? "fits" : "other", state.selected === point.row.index ? "selected" : ""].join(" ").trim();
    const choose = () => { state.selected = point.row.index; draw(); };
    const group = drawn("g", { tabindex: -1, role: "button", "data-row": point.row.index, "aria-label": title(point.row), onclick: choose, onkeydown: (event) => onKey(event, choose) },
      drawn("title", {}, `${title(point.row)}: ${showCost(point.y)}, ${showTime(point.x)}`),
      drawn("circle", { class: classes, cx, cy, r: onFront.has(point.row.index) ? 7 : 5 }));
    // Names of the front, where they do not cover each other.
    const near = (other) => Math.abs(other.x - cx) < 110 && Math.abs(other.y - cy) < 15;
    if (onFront.has(point.row.index) && !labelled.some(near)) {
      labelled.push({ x: cx, y: cy });
      const right = cx > SIZE.width - 150;
      group.append(drawn("text", { class: "strong", x: cx + (right ? -11 : 11), y: cy - 8, "text-anchor": right ? "end" : "start" }, title(point.row)));
    }
    svg.append(group);
  }
  place.append(svg);
  // One stop of the tabulator; arrows lead from point to point in the order of time.
  const inOrder = points.map((point) => point.row.index).sort((a, b) => time(rows[a]) - time(rows[b]));
  const stop = inOrder.includes(state.selected) ? state.selected : best[0].row.index;
  pointOf(stop).setAttribute("tabindex", 0);
  if (hadFocus) pointOf(stop).focus();
  function onKey(event, choose) {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (event.key === "Enter" || event.key === " ") choose();
    else if (step) pointOf(inOrder[inOrder.indexOf(Number(event.currentTarget.dataset.row)) + step])?.focus();
    else return;
    event.preventDefault();
  }
  const dot = (name) => element("span", { class: `dot ${name}` });
  const than = priced ? "cheaper" : "with less memory";
  byId("key").replaceChildren(
    element("span", {}, dot("fits"), `nothing is both ${than} and faster`),
    element("span", {}, dot("other"), "fits"),
    element("span", {}, "both axes are logarithmic"),
    element("span", {}, "click a point for its command"));
}

function selected() {
  const place = byId("selected");
  const row = rows[state.selected];
  place.replaceChildren();
  if (!row) return;
  const parts = [row.name, row.architecture, `${gib(row.capacity)} a card`];
  if (row.peak) parts.push(`peak ${gib(row.peak.device_upper)}`);
  if (row.step_ms_estimate) parts.push(`a step ${duration(row.step_ms_estimate)} (${duration(row.step_ms_low)} to ${duration(row.step_ms_high)})`);
  if (row.price) {
    parts.push(`${digits(row.price.amount)} ${report.priced.currency} (${digits(row.price.low)} to ${digits(row.price.high)})`);
    parts.push([row.price.vendor, row.price.instance, `${digits(row.price.per_hour)} an hour`].filter(Boolean).join(", "));
  }
  parts.push(row.evidence === "run" ? "the script ran on it" : "replayed");
  const quoted = row.command.map((word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`)).join(" ");
  const copy = element("button", { onclick: () => navigator.clipboard?.writeText(quoted) }, "Copy");
  place.append(element("strong", {}, title(row)), element("p", { class: "soft" }, parts.join(" · ")));
  if (row.chosen) place.append(element("p", {}, `plan: ${row.chosen.levers.map((lever) => (typeof lever.value === "number" ? `${lever.name} ${lever.value}` : lever.name)).join(", ")}`));
  if (row.note) place.append(element("p", { class: "note" }, row.note));
  place.append(element("div", { class: "command" }, element("code", {}, quoted), copy));
}

const VERDICTS = { "fits-as-is": ["fits", "fits"], "fits-with-plan": ["fits", "fits with a plan"], "does-not-fit": ["no", "does not fit"], unknown: ["unknown", "unknown"] };

function table(shown) {
  const columns = [
    ["GPU", false, (row) => title(row)],
    ["", false, (row) => element("span", { class: `verdict ${VERDICTS[row.verdict][0]}` }, VERDICTS[row.verdict][1])],
    ["memory", true, (row) => gib(row.capacity), "memory"],
    ["peak", true, (row) => (row.peak ? gib(row.peak.device_upper) : "")],
    ["a step", true, (row) => (row.step_ms_estimate ? duration(row.step_ms_estimate) : "")],
    ["samples/s", true, (row) => (row.samples_per_s ? digits(row.samples_per_s) : "")],
    ...(priced ? [["price", true, (row) => (row.price ? digits(row.price.amount) : "")]] : []),
    ["evidence", false, (row) => row.evidence, "evidence"],
  ];
  const kind = (number, name) => [number && "number", name].filter(Boolean).join(" ") || null;
  const head = element("tr", {}, ...columns.map(([text, number, , name]) => element("th", { class: kind(number, name) }, text)));
  const body = shown.map((row) =>
    element("tr", { class: row.index === state.selected ? "selected" : null, onclick: () => { state.selected = row.index; draw(); byId("selected").scrollIntoView({ block: "nearest" }); } },
      ...columns.map(([, number, cell, name]) => element("td", { class: kind(number, name) }, cell(row)))));
  byId("rows").replaceChildren(element("thead", {}, head), element("tbody", {}, ...body));
}

function draw() {
  const shown = left();
  plot(shown);
  selected();
  table(shown);
}

filters();
draw();
new ResizeObserver(() => plot(left())).observe(byId("plot-title"));
