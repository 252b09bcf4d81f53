// State of the page: the selection, and the parts that are notified of changes.

class App {
  constructor() {
    this.recordings = manifest.recordings;
    this.all = this.recordings.map((recording) => recording.lanes.map((info) => new Lane(info)));
    this.measure = "reserved";
    this.colour = "category";
    this.hidden = new Set();
    this.selected = null;
    this.side = 0;
    this.lanes = [];
    this.tooltip = new Tooltip();
  }

  async start() {
    palette.read();
    this.search = new Search(this);
    this.timeline = new Timeline(this);
    this.moment = new Moment(this);
    this.controls();
    document.querySelector("[data-panel=difference]").hidden = this.recordings.length < 2;
    drawExplanation(this, this.recordings);
    drawChips(this.recordings);
    await this.choose(this.all.map((lanes) => mostUsed(lanes)));
    document.documentElement.dataset.ready = "true";
    byId("app").hidden = false;
    this.timeline.resize();
  }

  /** Shows a lane of each recording. */
  async choose(places) {
    this.places = places;
    this.lanes = await Promise.all(places.map((place, index) => {
      const lane = this.all[index][place];
      return (lane.opened ??= lane.open());
    }));
    this.select(null, null);
    this.search.apply(this.search.input.value);
    const titles = this.lanes.map((_, index) => (this.lanes.length > 1 ? `${"AB"[index]} · ${this.recordings[index].name}` : ""));
    // A snapshot that knows no categories is more telling by line.
    const telling = STACKING.slice(0, 6);
    this.setColour(this.lanes.some((lane) => lane.categories.some((name) => telling.includes(name))) ? "category" : "place");
    drawFigures(this);
    drawLegend(this);
    this.timeline.show(this.lanes, titles);
    this.showAxis();
    this.moment.open(this.lanes.length > 1 ? "difference" : "tree");
  }

  controls() {
    const lanes = byId("lanes");
    this.recordings.forEach((recording, index) => {
      if (recording.lanes.length < 2) return;
      const name = this.recordings.length > 1 ? `Rank and device of ${"AB"[index]}` : "Rank and device";
      lanes.append(el("select", { "aria-label": name, onchange: (event) => this.choose(this.places.map((place, at) => (at === index ? Number(event.target.value) : place))) },
        ...recording.lanes.map((lane, place) => el("option", { value: String(place), selected: place === mostUsed(this.all[index]) }, `${lane.title} · peak ${size(lane.peak.allocated)}`))));
    });
    if (this.recordings.length > 1) {
      byId("moment-side").append(el("select", { "aria-label": "Recording whose moment is shown", onchange: (event) => { this.side = Number(event.target.value); this.moment.refresh(); } },
        el("option", { value: "0" }, "A"), el("option", { value: "1" }, "B")));
    }
    for (const button of document.querySelectorAll("[data-measure]")) button.addEventListener("click", () => this.setMeasure(button.dataset.measure));
    for (const button of document.querySelectorAll("[data-axis]")) button.addEventListener("click", () => this.setAxis(button.dataset.axis));
    for (const button of document.querySelectorAll("[data-colour]")) button.addEventListener("click", () => this.setColour(button.dataset.colour));
    const on = (id, work) => byId(id).addEventListener("click", work);
    on("theme", () => this.nextTheme());
    on("keys", () => byId("help").showModal());
    on("help-close", () => byId("help").close());
    on("zoom-in", () => this.timeline.zoom(0.5, this.timeline.cursor));
    on("zoom-out", () => this.timeline.zoom(2, this.timeline.cursor));
    on("zoom-all", () => this.timeline.whole());
    on("go-peak", () => {
      const [chart] = this.timeline.charts;
      this.timeline.setCursor(chart.fromTick(chart.lane.info.peak.tick));
    });
    on("higher", () => this.timeline.magnify(2));
    on("lower", () => this.timeline.magnify(0.5));
    on("fit", () => this.toggleFit());
    byId("key-list").append(...KEYS.map(([keys, what]) => el("div", {}, el("dt", {}, ...keys.split(" ").map((key) => el("kbd", {}, key))), el("dd", {}, what))));
    document.addEventListener("keydown", (event) => this.key(event));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.repaint());
    this.setMeasure(this.measure);
  }

  key(event) {
    const typing = event.target.closest("input:not([type=checkbox]), select, textarea, dialog");
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    const keys = {
      "/": () => byId("search").focus(),
      "?": () => byId("help").showModal(),
      r: () => this.setMeasure(this.measure === "reserved" ? "allocated" : "reserved"),
      c: () => this.setColour(this.colour === "place" ? "category" : "place"),
      s: () => this.setAxis(this.timeline.axis === "time" ? "events" : "time"),
      f: () => this.toggleFit(),
      t: () => this.nextTheme(),
    };
    if (!keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  }

  setMeasure(measure) {
    this.measure = measure;
    for (const button of document.querySelectorAll("[data-measure]")) button.setAttribute("aria-pressed", String(button.dataset.measure === measure));
    if (!this.timeline.charts.length) return;
    drawLegend(this);
    this.timeline.redraw();
    this.moment.refresh();
  }

  setAxis(axis) {
    this.timeline.setAxis(axis);
    this.showAxis();
    if (axis === "time" && !this.timeline.canShowTime) this.say("This recording has no times.");
    this.moment.refresh();
  }

  showAxis() {
    for (const button of document.querySelectorAll("[data-axis]")) {
      button.setAttribute("aria-pressed", String(button.dataset.axis === this.timeline.axis));
      button.disabled = button.dataset.axis === "time" && !this.timeline.canShowTime;
    }
  }

  setColour(colour) {
    this.colour = colour;
    for (const button of document.querySelectorAll("[data-colour]")) button.setAttribute("aria-pressed", String(button.dataset.colour === colour));
    drawLegend(this);
    this.timeline.redraw();
    if (this.moment.current === "allocator") this.moment.refresh();
  }

  toggleFit() {
    this.timeline.fit = !this.timeline.fit;
    byId("fit").setAttribute("aria-pressed", String(this.timeline.fit));
    this.timeline.redraw();
  }

  toggle(name, shown) {
    if (shown) this.hidden.delete(name);
    else this.hidden.add(name);
    this.timeline.redraw();
  }

  select(lane, block) {
    this.selected = block ? { lane, block } : null;
    drawDetails(this);
    if (!this.timeline.charts.length) return;
    if (block) this.say(`${size(block.asked)} of ${block.category}, ${nameOf(lane.line(block.stack)) || lane.module(block.module) || "no line known"}`);
    this.timeline.redraw();
    if (this.moment.current === "allocator") this.moment.refresh();
  }

  selectedKey(lane) {
    return this.selected?.lane === lane ? this.selected.block.key : null;
  }

  capacityOf(lane) {
    return this.recordings[Math.max(0, this.lanes.indexOf(lane))].capacity ?? 0;
  }

  nextTheme() {
    const root = document.documentElement;
    root.dataset.theme = palette.dark ? "light" : "dark";
    this.repaint();
  }

  repaint() {
    palette.read();
    this.timeline.charts.forEach((chart) => chart.painter.shades.clear());
    this.timeline.redraw();
    this.moment.refresh();
  }

  /** Notifies the listeners of the page. */
  say(text) {
    byId("live").textContent = text;
  }

  fail(error) {
    byId("failure").textContent = `Part of the page could not be drawn: ${error.message}`;
    byId("failure").hidden = false;
    throw error;
  }
}

/** The lane with the highest peak: the one that decides whether a run fits. */
function mostUsed(lanes) {
  let most = 0;
  lanes.forEach((lane, place) => {
    if (lane.info.peak.allocated > lanes[most].info.peak.allocated) most = place;
  });
  return most;
}

function drawChips(recordings) {
  const chips = recordings.flatMap((recording, index) => {
    const name = recordings.length > 1 ? `${"AB"[index]} · ${recording.name}` : recording.name;
    const kinds = { "virtual-run": "on a virtual GPU", "real-run": "on a real GPU", snapshot: "PyTorch memory snapshot" };
    return [
      el("span.chip.strong", {}, name), el("span.chip", {}, kinds[recording.kind] ?? words(String(recording.kind))),
      recording.device ? el("span.chip", {}, recording.device) : null,
      recording.capacity ? el("span.chip", {}, size(recording.capacity)) : null,
      recording.torch ? el("span.chip", {}, `torch ${recording.torch}`) : null,
    ];
  });
  if (manifest.confidential) chips.push(el("span.chip", { title: "paths, lines and names were replaced by numbers" }, "confidential"));
  byId("chips").replaceChildren(...chips.filter(Boolean));
}

const app = new App();
window.memfit = { app };
app.start().catch((error) => app.fail(error));
