// Everything around the timeline: the explanation, figures, search, what is under the pointer, and the panels of a moment.

const KEYS = [
  ["← →", "move the cursor; in larger steps with Shift"], [", .", "one event back or forward"], ["↑ ↓", "select the block above or below at the cursor"],
  ["+ −", "zoom in or out at the cursor"], ["h H", "increase or decrease the vertical scale"], ["Shift ↑ ↓", "move it up or down"], ["0", "show everything"], ["Page ↑ ↓", "move the window by half"], ["Home End", "to the beginning or the end"],
  ["p", "to the peak"], ["o O", "to the next or the previous failure"], ["n N", "to the next or the previous step"],
  ["f", "fit the height to the window"], ["r", "allocated or reserved"], ["c", "colours by category or by line"], ["s", "events or seconds along the axis"], ["/", "search"], ["Enter", "to the selected block's details"], ["Esc", "clear the selection"], ["t", "light or dark"], ["?", "this list"],
];
const CAUSES = {
  "too-big": "The tensors exceed the GPU's memory", fragmented: "Enough memory was free, but in pieces", leaking: "Memory grows from step to step",
  "retained-graph": "A graph is kept alive", "two-batches-alive": "Two batches are alive at once", "evaluation-with-gradients": "Evaluation saves activations for a backward pass",
  "first-step-surprise": "The first optimizer step needs more", "giant-request": "One request is out of proportion", "other-processes": "Other processes hold the GPU's memory",
  outside: "Memory outside the allocator", "private-pools": "Private pools hold memory", "setting-that-hurts": "An allocator setting keeps memory unused", "does-not-fit": "The model does not fit on this GPU",
  "growing-cache": "A tensor is rebuilt larger each time",
};

const words = (name = "") => name.replaceAll("-", " ").replaceAll("_", " ");
const LABELS = { exact: "the same mathematics", rounding: "the same mathematics; results differ by rounding", precision: "the same training in fewer bits", "changes-training": "training results change" };
/** So many remedies are shown at once. */
const BEST = 3;
const PROOFS = { replayed: "the recorded allocator calls were replayed with it", modelled: "computed from the recording" };

/** A line of the user's code, as a link that finds it. */
const codeLine = (app, { file, line, function: name }) => el("button.link", { title: `${file}:${line} ${name ?? ""}`, onclick: () => app.search.set(`${file}:${line}`) }, el("code", {}, `${shortPath(file)}:${line}`));

function drawExplanation(app, recordings) {
  const cards = recordings.map(({ name, explanation, remarks }, index) => {
    const of = recordings.length > 1 ? `${"AB"[index]}: ` : "";
    const known = explanation && explanation.cause && explanation.cause !== "none";
    const untold = [...new Set([...remarks, ...(explanation?.unknown ?? [])])];
    return el("div", {},
      known ? drawCause(app, explanation, of ? `${of}${name}` : "Why") : null,
      untold.length ? el("details.untold", {}, el("summary", {}, `${of}${many(untold.length, "limit")} of this recording`), el("ul", {}, ...untold.map((remark) => el("li", {}, remark)))) : null);
  });
  byId("why").replaceChildren(...cards);
}

function drawCause(app, { cause, evidence = [], fixes = [], peak = {} }, title) {
  // On a confidential page, some names are reduced to numbers, which mean nothing alone.
  const said = evidence.filter(({ text }) => text);
  return el("article.card.verdict", {},
    el("div", {},
      el("p.eyebrow", {}, title), el("h2", {}, CAUSES[cause] ?? words(cause)),
      typeof peak?.requested === "number" ? el("p.muted", {}, `${size(peak.segment ?? peak.requested)} more were requested, with ${size(peak.allocated)} in tensors and ${size(peak.reserved)} reserved.`) : null,
      said.length ? el("ul.evidence", {}, ...said.map((fact) => drawEvidence(app, fact))) : null),
    fixes.length ? el("div", {}, el("h3", {}, "What would have helped"), ...drawFixes(fixes)) : null);
}

/** Steps that were complete; the one that a failure ended is named, since it is not among them. */
const stepsNote = (lane) => (lane.ooms.tick.length && !lane.steps.tick.some((tick) => tick > lane.ooms.tick.at(-1)) ? `complete; it failed in step ${count(lane.steps.tick.length + 1)}` : "complete");

/** The best remedies, and the others where somebody asks for them. */
function drawFixes(fixes) {
  const list = (some, start) => el("ol.fixes", { start: `${start}` }, ...some.map((fix) => drawFix(fix)));
  const [best, others] = [fixes.slice(0, BEST), fixes.slice(BEST)];
  return [
    best.length ? list(best, 1) : null,
    others.length ? el("details.others", {}, el("summary", {}, `${many(others.length, "other")} that would help less, or cost more`), list(others, BEST + 1)) : null,
  ];
}

/** A sentence with code in backticks. */
const prose = (text) => text.split("`").map((part, index) => (index % 2 ? el("code", {}, part) : part));

function drawEvidence(app, { text, stack = [] }) {
  return el("li", {}, ...prose(text), stack.length ? [" ", codeLine(app, stack[0])] : null, stack[0]?.text ? el("pre", {}, stack[0].text.trim()) : null);
}

/** Only a run shows what follows the request that failed. */
function drawEnough(evidence) {
  return evidence === "run"
    ? el("span.badge.exact", { title: "a run with it fits" }, "enough")
    : el("span.badge.exact", { title: "the recorded run would have continued, and may fail later" }, "enough for this request");
}

function drawFix({ lever, saves, label, how, evidence, enough, environment, edit }) {
  return el("li", {},
    el("strong", {}, words(lever)),
    saves > 0 ? [" ", el("span.saves", {}, `saves ${size(saves)}`)] : null,
    enough === true ? drawEnough(evidence) : null,
    enough === false ? el("span.badge.quiet", { title: "not sufficient alone" }, "not enough alone") : null,
    el(`span.badge.${/^[a-z-]+$/.test(label) ? label : "quiet"}`, { title: LABELS[label] }, words(label)),
    evidence ? el("span.badge.quiet", { title: PROOFS[evidence] }, evidence) : null,
    how ? el("p", {}, ...prose(how)) : null,
    environment ? el("pre", {}, `${environment.name}=${environment.value}`) : null,
    edit ? el("details", {}, el("summary", {}, "The change"), el("pre", {}, edit.diff)) : null);
}

function drawFigures(app) {
  const all = app.lanes.map((lane, index) => {
    const { peak } = lane.info;
    const { capacity } = app.recordings[index];
    const loose = peak.highest_reserved - peak.allocated;
    const figures = [
      ["peak allocated", size(peak.allocated), lane.describe(peak.tick).replace(/(\d) (\w+)$/, "$1\u00a0$2")],
      ["peak reserved", size(peak.highest_reserved), capacity ? `${share(peak.highest_reserved, capacity)} of the GPU` : "segments the allocator held"],
      ["reserved, not in tensors", size(loose), `${share(loose, peak.highest_reserved)} of the reserved memory`],
      ["blocks", count(lane.info.blocks), `${many(lane.ticks, "event")}`],
      ["steps", lane.knowsSteps ? count(lane.steps.tick.length) : "not known", lane.knowsSteps ? stepsNote(lane) : "none were recorded"],
    ];
    if (lane.ooms.tick.length) figures.push(["out of memory", many(lane.ooms.tick.length, "time"), `requested ${size(lane.ooms.value[0])}`]);
    return el("dl.figures", { "aria-label": app.lanes.length > 1 ? `Figures of ${"AB"[index]}` : "Figures" },
      ...figures.map(([name, value, note]) => el(`div.figure${name === "out of memory" ? ".bad" : ""}`, {}, el("dt", {}, name), el("dd", {}, value), el("p", {}, note))));
  });
  byId("figures").replaceChildren(...all);
}

function drawLegend(app) {
  const present = STACKING.filter((name) => app.lanes.some((lane) => lane.place.has(name)) && (name !== "fragmentation" || app.measure === "reserved"));
  // If colours stand for lines, a category has none: its mark only shows if it is visible.
  const byLine = app.colour === "place";
  const note = byLine ? [el("span.muted", {}, "a colour for each line; shown:")] : [];
  byId("legend").replaceChildren(...note, ...[...present].reverse().map((name) => {
    const input = el("input", { type: "checkbox", "aria-label": `Show ${name}`, onchange: (event) => app.toggle(name, event.target.checked) });
    input.checked = !app.hidden.has(name);
    return el("label.key", { title: ABOUT[name], colour: byLine ? "var(--muted)" : `var(--${name})` }, input, el("span.swatch"), name);
  }));
}

/** What is under the pointer. */
class Tooltip {
  constructor() {
    this.element = byId("tooltip");
  }

  hide() {
    this.element.hidden = true;
  }

  show(event, title, ...lines) {
    this.element.replaceChildren(el("strong", {}, title), ...lines.filter(Boolean).map((line) => (typeof line === "string" ? el("div", {}, line) : line)));
    this.element.hidden = false;
    const { width, height } = this.element.getBoundingClientRect();
    const left = event.clientX + 14 + width > innerWidth ? event.clientX - width - 14 : event.clientX + 14;
    this.element.style.left = `${clamp(left, 4, Math.max(4, innerWidth - width - 4))}px`;
    this.element.style.top = `${clamp(event.clientY + 14, 4, Math.max(4, innerHeight - height - 4))}px`;
  }

  block(event, lane, block, note) {
    const frames = lane.places.frames(block.stack);
    const own = frames.filter((frame) => frame.own);
    const shown = (own.length ? own : frames).slice(0, 5);
    this.show(event, `${size(block.asked)} ${block.category}`, note, lane.module(block.module), life(lane, block),
      ...shown.map((frame) => el("div.frame", {}, el("code", {}, `${shortPath(frame.file)}:${frame.line}`), ` ${frame.function}`)));
  }

  point(chart, x, y, event) {
    const found = chart.hit(x, y);
    if (!found) {
      this.hide();
    } else if (found.block) {
      this.block(event, chart.lane, found.block);
    } else {
      const columns = chart.columns;
      const total = columns.high[found.column];
      this.show(event, found.category ? `${found.category}: ${size(found.bytes)}` : "nothing here",
        chart.lane.describe(found.tick), `allocated ${size(total)}${columns.perColumn > 1.5 ? `, at least ${size(columns.low[found.column])} here` : ""}`, `reserved ${size(columns.reserved[found.column])}`);
    }
  }
}

function life(lane, block) {
  const end = block.freed >= lane.ticks ? "to the end" : `to event ${count(block.freed)} (${many(block.freed - block.born, "event")})`;
  return `from ${lane.describe(block.born)} ${end}`;
}

function drawDetails(app) {
  const { element, chosen } = { element: byId("details"), chosen: app.selected };
  element.hidden = !chosen;
  if (!chosen) return;
  const { lane, block } = chosen;
  const frames = lane.places.frames(block.stack);
  const [line, module] = [lane.line(block.stack), lane.module(block.module)];
  const link = (text, name = text) => el("button.link", { title: name, onclick: () => app.search.set(name) }, text);
  element.replaceChildren(
    el("div.bar", {}, el("h3", {}, `${size(block.asked)} of ${block.category}`), el("button", { onclick: () => app.select(null, null), "aria-label": "Close the details" }, "Close")),
    el("dl.facts", {},
      ...[["module", module ? link(module) : "not known"], ["line", line ? link(nameOf(line), line) : "not known"], ["lived", life(lane, block)],
        ["asked for", `${count(block.asked)} bytes`], ["rounding", size(block.rounding)], ["address", el("code", {}, `0x${block.address.toString(16)}`)]]
        .map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)))),
    frames.length
      ? el("details", { open: true }, el("summary", {}, `Stack of ${many(frames.length, "frame")}, innermost first`),
        el("ol.stack", {}, ...frames.map((frame) => el(frame.own ? "li.own" : "li", {}, el("code", {}, `${frame.file}:${frame.line}`), ` ${frame.function}`))))
      : el("p.muted", {}, "The recording has no stack of this block."));
}

/** What is looked for: parts of lines, modules, functions. */
class Search {
  constructor(app) {
    this.app = app;
    this.text = "";
    this.curves = new Map();
    this.input = byId("search");
    this.input.addEventListener("input", () => this.apply(this.input.value));
    this.input.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        this.set("");
        this.app.timeline.charts[0].over.focus();
      }
    });
  }

  get active() {
    return this.text !== "";
  }

  set(text) {
    this.input.value = text;
    this.apply(text);
  }

  apply(text) {
    this.text = text.trim().toLowerCase();
    this.curves.clear();
    this.found = new Map();
    for (const lane of this.active ? this.app.lanes : []) {
      const texts = lane.places.texts.map((name) => name.toLowerCase().includes(this.text));
      const stacks = new Uint8Array(lane.places.count);
      for (let stack = 0; stack < stacks.length; stack++) {
        const frames = lane.places.frames(stack);
        stacks[stack] = frames.some((frame) => `${frame.file}:${frame.line} ${frame.function}`.toLowerCase().includes(this.text)) ? 1 : 0;
      }
      this.found.set(lane, { stacks, modules: texts, has: (block) => stacks[block.stack] === 1 || (block.module !== 0 && texts[block.module]) });
      this.count(lane);
    }
    byId("found").textContent = "";
    this.app.timeline.redraw();
  }

  meaning(lane) {
    return this.active ? this.found.get(lane) : null;
  }

  curve(lane) {
    return this.curves.get(lane);
  }

  /** What all matching blocks had together, tick by tick. */
  async count(lane) {
    const { text } = this;
    const found = this.found.get(lane);
    await lane.loadChunks(lane.info.chunks.map((_, number) => number));
    if (this.text !== text) return;
    const curve = new Float64Array(lane.ticks + 1);
    let [blocks, most, when] = [0, 0, 0];
    for (const chunk of lane.chunks) {
      for (let row = 0; row < chunk.rows; row++) {
        if (!found.stacks[chunk.stack[row]] && !(chunk.module[row] && found.modules[chunk.module[row]])) continue;
        blocks += 1;
        curve[chunk.born[row]] += chunk.asked[row];
        curve[chunk.freed[row]] -= chunk.asked[row];
      }
    }
    for (let tick = 1; tick <= lane.ticks; tick++) curve[tick] += curve[tick - 1];
    for (let tick = 0; tick < lane.ticks; tick++) if (curve[tick] > most) [most, when] = [curve[tick], tick];
    this.curves.set(lane, curve.subarray(0, Math.max(1, lane.ticks)));
    if (lane === this.app.lanes[0]) {
      byId("found").textContent = blocks ? `${many(blocks, "block")}, at most ${size(most)} together, at ${lane.describe(when)}` : "nothing found";
    }
    this.app.timeline.redraw();
  }
}

/** The panels that show one moment. */
class Moment {
  constructor(app) {
    this.app = app;
    this.tree = new Tree(app);
    this.allocator = new Allocator(app);
    this.leaks = el("div");
    this.difference = el("div");
    this.panels = { tree: this.tree.element, allocator: this.allocator.element, leaks: this.leaks, difference: this.difference };
    this.current = "tree";
    for (const [name, panel] of Object.entries(this.panels)) byId(`panel-${name}`).append(panel);
    this.tabs = [...document.querySelectorAll("[role=tab]")];
    for (const tab of this.tabs) {
      tab.addEventListener("click", () => this.open(tab.dataset.panel));
      tab.addEventListener("keydown", (event) => this.key(event));
    }
    this.number = 0;
  }

  key(event) {
    const shown = this.tabs.filter((tab) => !tab.hidden);
    const at = shown.indexOf(event.target);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: shown.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const tab = shown[(to + shown.length) % shown.length];
    tab.focus();
    this.open(tab.dataset.panel);
  }

  open(name) {
    this.current = name;
    for (const tab of this.tabs) {
      const chosen = tab.dataset.panel === name;
      tab.setAttribute("aria-selected", String(chosen));
      tab.tabIndex = chosen ? 0 : -1;
      byId(`panel-${tab.dataset.panel}`).hidden = !chosen;
    }
    this.refresh();
  }

  /** Draws what is shown, once the pointer or the keys rest. */
  refresh() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.draw().catch((error) => this.app.fail(error)), 40);
  }

  async draw() {
    const number = ++this.number;
    const charts = this.app.timeline.charts;
    const index = Math.min(this.app.side, charts.length - 1);
    const chart = charts[index];
    const { lane } = chart;
    const tick = chart.cursorTick();
    byId("moment-title").textContent = `${charts.length > 1 ? `${"AB"[index]}: ` : ""}${lane.describe(tick)}`;
    const live = await lane.liveAt(tick);
    if (number !== this.number) return;
    const held = live.filter((block) => tick < block.freed);
    const allocated = held.reduce((sum, block) => sum + block.asked + block.rounding, 0) + lane.at(lane.beyond, tick);
    const reserved = Math.max(lane.at(lane.reserved, tick), allocated);
    byId("moment-totals").textContent = `${size(allocated)} allocated in ${many(held.length, "block")} · ${size(reserved)} reserved`;
    if (this.current === "tree") {
      const extra = { "beyond blocks": lane.at(lane.beyond, tick) };
      if (this.app.measure === "reserved") extra.fragmentation = reserved - allocated;
      this.tree.show(lane, held, extra);
    } else if (this.current === "allocator") {
      this.allocator.show(lane, tick, live);
    } else if (this.current === "leaks") {
      this.drawLeaks(lane, index);
    } else if (this.current === "difference" && charts.length > 1) {
      await this.drawDifference(charts, number);
    }
  }

  drawLeaks(lane, index) {
    const leaks = this.app.recordings[index].explanation?.leaks ?? [];
    if (!leaks.length) {
      const known = this.app.recordings[index].explanation;
      this.leaks.replaceChildren(el("p.empty", {}, known ? "No line's memory grows from step to step." : "This recording was not searched for leaks."));
      return;
    }
    const row = ({ line, module, category, per_step: growth, bytes, steps, dies_at: end }) => el("tr", {},
      el("td", {}, line ? codeLine(this.app, line) : (module ?? "not known"), line?.text ? el("pre", {}, line.text.trim()) : null),
      el("td.category", {}, el("span.swatch", { colour: `var(--${category})` }), category),
      el("td.number", {}, `${change(growth)} a step`), el("td.number", {}, `${size(bytes)} of ${many(steps, "step")}`), el("td.number", {}, end ? `step ${count(end)}` : "not soon"));
    this.leaks.replaceChildren(el("div.scroll", {}, el("table", {}, el("caption", {}, "Lines whose blocks stay from step to step. Select one to see it on the timeline."),
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "line"), el("th", { scope: "col" }, "category"), ...["growth", "held", "the GPU is full in"].map((name) => el("th.number", { scope: "col" }, name)))),
      el("tbody", {}, ...leaks.map(row)))));
  }

  async drawDifference(charts, number) {
    const sides = await Promise.all(charts.map(async (chart) => {
      const tick = chart.cursorTick();
      const sums = { category: new Map(), line: new Map() };
      const add = (map, name, bytes) => map.set(name, (map.get(name) ?? 0) + bytes);
      for (const block of (await chart.lane.liveAt(tick)).filter((one) => tick < one.freed)) {
        add(sums.category, block.category, block.asked);
        add(sums.category, "rounding", block.rounding);
        add(sums.line, chart.lane.line(block.stack) || chart.lane.module(block.module) || "not known", block.asked);
      }
      add(sums.category, "reserved", chart.lane.at(chart.lane.reserved, tick));
      return sums;
    }));
    if (number !== this.number) return;
    const table = (kind, title) => {
      const names = new Set(sides.flatMap((side) => [...side[kind].keys()]));
      const rows = [...names].map((name) => [name, sides[0][kind].get(name) ?? 0, sides[1][kind].get(name) ?? 0]);
      rows.sort((one, other) => Math.abs(other[2] - other[1]) - Math.abs(one[2] - one[1]));
      const most = Math.max(1, ...rows.map(([, a, b]) => Math.abs(b - a)));
      return el("table", {}, el("caption", {}, title), el("thead", {}, el("tr", {}, el("th", { scope: "col" }, kind), ...["A", "B", "B − A"].map((name) => el("th.number", { scope: "col" }, name)))),
        el("tbody", {}, ...rows.slice(0, 40).map(([name, a, b]) => el("tr", {}, el("td", { title: name }, nameOf(name)), el("td.number", {}, size(a)), el("td.number", {}, size(b)),
          el(b > a ? "td.number.more" : "td.number.less", {}, change(b - a), el("span.meter", { style: { width: `${(Math.abs(b - a) / most) * 100}%` } }))))),
        rows.length > 40 ? el("tfoot", {}, el("tr", {}, el("td", { colspan: "4" }, `and ${many(rows.length - 40, "more row")} with smaller differences`))) : null);
    };
    const { alignment } = this.app.timeline;
    const aligned = alignment.common ? `The two are aligned at ${many(alignment.common, "place")}, where steps and their phases begin.` : "No steps or phases are known in both: they are aligned event by event from the beginning.";
    const peaks = el("button", { onclick: () => this.app.timeline.setCursor(this.app.timeline.charts[0].lane.info.peak.tick) }, "Go to the peak of A");
    const other = el("button", { onclick: () => this.app.timeline.setCursor(charts[1].fromTick(charts[1].lane.info.peak.tick)) }, "Go to the peak of B");
    this.difference.replaceChildren(el("p", {}, aligned, " ", peaks, " ", other), el("div.two", {}, el("div.scroll", {}, table("category", "By category, at this moment of both")), el("div.scroll", {}, table("line", "By line, largest differences first"))));
  }
}
