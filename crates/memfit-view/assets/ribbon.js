// The area below a chart: phases, steps, ranges that the program announced, and the axis.

const RIBBON = { phases: 6, gap: 2, steps: 18, range: 15, axis: 18 };
/** More ranges within ranges than this are named under the pointer only. */
const RANGE_ROWS = 4;

class Ribbon {
  constructor(chart) {
    this.chart = chart;
    this.canvas = el("canvas.ribbon", { "aria-hidden": "true" });
  }

  get rows() {
    return this.chart.lane.ranges.slice(0, RANGE_ROWS);
  }

  get height() {
    const { lane } = this.chart;
    const phases = lane.phases.tick.length ? RIBBON.phases + RIBBON.gap : 0;
    const steps = lane.steps.tick.length ? RIBBON.steps + RIBBON.gap : 0;
    return phases + steps + this.rows.length * RIBBON.range + RIBBON.axis;
  }

  resize(width, ratio) {
    this.canvas.style.height = `${this.height}px`;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(this.height * ratio);
  }

  draw() {
    const { ratio, width, lane } = this.chart;
    const context = this.canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, this.height);
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    let y = 0;
    if (lane.phases.tick.length) {
      this.drawPhases(context, y);
      y += RIBBON.phases + RIBBON.gap;
    }
    if (lane.steps.tick.length) {
      this.drawSteps(context, y);
      y += RIBBON.steps + RIBBON.gap;
    }
    for (const row of this.rows) {
      this.drawRanges(context, y, row);
      y += RIBBON.range;
    }
    this.drawAxis(context, y);
  }

  /** Where the row of some marks begins; the end of all behind the last. */
  at({ tick, time }, row) {
    return row < tick.length ? this.chart.xOf(tick[row], time[row]) : this.chart.x(this.chart.lane.ticks);
  }

  /** Phases: neighbours that share a pixel are drawn once. */
  drawPhases(context, y) {
    const { lane, width } = this.chart;
    const { phases } = lane;
    const names = { 1: "forward", 2: "backward", 3: "optimizer" };
    let drawn = -1;
    for (let row = 0; row < phases.tick.length; row++) {
      const name = names[phases.value[row]];
      const [from, to] = [Math.max(0, this.at(phases, row)), Math.min(width, this.at(phases, row + 1))];
      if (!name || to <= drawn || from > width) continue;
      context.fillStyle = palette.css(name);
      context.fillRect(Math.max(from, drawn), y, Math.max(0.5, to - Math.max(from, drawn)), RIBBON.phases);
      drawn = Math.max(drawn, to);
    }
  }

  drawSteps(context, y) {
    const { lane, width } = this.chart;
    const { steps } = lane;
    const bounds = { tick: [0, ...steps.tick], time: [0, ...steps.time] };
    let lastLabel = -Infinity;
    let parity = 0;
    for (let row = 0; row < bounds.tick.length; row++) {
      const [from, to] = [this.at(bounds, row), this.at(bounds, row + 1)];
      parity ^= 1;
      if (to < 0 || from > width || to - from < 0.75) continue;
      context.fillStyle = palette.css("step", parity ? 0.16 : 0.07);
      context.fillRect(from, y, to - from, RIBBON.steps);
      const label = `step ${count(row + 1)}`;
      const left = Math.max(from, 0) + 5;
      if (Math.min(to, width) - left > context.measureText(label).width + 4 && left > lastLabel) {
        context.fillStyle = palette.css("muted");
        context.fillText(label, left, y + RIBBON.steps / 2 + 0.5);
        lastLabel = left + context.measureText(label).width;
      }
    }
    const [lastTick, all] = [this.at(steps, 0), steps.tick.length];
    if (width / all < 0.75 && lastTick < width) {
      context.fillStyle = palette.css("muted");
      context.fillText(`${count(all)} steps`, 5, y + RIBBON.steps / 2 + 0.5);
    }
  }

  /** Ranges of one depth. Those that share a pixel with the one before are passed over, so that a frame costs its pixels. */
  drawRanges(context, y, { names, from, to, fromTime, toTime }) {
    const { chart } = this;
    const { timeline, width } = chart;
    const ends = chart.toTick(timeline.view.to);
    const height = RIBBON.range - 2;
    let row = Math.max(0, after(from, chart.toTick(timeline.view.from)) - 1);
    let pixel = 0;
    while (row < from.length && from[row] < ends) {
      const [left, right] = [Math.max(0, chart.xOf(from[row], fromTime[row])), Math.min(width, chart.xOf(to[row], toTime[row]))];
      if (right > pixel && right > 0) {
        const begin = Math.max(left, pixel);
        context.fillStyle = palette.css("accent", 0.16);
        context.fillRect(begin, y + 1, Math.max(0.75, right - begin - 1), height);
        if (right - left > 3) {
          context.fillStyle = palette.css("accent", 0.7);
          context.fillRect(left, y + 1, 1.5, height);
        }
        this.name(context, names[row], left + 5, right - left - 9, y + 1 + height / 2);
        pixel = right;
      }
      const next = Math.max(row + 1, after(from, chart.toTick(timeline.view.from + (Math.ceil(pixel) * (timeline.view.to - timeline.view.from)) / width)) - 1);
      row = next;
    }
  }

  /** As much of a name as there is room for. */
  name(context, name, x, room, y) {
    if (room < 14 || !name) return;
    let shown = name;
    if (context.measureText(shown).width > room) {
      const each = context.measureText(name).width / name.length;
      shown = `${name.slice(0, Math.max(0, Math.floor(room / each) - 1))}…`;
      if (shown.length < 3) return;
    }
    context.fillStyle = palette.css("ink", 0.85);
    context.fillText(shown, x, y + 0.5);
  }

  drawAxis(context, y) {
    const { timeline, width } = this.chart;
    const { from, to } = timeline.view;
    const byTime = timeline.axis === "time";
    const step = decimalStep(((to - from) * 96) / width, byTime ? 0.001 : 1);
    context.textAlign = "center";
    for (let at = Math.ceil(from / step) * step; at <= to; at += step) {
      const x = ((at - from) / (to - from)) * width;
      context.fillStyle = palette.css("muted", 0.6);
      context.fillRect(Math.round(x), y, 1, 4);
      const text = byTime ? duration(at, step) : count(at);
      const half = context.measureText(text).width / 2;
      if (x - half < 0 || x + half > width) continue;
      context.fillStyle = palette.css("muted");
      context.fillText(text, x, y + 11);
    }
    context.textAlign = "left";
  }
}

/** A step of one, two or five times a power of ten. */
function decimalStep(least, smallest) {
  const power = 10 ** Math.floor(Math.log10(Math.max(least, smallest)));
  const step = [1, 2, 5, 10].map((times) => times * power).find((one) => one >= least) ?? 10 * power;
  return Math.max(step, smallest);
}
