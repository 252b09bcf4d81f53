// One process on one device: its curves at every zoom, its blocks, and what happened when.

/** From the bottom of the stack to its top: what stays lies low, so that what moves does not move it. */
const STACKING = [
  "parameters", "buffers", "optimizer", "gradients", "inputs", "activations",
  "workspace", "temporary", "unknown", "rounding", "fragmentation",
];
/** By code, as on the wire. */
const CODES = [
  null, "parameters", "gradients", "optimizer", "activations", "inputs", "buffers",
  "workspace", "temporary", "unknown", "rounding", "fragmentation",
];
const ABOUT = {
  parameters: "weights, trained or frozen",
  buffers: "running statistics, masks, caches of modules",
  optimizer: "optimizer state, such as Adam's moments",
  gradients: "gradients of parameters (.grad)",
  inputs: "batches",
  activations: "kept for the backward pass, or passed from module to module",
  workspace: "scratch memory of cuBLAS, cuDNN and others",
  temporary: "allocated and freed within one call, backward pass or step",
  unknown: "of unknown origin",
  rounding: "bytes of blocks beyond the requested size",
  fragmentation: "reserved but unallocated",
};
const PHASES = ["other", "forward", "backward", "optimizer"];
const MARK = { step: 1, phase: 2, oom: 3, begin: 4, end: 5 };
/** Ticks of a window whose curves are counted from the blocks themselves. */
const EXACT_TICKS = 120_000;

class Lane {
  constructor(info) {
    this.info = info;
    this.ticks = info.ticks;
    this.categories = STACKING.filter((name) => info.categories.includes(name));
    this.place = new Map(this.categories.map((name, place) => [name, place]));
    /** For each category's code, its place in the stack. */
    this.placeOfCode = CODES.map((name) => this.place.get(name) ?? -1);
    this.bins = info.levels.map((sections) => sections.map(() => null));
    this.chunks = info.chunks.map(() => null);
    this.pending = new Map();
    this.window = null;
  }

  /** Loads what everything else needs: marks, totals, places. */
  async open() {
    const table = async ({ count: rows, section }, read) => read(await store.section(section), rows);
    const pairs = (columns, rows) => ({ tick: columns.near(rows), value: columns.near(rows) });
    [this.times, this.reserved, this.beyond, this.marks, this.spans, this.places] = await Promise.all([
      table(this.info.times, pairs),
      table(this.info.changes, pairs),
      table(this.info.beyond, pairs),
      table(this.info.marks, (columns, rows) => ({
        tick: columns.near(rows), kind: columns.plain(rows), value: columns.plain(rows), time: columns.near(rows).map((time) => time - 1),
      })),
      table(this.info.spans, (columns, rows) => {
        const born = columns.near(rows);
        const gone = columns.plain(rows);
        for (let row = 0; row < rows; row++) gone[row] += born[row];
        return { born, gone, address: columns.near(rows), bytes: columns.plain(rows), pool: columns.plain(rows), rows };
      }),
      store.section(this.info.places).then(readPlaces),
    ]);
    const of = (kind) => {
      const rows = [];
      for (let row = 0; row < this.marks.tick.length; row++) if (this.marks.kind[row] === kind) rows.push(row);
      const column = (name) => rows.map((row) => this.marks[name][row]);
      return { tick: column("tick"), value: column("value"), time: column("time") };
    };
    this.steps = of(MARK.step);
    this.phases = of(MARK.phase);
    this.ooms = of(MARK.oom);
    this.ranges = rangesOf(this.marks, this.ticks, this.places);
    this.privatePools = this.heldByPrivatePools();
    return this;
  }

  // Loading. Each of these returns whether all is there, and asks for what is not.

  ask(key, load) {
    if (!this.pending.has(key)) {
      const done = load().then(() => this.pending.delete(key));
      done.then(() => this.onLoaded?.(), (error) => this.onFailed?.(error));
      this.pending.set(key, done);
    }
  }

  haveBins(level, from, to) {
    const perSection = this.info.levels[level][0]?.count ?? 1;
    let all = true;
    const last = Math.min(this.bins[level].length - 1, Math.floor((to - 1) / perSection));
    for (let number = Math.max(0, Math.floor(from / perSection)); number <= last; number++) {
      if (this.bins[level][number]) continue;
      all = false;
      this.ask(`bins ${level} ${number}`, async () => {
        const { count: rows, section } = this.info.levels[level][number];
        const columns = await store.section(section);
        const bins = { peak: columns.near(rows), at: [], low: [], high: [] };
        for (const name of this.info.categories) {
          const place = this.place.get(name);
          bins.at[place] = columns.near(rows);
          bins.low[place] = columns.near(rows);
          bins.high[place] = columns.near(rows);
        }
        bins.allocatedLow = columns.near(rows);
        bins.reservedLow = columns.near(rows);
        bins.reservedHigh = columns.near(rows);
        this.bins[level][number] = bins;
      });
    }
    return all;
  }

  /** The chunks with blocks that were there between two ticks and lived at least so long. */
  chunksIn(from, to, leastLife = 0) {
    const numbers = [];
    for (let number = 0; number < this.info.chunks.length; number++) {
      const chunk = this.info.chunks[number];
      const longest = manifest.first_level_max_life * 4 ** chunk.level;
      if (longest >= leastLife && chunk.from < to && chunk.gone > from) numbers.push(number);
    }
    return numbers;
  }

  haveChunks(numbers) {
    let all = true;
    for (const number of numbers) {
      if (this.chunks[number]) continue;
      all = false;
      this.ask(`chunk ${number}`, async () => {
        this.chunks[number] = readChunk(await store.section(this.info.chunks[number].section), this.info.chunks[number].count);
      });
    }
    return all;
  }

  async loadChunks(numbers) {
    while (!this.haveChunks(numbers)) await Promise.all(this.pending.values());
  }

  // The curves.

  /**
   * The curves in columns: column `c` is of the ticks from `edges[c]` to `edges[c + 1]`. Each is what was there at its highest tick.
   * Nothing, where something has still to be loaded.
   */
  columns(edges) {
    const width = edges.length - 1;
    const [from, to] = [Math.floor(edges[0]), Math.ceil(edges[width])];
    return to - from <= EXACT_TICKS ? this.exactColumns(edges, from, to) : this.binnedColumns(edges, from, to);
  }

  newColumns(edges) {
    const width = edges.length - 1;
    return {
      /** The columns in which the lane still goes on. */
      end: edges.findIndex((edge, column) => column === width || edge >= this.ticks),
      at: this.categories.map(() => new Float64Array(width)),
      tick: new Float64Array(width),
      low: new Float64Array(width),
      high: new Float64Array(width),
      reserved: new Float64Array(width),
    };
  }

  binnedColumns(edges, from, to) {
    const width = edges.length - 1;
    // The coarsest level that still has a bin for each column.
    let level = 0;
    let ticks = manifest.finest;
    const perColumn = (to - from) / width;
    while (level + 1 < this.bins.length && ticks * manifest.fanout <= perColumn) {
      ticks *= manifest.fanout;
      level += 1;
    }
    const [first, last] = [Math.max(0, Math.floor(from / ticks)), Math.ceil(to / ticks)];
    if (!this.haveBins(level, first, last)) return null;
    const perSection = this.info.levels[level][0].count;
    const total = this.info.levels[level].reduce((sum, section) => sum + section.count, 0);
    const columns = this.newColumns(edges);
    const fragmentation = this.place.get("fragmentation") ?? -1;
    for (let column = 0; column < columns.end; column++) {
      const begin = clamp(Math.floor(edges[column] / ticks), 0, total - 1);
      const end = clamp(Math.ceil(edges[column + 1] / ticks), begin + 1, total);
      let [most, low, reserved] = [-1, Infinity, 0];
      for (let bin = begin; bin < end; bin++) {
        const section = this.bins[level][Math.floor(bin / perSection)];
        const row = bin % perSection;
        let allocated = 0;
        for (let place = 0; place < section.at.length; place++) if (place !== fragmentation) allocated += section.at[place][row];
        low = Math.min(low, section.allocatedLow[row]);
        reserved = Math.max(reserved, section.reservedHigh[row]);
        if (allocated > most) {
          most = allocated;
          for (let place = 0; place < section.at.length; place++) columns.at[place][column] = section.at[place][row];
          columns.tick[column] = section.peak[row];
        }
      }
      columns.low[column] = low;
      columns.high[column] = most;
      columns.reserved[column] = reserved;
    }
    return Object.assign(columns, { exact: false, perColumn, ticks });
  }

  exactColumns(edges, from, to) {
    const window = this.count(from, to);
    if (!window) return null;
    const width = edges.length - 1;
    const columns = this.newColumns(edges);
    for (let column = 0; column < columns.end; column++) {
      const begin = clamp(Math.floor(edges[column]), window.from, window.to - 1);
      const end = clamp(Math.ceil(edges[column + 1]), begin + 1, window.to);
      let [best, low, reserved] = [begin - window.from, Infinity, 0];
      for (let tick = begin - window.from; tick < end - window.from; tick++) {
        const allocated = window.allocated[tick];
        if (allocated > window.allocated[best]) best = tick;
        low = Math.min(low, allocated);
        reserved = Math.max(reserved, window.reserved[tick]);
      }
      for (let place = 0; place < columns.at.length; place++) columns.at[place][column] = window.curves[place][best];
      columns.tick[column] = window.from + best;
      columns.low[column] = low;
      columns.high[column] = window.allocated[best];
      columns.reserved[column] = reserved;
    }
    return Object.assign(columns, { exact: true, perColumn: (to - from) / width, window });
  }

  /** Every category's bytes at every tick of a window, counted from the blocks. */
  count(from, to) {
    from = clamp(from, 0, this.ticks);
    to = clamp(to, from + 1, Math.max(this.ticks, from + 1));
    const known = this.window;
    if (known && known.from <= from && to <= known.to) return known;
    // A little more on both sides, so that small movements do not count again.
    const more = Math.floor(Math.min(to - from, (EXACT_TICKS - (to - from)) / 2));
    [from, to] = [Math.max(0, from - Math.max(0, more)), Math.min(this.ticks, to + Math.max(0, more))];
    const numbers = this.chunksIn(from, to);
    if (!this.haveChunks(numbers)) return null;
    const length = Math.max(1, to - from);
    const curves = this.categories.map(() => new Float64Array(length + 1));
    const rounding = this.place.get("rounding");
    for (const number of numbers) {
      const chunk = this.chunks[number];
      for (let row = 0; row < chunk.rows; row++) {
        const [born, freed] = [chunk.born[row], chunk.freed[row]];
        if (born >= to || freed <= from) continue;
        const [begin, end] = [Math.max(born - from, 0), Math.min(freed - from, length)];
        const curve = curves[this.placeOfCode[chunk.category[row]]];
        curve[begin] += chunk.asked[row];
        curve[end] -= chunk.asked[row];
        if (rounding !== undefined) {
          curves[rounding][begin] += chunk.rounding[row];
          curves[rounding][end] -= chunk.rounding[row];
        }
      }
    }
    for (const curve of curves) for (let tick = 1; tick <= length; tick++) curve[tick] += curve[tick - 1];
    this.spread(this.beyond, from, length, curves[this.place.get("unknown")]);
    const allocated = new Float64Array(length);
    for (const curve of curves) for (let tick = 0; tick < length; tick++) allocated[tick] += curve[tick];
    const reserved = new Float64Array(length);
    this.spread(this.reserved, from, length, reserved);
    const fragmentation = curves[this.place.get("fragmentation")];
    for (let tick = 0; tick < length; tick++) {
      reserved[tick] = Math.max(reserved[tick], allocated[tick]);
      if (fragmentation) fragmentation[tick] = reserved[tick] - allocated[tick];
    }
    this.window = { from, to, curves, allocated, reserved, chunks: numbers };
    return this.window;
  }

  /** Adds a quantity that is known by its changes. */
  spread({ tick, value }, from, length, onto) {
    if (!onto || !tick.length) return;
    let row = after(tick, from) - 1;
    for (let at = 0; at < length; at++) {
      while (row + 1 < tick.length && tick[row + 1] <= from + at) row += 1;
      if (row >= 0) onto[at] += value[row];
    }
  }

  at({ tick, value }, when) {
    const row = after(tick, when) - 1;
    return row < 0 ? 0 : value[row];
  }

  /** What segments of private pools had, by its changes. */
  heldByPrivatePools() {
    const { spans } = this;
    const isPrivate = this.info.pools.map(({ owner }) => owner.some((part) => part !== "0"));
    const changes = [];
    for (let row = 0; row < spans.rows; row++) {
      if (!isPrivate[spans.pool[row]]) continue;
      changes.push([spans.born[row], spans.bytes[row]], [spans.gone[row], -spans.bytes[row]]);
    }
    changes.sort(([one], [other]) => one - other);
    const held = { tick: [], value: [] };
    let now = 0;
    for (const [tick, bytes] of changes) {
      now += bytes;
      if (held.tick.at(-1) === tick) held.value[held.value.length - 1] = now;
      else {
        held.tick.push(tick);
        held.value.push(now);
      }
    }
    return held;
  }

  /** The most that a quantity known by its changes was between two ticks. */
  mostOf({ tick, value }, from, to) {
    let row = after(tick, from) - 1;
    let most = row < 0 ? 0 : value[row];
    for (row += 1; row < tick.length && tick[row] < to; row++) most = Math.max(most, value[row]);
    return most;
  }

  // Moments.

  get knowsTimes() {
    return this.times.tick.length > 1;
  }

  /** Microseconds since the first event, where times were recorded. */
  timeAt(tick) {
    return this.knowsTimes ? Alignment.map(this.times.tick, this.times.value, tick) : null;
  }

  tickAt(time) {
    return Alignment.map(this.times.value, this.times.tick, time);
  }

  /** The ranges that are open at a tick, the outermost first. */
  rangesAt(tick) {
    return this.ranges.map((row) => row.at(tick)).filter(Boolean);
  }

  /** The step under way, counted from 1, or nothing where none was recorded. */
  stepAt(tick) {
    return this.knowsSteps ? this.at(this.steps, tick) + 1 : null;
  }

  get knowsSteps() {
    return this.steps.tick.length > 0 || this.phases.tick.length > 0;
  }

  phaseAt(tick) {
    return this.phases.tick.length ? PHASES[this.at(this.phases, tick)] : null;
  }

  describe(tick) {
    const parts = [`event ${count(tick)}`];
    const [step, phase] = [this.stepAt(tick), this.phaseAt(tick)];
    if (step !== null) parts.push(`step ${count(step)}`);
    if (phase && phase !== "other") parts.push(phase);
    const time = this.timeAt(tick);
    if (time !== null) parts.push(duration(time));
    const range = this.rangesAt(tick).at(-1);
    if (range) parts.push(range.name);
    return parts.join(" · ");
  }

  /** The blocks in use at a tick, and those that were given back and cannot be used again yet. */
  async liveAt(tick) {
    const numbers = this.chunksIn(tick, tick + 1);
    await this.loadChunks(numbers);
    const live = [];
    for (const number of numbers) {
      const chunk = this.chunks[number];
      for (let row = 0; row < chunk.rows; row++) {
        if (chunk.born[row] <= tick && tick < Math.max(chunk.freed[row], chunk.reusable[row])) live.push(this.block(number, row));
      }
    }
    return live;
  }

  block(number, row) {
    const chunk = this.chunks[number];
    return {
      key: `${number}:${row}`, number, row,
      born: chunk.born[row], freed: chunk.freed[row], reusable: chunk.reusable[row],
      asked: chunk.asked[row], rounding: chunk.rounding[row], address: chunk.address[row],
      category: CODES[chunk.category[row]], stack: chunk.stack[row], module: chunk.module[row],
    };
  }

  line(stack) {
    return this.places.line(stack);
  }

  /** What gives a block its shade: its place in the program, or its module where that is not known. */
  shadeOf(block) {
    return block.stack || this.places.count + block.module;
  }

  module(row) {
    return this.places.texts[row] ?? "";
  }
}

function readChunk(columns, rows) {
  const chunk = { rows, born: columns.near(rows, Uint32Array) };
  chunk.freed = columns.plain(rows, Uint32Array);
  chunk.reusable = columns.plain(rows, Uint32Array);
  for (let row = 0; row < rows; row++) {
    chunk.freed[row] += chunk.born[row];
    chunk.reusable[row] += chunk.freed[row];
  }
  chunk.asked = columns.plain(rows);
  chunk.rounding = columns.plain(rows);
  chunk.address = columns.near(rows);
  chunk.category = columns.plain(rows, Uint8Array);
  chunk.stack = columns.plain(rows, Uint32Array);
  chunk.module = columns.plain(rows, Uint32Array);
  return chunk;
}

function readPlaces(columns) {
  const [frames, stacks] = columns.plain(2);
  const functions = columns.plain(frames);
  const files = columns.plain(frames);
  const lines = columns.plain(frames);
  const own = columns.plain(frames);
  const lengths = columns.plain(stacks);
  const speakers = columns.plain(stacks);
  const [elements] = columns.plain(1);
  const rows = columns.near(elements);
  const texts = JSON.parse(new TextDecoder().decode(columns.rest()));
  const starts = new Float64Array(stacks + 1);
  for (let stack = 0; stack < stacks; stack++) starts[stack + 1] = starts[stack] + lengths[stack];
  const frame = (row) => ({ function: texts[functions[row]], file: texts[files[row]], line: lines[row], own: own[row] === 1 });
  return {
    texts,
    count: stacks,
    frames: (stack) => Array.from(rows.subarray(starts[stack], starts[stack + 1]), frame),
    /** The line that speaks for a stack, as `path:line`, or nothing. */
    line: (stack) => {
      if (!speakers[stack]) return "";
      const { file, line } = frame(speakers[stack] - 1);
      return `${file}:${line}`;
    },
  };
}

/** Ranges of one depth: none of them overlap, and they are sorted. */
class RangeRow {
  constructor() {
    Object.assign(this, { names: [], from: [], to: [], fromTime: [], toTime: [] });
  }

  at(tick) {
    const row = after(this.from, tick) - 1;
    return row >= 0 && tick < this.to[row] ? { name: this.names[row], from: this.from[row], to: this.to[row] } : null;
  }
}

/** What the program announced, row by row: what was open when a range began lies above it. */
function rangesOf(marks, ticks, places) {
  const rows = [];
  /** For each row, the place of the range that is open in it, or -1. */
  const open = [];
  for (let row = 0; row < marks.tick.length; row++) {
    const name = places.texts[marks.value[row]] ?? "";
    if (marks.kind[row] === MARK.begin) {
      let depth = open.findLastIndex((place) => place >= 0) + 1;
      rows[depth] ??= new RangeRow();
      const { names, from, to, fromTime, toTime } = rows[depth];
      names.push(name);
      from.push(marks.tick[row]);
      to.push(ticks);
      fromTime.push(marks.time[row]);
      toTime.push(-1);
      open[depth] = names.length - 1;
    } else if (marks.kind[row] === MARK.end) {
      const depth = open.findLastIndex((place, at) => place >= 0 && rows[at].names[place] === name);
      if (depth < 0) continue;
      rows[depth].to[open[depth]] = marks.tick[row];
      rows[depth].toTime[open[depth]] = marks.time[row];
      open[depth] = -1;
    }
  }
  return rows;
}
