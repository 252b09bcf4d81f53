// The timeline: one chart, or two above each other on one axis; zooming, moving, pointing, and the same with keys.

const NARROWEST = 4;

/** The ticks at which each phase of each step first began, by what they are called. */
function milestones(lane) {
  const all = [];
  for (let row = 0; row < lane.steps.tick.length; row++) all.push([lane.steps.tick[row], `step ${row + 2}`]);
  for (let row = 0; row < lane.phases.tick.length; row++) {
    const tick = lane.phases.tick[row];
    if (lane.phases.value[row]) all.push([tick, `step ${lane.at(lane.steps, tick) + 1} ${PHASES[lane.phases.value[row]]}`]);
  }
  const known = new Map();
  for (const [tick, name] of all.sort(([one], [other]) => one - other)) if (!known.has(name)) known.set(name, tick);
  return known;
}

/** From one recording's ticks to another's, so that the same phase of the same step lies at the same place. */
class Alignment {
  constructor(first, other) {
    const theirs = milestones(other);
    this.from = [0];
    this.to = [0];
    for (const [name, tick] of milestones(first)) {
      const same = theirs.get(name);
      if (same === undefined || tick <= this.from.at(-1) || same <= this.to.at(-1)) continue;
      this.from.push(tick);
      this.to.push(same);
    }
    this.common = this.from.length - 1;
    this.end = Math.max(first.ticks, this.from.at(-1) + (other.ticks - this.to.at(-1)));
  }

  static map(from, to, at) {
    const row = after(from, at) - 1;
    if (row < 0) return at;
    if (row + 1 >= from.length) return to[row] + (at - from[row]);
    return to[row] + ((at - from[row]) * (to[row + 1] - to[row])) / (from[row + 1] - from[row]);
  }

  forth(at) {
    return Alignment.map(this.from, this.to, at);
  }

  back(at) {
    return Alignment.map(this.to, this.from, at);
  }
}

/** One lane's chart. */
class Chart {
  constructor(lane, timeline, { title, toTick = (at) => at, fromTick = (at) => at }) {
    Object.assign(this, { lane, timeline, title, toTick, fromTick });
    this.painter = new Painter(lane);
    this.base = el("canvas.base", { "aria-hidden": "true" });
    this.over = el("canvas.over", {
      tabindex: "0", role: "slider", "aria-label": `Timeline${title ? ` of ${title}` : ""}: memory by category`,
      "aria-orientation": "horizontal", "aria-valuemin": "0", "aria-valuemax": String(Math.max(0, lane.ticks - 1)), "aria-describedby": "keys-hint",
    });
    this.ribbon = new Ribbon(this);
    this.note = el("p.note", {});
    this.element = el("figure.chart", {},
      title ? el("figcaption", {}, title) : null,
      el("div.plot", {}, this.base, this.over), this.ribbon.canvas, this.note);
    lane.onLoaded = () => timeline.redraw();
    lane.onFailed = (error) => timeline.app.fail(error);
  }

  resize() {
    const ratio = Math.min(window.devicePixelRatio || 1, 2);
    const width = Math.max(200, this.element.clientWidth);
    const height = this.over.parentElement.clientHeight;
    this.ratio = ratio;
    this.width = width;
    this.height = height;
    for (const canvas of [this.base, this.over]) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    this.ribbon.resize(width, ratio);
    this.image = null;
  }

  edges() {
    const { from, to } = this.timeline.view;
    const columns = this.base.width;
    const edges = new Float64Array(columns + 1);
    for (let column = 0; column <= columns; column++) edges[column] = this.toTick(from + ((to - from) * column) / columns);
    return edges;
  }

  x(tick) {
    const { from, to } = this.timeline.view;
    return ((this.fromTick(tick) - from) / (to - from)) * this.width;
  }

  /** Where a mark lies: along the seconds at its own time, since much of it may pass between two events. */
  xOf(tick, time) {
    if (this.timeline.axis !== "time" || !(time >= 0)) return this.x(tick);
    const { from, to } = this.timeline.view;
    return ((time - from) / (to - from)) * this.width;
  }

  draw() {
    const columns = this.lane.columns(this.edges());
    if (!columns) {
      this.over.setAttribute("aria-busy", "true");
      return;
    }
    this.over.removeAttribute("aria-busy");
    this.columns = columns;
    const { app } = this.timeline;
    this.top = this.timeline.top;
    this.bottom = this.timeline.bottom;
    this.shown = this.lane.categories.map((name) => !app.hidden.has(name) && (app.measure === "reserved" || name !== "fragmentation"));
    this.image ??= new ImageData(this.base.width, this.base.height);
    const tally = this.painter.paint(this.image, columns, {
      bottom: this.bottom, top: this.top, shown: this.shown, meant: app.search.meaning(this.lane), byPlace: app.colour === "place", selected: app.selectedKey(this.lane),
    });
    this.base.getContext("2d").putImageData(this.image, 0, 0);
    this.note.textContent = this.say(columns, tally);
    this.ribbon.draw();
    this.drawOver();
  }

  say(columns, { one, merged }) {
    const ticks = Math.max(1, Math.round(columns.perColumn));
    const { axis, view } = this.timeline;
    const each = axis === "time"
      ? `Each column spans ${duration((view.to - view.from) / columns.high.length)} and shows the highest value in that time. `
      : columns.perColumn > 1.01
      ? `Each column spans ${many(ticks, "event")}: solid up to their lowest value, lighter up to their highest. `
      : "Every event has a column of its own. ";
    const higher = merged && this.timeline.magnified < 2 ? " Magnify the height (h) to see more of them." : "";
    if (!columns.exact) return `${each}Zoom in to see single blocks; nothing is left out of the curves.`;
    return merged
      ? `${each}${many(one, "block")} drawn one by one; ${many(merged, "smaller or shorter one")} merged into their category.${higher}`
      : `${each}All ${many(one, "block")} of the window drawn one by one.`;
  }

  drawOver() {
    const context = this.over.getContext("2d");
    const { app, view } = this.timeline;
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.clearRect(0, 0, this.width, this.height);
    this.captions = [];
    this.drawGrid(context);
    if (app.search.active) this.drawMatches(context);
    this.drawPrivatePools(context);
    this.drawReserved(context);
    this.drawCapacity(context);
    for (const tick of this.lane.ooms.tick) this.drawOom(context, this.x(tick + 0.5));
    this.drawPeak(context);
    const cursor = this.x(this.cursorTick() + 0.5);
    if (cursor >= 0 && cursor <= this.width) {
      context.strokeStyle = palette.css("ink");
      context.lineWidth = 1;
      context.beginPath();
      context.moveTo(Math.round(cursor) + 0.5, 0);
      context.lineTo(Math.round(cursor) + 0.5, this.height);
      context.stroke();
      context.fillStyle = palette.css("ink");
      context.beginPath();
      context.moveTo(cursor - 5, 0);
      context.lineTo(cursor + 6, 0);
      context.lineTo(cursor + 0.5, 7);
      context.fill();
    }
    if (this.timeline.band && this === this.timeline.charts[0]) {
      const [from, to] = this.timeline.band.map((at) => ((at - view.from) / (view.to - view.from)) * this.width);
      context.fillStyle = palette.css("accent", 0.18);
      context.fillRect(Math.min(from, to), 0, Math.abs(to - from), this.height);
    }
  }

  cursorTick() {
    return clamp(Math.floor(this.toTick(this.timeline.cursor) + 1e-6), 0, Math.max(0, this.lane.ticks - 1));
  }

  y(bytes) {
    return this.height - ((bytes - this.bottom) / (this.top - this.bottom)) * this.height;
  }

  drawGrid(context) {
    const step = niceStep((this.top - this.bottom) / Math.max(2, Math.floor(this.height / 64)));
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "bottom";
    for (let bytes = Math.max(step, Math.ceil(this.bottom / step) * step); bytes < this.top; bytes += step) {
      const y = Math.round(this.y(bytes)) + 0.5;
      context.strokeStyle = palette.css("ink", 0.1);
      context.beginPath();
      context.moveTo(0, y);
      context.lineTo(this.width, y);
      context.stroke();
      label(context, size(bytes), 6, y - 2);
    }
  }

  /** What the allocator held, whatever is shown. */
  drawReserved(context) {
    const { columns } = this;
    context.strokeStyle = palette.css("ink", 0.55);
    context.lineWidth = 1.25;
    context.beginPath();
    const each = this.width / columns.reserved.length;
    for (let column = 0; column < columns.end; column++) {
      const y = this.y(columns.reserved[column]);
      if (column === 0) context.moveTo(0, y);
      context.lineTo(column * each, y);
      context.lineTo((column + 1) * each, y);
    }
    context.stroke();
  }

  /** What the segments of private pools had of what was reserved. */
  drawPrivatePools(context) {
    const pools = this.lane.privatePools;
    if (!pools.tick.length || this.timeline.app.measure !== "reserved") return;
    const edges = this.edges();
    const each = this.width / (edges.length - 1);
    let [most, at] = [0, 0];
    context.strokeStyle = palette.css("pools");
    context.lineWidth = 1.5;
    context.setLineDash([2, 2]);
    context.beginPath();
    for (let column = 0; column < this.columns.end; column++) {
      const bytes = this.lane.mostOf(pools, edges[column], Math.max(edges[column + 1], edges[column] + 1));
      if (bytes > most) [most, at] = [bytes, column * each];
      const y = this.y(bytes);
      if (column === 0) context.moveTo(0, y);
      context.lineTo(column * each, y);
      context.lineTo((column + 1) * each, y);
    }
    context.stroke();
    context.setLineDash([]);
    if (!most) return;
    const left = at > this.width / 2;
    context.textAlign = left ? "right" : "left";
    this.caption(context, `private pools ${size(most)}`, at + (left ? -4 : 4), Math.max(this.y(most) - 3, 12), "pools");
    context.textAlign = "left";
  }

  /** Draws a label below those that it would cover; draws nothing if there is no space. */
  caption(context, text, x, y, colour) {
    const width = context.measureText(text).width;
    const left = context.textAlign === "right" ? x - width : x;
    const height = 14;
    let top = context.textBaseline === "top" ? y : y - height;
    const shift = y - top;
    const covered = () => this.captions.find((each) =>
      each.left < left + width && left < each.left + each.width && each.top < top + height && top < each.top + height);
    for (let each = covered(); each; each = covered()) top = each.top + height;
    if (top + height > this.height) return;
    this.captions.push({ left, width, top });
    label(context, text, x, top + shift, colour);
  }

  drawCapacity(context) {
    const capacity = this.timeline.app.capacityOf(this.lane);
    if (!capacity || capacity > this.top) return;
    const y = Math.round(this.y(capacity)) + 0.5;
    context.strokeStyle = palette.css("bad");
    context.setLineDash([6, 4]);
    context.beginPath();
    context.moveTo(0, y);
    context.lineTo(this.width, y);
    context.stroke();
    context.setLineDash([]);
    if (y < 12) context.textBaseline = "top";
    context.textAlign = "right";
    this.caption(context, `the GPU's ${size(capacity)}`, this.width - 6, y - 3, "bad");
    context.textAlign = "left";
  }

  drawOom(context, x) {
    if (x < -1 || x > this.width + 1) return;
    context.strokeStyle = palette.css("bad");
    context.lineWidth = 1.5;
    context.beginPath();
    context.moveTo(x, 0);
    context.lineTo(x, this.height);
    context.stroke();
    const left = x > this.width / 2;
    context.textAlign = left ? "right" : "left";
    context.textBaseline = "top";
    // Below the card's line and its label, where these are as high up.
    const capacity = this.timeline.app.capacityOf(this.lane);
    const line = capacity && capacity <= this.top ? this.y(capacity) : Infinity;
    this.caption(context, "out of memory", x + (left ? -6 : 6), line < 46 ? line + 6 : 14, "bad");
    context.textAlign = "left";
    context.textBaseline = "bottom";
  }

  drawPeak(context) {
    const { peak } = this.lane.info;
    const x = this.x(peak.tick + 0.5);
    const y = this.y(peak.allocated);
    if (x < 0 || x > this.width || y < 0 || y > this.height || this.timeline.app.hidden.size) return;
    context.fillStyle = palette.css("surface");
    context.strokeStyle = palette.css("ink");
    context.lineWidth = 2;
    context.beginPath();
    context.arc(x, y, 4, 0, 7);
    context.fill();
    context.stroke();
    const left = x > this.width - 150;
    context.textAlign = left ? "right" : "left";
    this.caption(context, `peak ${size(peak.allocated)}`, x + (left ? -9 : 9), Math.max(y - 4, 26));
    context.textAlign = "left";
  }

  drawMatches(context) {
    const curve = this.timeline.app.search.curve(this.lane);
    if (!curve) return;
    context.strokeStyle = palette.css("accent");
    context.lineWidth = 2;
    context.beginPath();
    const edges = this.edges();
    const each = this.width / (edges.length - 1);
    for (let column = 0; column < this.columns.end; column++) {
      const begin = clamp(Math.floor(edges[column]), 0, curve.length - 1);
      const end = clamp(Math.ceil(edges[column + 1]), begin + 1, curve.length);
      let most = 0;
      for (let tick = begin; tick < end; tick++) most = Math.max(most, curve[tick]);
      const y = this.y(most);
      if (column === 0) context.moveTo(0, y);
      context.lineTo((column + 0.5) * each, y);
    }
    context.stroke();
  }

  /** The block at a place of the chart; nothing where blocks are merged. */
  hit(x, y) {
    const { columns } = this;
    const column = columns && Math.max(0, Math.floor((x / this.width) * columns.tick.length));
    if (!columns || column >= columns.end) return null;
    const bytes = this.bottom + ((this.height - y) / this.height) * (this.top - this.bottom);
    const found = { tick: columns.tick[column], column, category: null, block: null };
    let bottom = 0;
    for (let place = 0; place < columns.at.length; place++) {
      if (!this.shown[place]) continue;
      const top = bottom + columns.at[place][column];
      if (bytes >= bottom && bytes < top) {
        found.category = this.lane.categories[place];
        found.bytes = top - bottom;
        if (columns.exact) found.block = this.blockAt(place, found.tick, bytes - bottom, columns.at[place][column]);
        return found;
      }
      bottom = top;
    }
    return found;
  }

  blockAt(place, tick, bytes, total) {
    const blocks = this.stackAt(place, tick);
    let at = Math.max(0, total - blocks.reduce((sum, block) => sum + block.asked, 0));
    for (const block of blocks) {
      at += block.asked;
      if (bytes < at) return bytes >= at - block.asked ? block : null;
    }
    return null;
  }

  /** The bytes below the middle of a block at a tick, or nothing where it is not drawn. */
  heightOf(block, tick) {
    const { window } = this.columns;
    if (!window || tick < window.from || tick >= window.to) return null;
    let bottom = 0;
    for (let place = 0; place < this.shown.length; place++) {
      if (!this.shown[place]) continue;
      const total = window.curves[place][tick - window.from];
      if (this.lane.categories[place] === block.category) {
        const blocks = this.stackAt(place, tick);
        let at = bottom + Math.max(0, total - blocks.reduce((sum, one) => sum + one.asked, 0));
        for (const one of blocks) {
          if (one.key === block.key) return at + one.asked / 2;
          at += one.asked;
        }
        return null;
      }
      bottom += total;
    }
    return null;
  }

  /** The blocks of a category that are drawn one by one at a tick, from the bottom. */
  stackAt(place, tick) {
    const least = (this.top - this.bottom) / this.base.height;
    const blocks = [];
    for (const number of this.columns.window?.chunks ?? []) {
      const chunk = this.lane.chunks[number];
      for (let row = 0; row < chunk.rows; row++) {
        if (chunk.born[row] > tick || chunk.freed[row] <= tick || chunk.asked[row] < least) continue;
        if (this.lane.placeOfCode[chunk.category[row]] === place) blocks.push(this.lane.block(number, row));
      }
    }
    return blocks.sort((one, other) => one.born - other.born || one.number - other.number || one.row - other.row);
  }
}

function label(context, text, x, y, colour = "muted") {
  context.save();
  context.lineWidth = 3;
  context.lineJoin = "round";
  context.strokeStyle = palette.css("surface", 0.85);
  context.strokeText(text, x, y);
  context.fillStyle = palette.css(colour);
  context.fillText(text, x, y);
  context.restore();
}

/** A step of the scale that reads well in binary units. */
function niceStep(least) {
  let step = 1;
  while (step * 1024 <= least) step *= 1024;
  for (const times of [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]) {
    if (step * times >= least) return step * times;
  }
  return step * 1024;
}

class Timeline {
  constructor(app) {
    this.app = app;
    this.charts = [];
    this.view = { from: 0, to: 1 };
    this.cursor = 0;
    /** What lies along the axis: events or microseconds. */
    this.axis = "events";
    this.fit = false;
    /** How much the height is magnified, and the bytes at the lower edge. */
    this.magnified = 1;
    this.bottom = 0;
    this.redraw = everyFrame(() => this.draw());
    this.overview = byId("overview");
    new ResizeObserver(() => this.resize()).observe(byId("charts"));
    this.listenOverview();
  }

  /** Shows these lanes, the second one aligned with the first. */
  show(lanes, titles) {
    Object.assign(this, { lanes, titles });
    if (!this.canShowTime) this.axis = "events";
    this.build();
    this.view = { from: 0, to: this.end };
    this.cursor = this.charts[0].fromTick(lanes[0].info.peak.tick);
    this.resize();
  }

  build() {
    const { lanes, titles } = this;
    const byTime = this.axis === "time";
    this.alignment = lanes.length > 1 ? new Alignment(lanes[0], lanes[1]) : null;
    this.charts = lanes.map((lane, index) => {
      let maps = {};
      if (byTime) maps = { toTick: (at) => lane.tickAt(at), fromTick: (at) => lane.timeAt(at) };
      else if (index) maps = { toTick: (at) => this.alignment.forth(at), fromTick: (at) => this.alignment.back(at) };
      return new Chart(lane, this, { title: titles[index], ...maps });
    });
    this.end = Math.max(1, byTime ? Math.max(...lanes.map((lane) => lane.timeAt(lane.ticks))) : this.alignment?.end ?? lanes[0].ticks);
    byId("charts").replaceChildren(...this.charts.map((chart) => chart.element));
    this.charts.forEach((chart) => this.listen(chart));
  }

  get canShowTime() {
    return this.lanes?.every((lane) => lane.knowsTimes) ?? false;
  }

  /** Events or time along the axis: the window and the cursor stay where they are. */
  setAxis(axis) {
    if (axis === this.axis || (axis === "time" && !this.canShowTime)) return;
    const [first] = this.charts;
    const [from, to, cursor] = [this.view.from, this.view.to, this.cursor].map((at) => first.toTick(at));
    const whole = this.view.from <= 0 && this.view.to >= this.end;
    this.axis = axis;
    this.build();
    const [now] = this.charts;
    this.cursor = now.fromTick(cursor);
    this.view = whole ? { from: 0, to: this.end } : { from: now.fromTick(from), to: now.fromTick(to) };
    this.resize();
    this.setView(this.view.from, this.view.to);
  }

  resize() {
    if (!this.charts.length) return;
    this.charts.forEach((chart) => chart.resize());
    const ratio = Math.min(window.devicePixelRatio || 1, 2);
    this.overview.width = Math.round(this.overview.clientWidth * ratio);
    this.overview.height = Math.round(this.overview.clientHeight * ratio);
    this.redraw();
  }

  draw() {
    if (!this.charts.length) return;
    const begun = performance.now();
    const full = this.scaleTop();
    this.full = full;
    this.bottom = clamp(this.bottom, 0, full - full / this.magnified);
    this.top = this.bottom + full / this.magnified;
    this.charts.forEach((chart) => chart.draw());
    this.drawOverview();
    this.sayCursor();
    this.lastFrame = performance.now() - begun;
  }

  /** Both charts have one scale. */
  scaleTop() {
    const { measure } = this.app;
    let most = 1;
    for (const chart of this.charts) {
      const { peak } = chart.lane.info;
      if (!this.fit && !this.app.hidden.size) {
        most = Math.max(most, peak.allocated, measure === "reserved" ? peak.highest_reserved : 0);
        continue;
      }
      const columns = chart.lane.columns(chart.edges());
      if (!columns) return this.full ?? Math.max(most, peak.highest_reserved);
      for (let column = 0; column < columns.high.length; column++) {
        let sum = 0;
        chart.lane.categories.forEach((name, place) => {
          if (!this.app.hidden.has(name) && (measure === "reserved" || name !== "fragmentation")) sum += columns.at[place][column];
        });
        most = Math.max(most, sum);
      }
    }
    const capacity = this.app.capacityOf(this.charts[0].lane);
    if (!this.fit && capacity && capacity < most * 1.6 && capacity > most * 0.6) most = Math.max(most, capacity);
    return most * 1.08;
  }

  drawOverview() {
    const context = this.overview.getContext("2d");
    const [chart] = this.charts;
    const { lane } = chart;
    const { width, height } = this.overview;
    const edges = Float64Array.from({ length: width + 1 }, (_, column) => chart.toTick((this.end * column) / width));
    const columns = lane.columns(edges);
    if (!columns) return;
    context.clearRect(0, 0, width, height);
    const top = Math.max(1, lane.info.peak.highest_reserved);
    context.fillStyle = palette.css("muted", 0.45);
    for (let column = 0; column < width; column++) {
      if (edges[column] >= lane.ticks) break;
      const high = (columns.high[column] / top) * height;
      context.fillRect(column, height - high, 1, high);
    }
    const [from, to] = [this.view.from, this.view.to].map((at) => (at / this.end) * width);
    context.fillStyle = palette.css("surface", 0.72);
    context.fillRect(0, 0, from, height);
    context.fillRect(to, 0, width - to, height);
    context.strokeStyle = palette.css("accent");
    context.lineWidth = 2;
    context.strokeRect(from + 1, 1, Math.max(2, to - from - 2), height - 2);
  }

  sayCursor() {
    for (const chart of this.charts) {
      const tick = chart.cursorTick();
      const text = chart.lane.describe(tick);
      chart.over.setAttribute("aria-valuenow", String(tick));
      chart.over.setAttribute("aria-valuetext", text);
    }
  }

  // Moving.

  setView(from, to) {
    const width = clamp(to - from, Math.min(NARROWEST, this.end), this.end);
    from = clamp(from, 0, this.end - width);
    this.view = { from, to: from + width };
    this.redraw();
  }

  zoom(factor, about = (this.view.from + this.view.to) / 2) {
    const { from, to } = this.view;
    this.setView(about - (about - from) * factor, about + (to - about) * factor);
  }

  pan(part) {
    const { from, to } = this.view;
    this.setView(from + part * (to - from), to + part * (to - from));
  }

  whole() {
    this.magnified = 1;
    this.setView(0, this.end);
  }

  /** Magnifies the height about some bytes: those of the chosen block, or the middle. */
  magnify(factor, about) {
    const { bottom, top } = this;
    const middle = about ?? this.chosenBytes() ?? (bottom + top) / 2;
    this.magnified = clamp(this.magnified * factor, 1, 1 << 16);
    const part = (middle - bottom) / (top - bottom);
    this.bottom = middle - part * (this.full / this.magnified);
    this.redraw();
  }

  lift(part) {
    this.bottom += part * (this.top - this.bottom);
    this.redraw();
  }

  /** Where the chosen block lies at the cursor. */
  chosenBytes() {
    const { selected } = this.app;
    const chart = this.charts.find((one) => one.lane === selected?.lane);
    return chart?.columns?.exact ? chart.heightOf(selected.block, chart.cursorTick()) : null;
  }

  setCursor(at, { follow = true } = {}) {
    this.cursor = clamp(at, 0, Math.max(0, this.end - 1));
    const { from, to } = this.view;
    if (follow && (this.cursor < from || this.cursor >= to)) {
      const half = (to - from) / 2;
      this.setView(this.cursor - half, this.cursor + half);
    }
    this.redraw();
    this.app.moment.refresh();
  }

  /** To the next or the one before of some places. */
  jump(ticks, direction, chart = this.charts[0]) {
    const places = ticks.map((tick) => chart.fromTick(tick));
    const next = direction > 0
      ? places.find((place) => place > this.cursor + 0.5)
      : places.findLast((place) => place < this.cursor - 0.5);
    if (next !== undefined) this.setCursor(next);
  }

  // Pointing.

  listen(chart) {
    const { over } = chart;
    const pointers = new Map();
    let moved = false;
    let start = null;
    const at = (event) => {
      const box = over.getBoundingClientRect();
      const x = event.clientX - box.left;
      return { x, y: event.clientY - box.top, place: this.view.from + (x / box.width) * (this.view.to - this.view.from) };
    };
    over.addEventListener("pointerdown", (event) => {
      over.setPointerCapture(event.pointerId);
      pointers.set(event.pointerId, event);
      const { x, y, place } = at(event);
      start = { x, y, bottom: this.bottom, view: { ...this.view }, place, band: event.shiftKey };
      moved = false;
    });
    over.addEventListener("pointermove", (event) => {
      const { x, y, place } = at(event);
      if (!pointers.has(event.pointerId)) {
        this.app.tooltip.point(chart, x, y, event);
        return;
      }
      const before = [...pointers.values()];
      pointers.set(event.pointerId, event);
      if (pointers.size === 2) {
        this.pinch(before, [...pointers.values()], over);
        moved = true;
        return;
      }
      if (Math.abs(x - start.x) < 4 && !moved) return;
      moved = true;
      this.app.tooltip.hide();
      if (start.band) {
        this.band = [start.place, place];
        this.redraw();
      } else {
        const shift = ((start.x - x) / chart.width) * (start.view.to - start.view.from);
        if (this.magnified > 1) this.bottom = start.bottom + ((y - start.y) / chart.height) * (this.top - this.bottom);
        this.setView(start.view.from + shift, start.view.to + shift);
      }
    });
    const end = (event) => {
      if (!pointers.delete(event.pointerId) || pointers.size) return;
      if (this.band) {
        const [from, to] = this.band.sort((one, other) => one - other);
        this.band = null;
        this.setView(from, to);
      } else if (!moved && event.type === "pointerup") {
        const { x, y, place } = at(event);
        const found = chart.hit(x, y);
        this.setCursor(chart.columns?.perColumn > 1 && found ? chart.fromTick(found.tick) : chart.fromTick(Math.floor(chart.toTick(place))));
        if (found?.block) this.app.select(chart.lane, found.block);
      }
    };
    over.addEventListener("pointerup", end);
    over.addEventListener("pointercancel", end);
    over.addEventListener("pointerleave", () => this.app.tooltip.hide());
    over.addEventListener("dblclick", (event) => this.zoom(0.4, at(event).place));
    over.addEventListener("wheel", (event) => {
      const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY);
      // Without a key the wheel belongs to the page, unless the chart was chosen.
      if ((!sideways || event.shiftKey) && !event.ctrlKey && !event.metaKey && document.activeElement !== over) return;
      event.preventDefault();
      if (event.shiftKey) this.magnify(Math.exp(-clamp(event.deltaY || event.deltaX, -120, 120) / 260), this.bottom + (1 - at(event).y / chart.height) * (this.top - this.bottom));
      else if (sideways) this.pan(event.deltaX / chart.width);
      else this.zoom(Math.exp(clamp(event.deltaY, -120, 120) / 260), at(event).place);
    }, { passive: false });
    over.addEventListener("keydown", (event) => this.key(event, chart));
  }

  pinch(before, now, over) {
    const box = over.getBoundingClientRect();
    const span = ([one, other]) => Math.max(8, Math.abs(one.clientX - other.clientX));
    const middle = ([one, other]) => (one.clientX + other.clientX) / 2 - box.left;
    const { from, to } = this.view;
    const about = from + (middle(before) / box.width) * (to - from);
    const width = ((to - from) * span(before)) / span(now);
    const left = about - (middle(now) / box.width) * width;
    this.setView(left, left + width);
  }

  listenOverview() {
    const { overview } = this;
    const move = (event) => {
      if (!event.buttons) return;
      const box = overview.getBoundingClientRect();
      const half = (this.view.to - this.view.from) / 2;
      const about = ((event.clientX - box.left) / box.width) * this.end;
      this.setView(about - half, about + half);
    };
    overview.addEventListener("pointerdown", (event) => {
      overview.setPointerCapture(event.pointerId);
      move(event);
    });
    overview.addEventListener("pointermove", move);
  }

  // Keys. The list that `?` shows is KEYS in panels.js.

  key(event, chart) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const perPixel = (this.view.to - this.view.from) / chart.width;
    const step = Math.max(1, perPixel * (event.shiftKey ? 48 : 6));
    const { lane } = chart;
    const keys = {
      ArrowLeft: () => this.setCursor(this.cursor - step),
      ArrowRight: () => this.setCursor(this.cursor + step),
      ",": () => this.setCursor(chart.fromTick(chart.cursorTick() - 1)),
      ".": () => this.setCursor(chart.fromTick(chart.cursorTick() + 1)),
      ArrowUp: () => (event.shiftKey ? this.lift(0.2) : this.walk(chart, 1)),
      ArrowDown: () => (event.shiftKey ? this.lift(-0.2) : this.walk(chart, -1)),
      h: () => this.magnify(2),
      H: () => this.magnify(0.5),
      PageUp: () => this.pan(-0.5),
      PageDown: () => this.pan(0.5),
      Home: () => this.setCursor(0),
      End: () => this.setCursor(this.end - 1),
      "+": () => this.zoom(0.5, this.cursor),
      "=": () => this.zoom(0.5, this.cursor),
      "-": () => this.zoom(2, this.cursor),
      0: () => this.whole(),
      p: () => this.setCursor(chart.fromTick(lane.info.peak.tick)),
      o: () => this.jump([...lane.ooms.tick], 1, chart),
      O: () => this.jump([...lane.ooms.tick], -1, chart),
      n: () => this.jump([0, ...lane.steps.tick], 1, chart),
      N: () => this.jump([0, ...lane.steps.tick], -1, chart),
      Enter: () => this.app.selected && byId("details").focus(),
      Escape: () => this.app.select(null, null),
    };
    const work = keys[event.key];
    if (!work) return;
    event.preventDefault();
    event.stopPropagation();
    work();
  }

  /** To the block above or below the chosen one, at the cursor. */
  walk(chart, direction) {
    const tick = chart.cursorTick();
    if (!chart.columns?.exact) {
      this.app.say("Blocks are merged at this zoom: zoom in with + first.");
      return;
    }
    const blocks = chart.lane.categories.flatMap((_, place) => (chart.shown[place] ? chart.stackAt(place, tick) : []));
    if (!blocks.length) return;
    const at = blocks.findIndex((block) => block.key === this.app.selectedKey(chart.lane));
    const next = at < 0 ? (direction > 0 ? 0 : blocks.length - 1) : clamp(at + direction, 0, blocks.length - 1);
    this.app.select(chart.lane, blocks[next]);
  }
}
