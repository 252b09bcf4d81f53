// The allocator's state at a moment: every segment to scale, what lies in it, and the holes.

const ROW = 22;
const ROW_GAP = 4;
/** Segments in the table that are shown at first. */
const FEW_SEGMENTS = 40;

/** The segments at a tick with what lies in each: blocks in use, blocks that other streams still use, and holes. */
function segmentsAt(lane, tick, blocks) {
  const { spans } = lane;
  const segments = [];
  for (let row = 0; row < spans.rows; row++) {
    if (spans.born[row] > tick || spans.gone[row] <= tick) continue;
    segments.push({ address: spans.address[row], bytes: spans.bytes[row], pool: spans.pool[row], parts: [], used: 0, pending: 0, holes: 0, largest: 0 });
  }
  segments.sort((one, other) => one.address - other.address);
  const starts = segments.map((segment) => segment.address);
  let outside = 0;
  for (const block of [...blocks].sort((one, other) => one.address - other.address)) {
    const segment = segments[after(starts, block.address) - 1];
    const bytes = block.asked + block.rounding;
    if (!segment || block.address + bytes > segment.address + segment.bytes) {
      outside += bytes;
      continue;
    }
    const pending = tick >= block.freed;
    segment.parts.push({ from: block.address - segment.address, bytes, block, pending });
    if (pending) segment.pending += bytes;
    else segment.used += bytes;
  }
  for (const segment of segments) {
    let at = 0;
    const holes = [];
    for (const part of [...segment.parts, { from: segment.bytes, bytes: 0 }]) {
      if (part.from > at) holes.push({ from: at, bytes: part.from - at, hole: true });
      at = Math.max(at, part.from + part.bytes);
    }
    segment.holes = holes.length;
    segment.free = holes.reduce((sum, hole) => sum + hole.bytes, 0);
    segment.largest = holes.reduce((most, hole) => Math.max(most, hole.bytes), 0);
    segment.parts.push(...holes);
  }
  return { segments, outside };
}

function poolName(pool) {
  if (!pool) return "segments";
  const owner = pool.owner[0] === "0" && pool.owner[1] === "0" ? "default pool" : `private pool ${pool.owner.join(".")}`;
  const stream = pool.stream === "0" ? "default stream" : `stream ${pool.stream}`;
  return `${owner} · ${stream} · ${pool.small === null ? "requests of any size" : pool.small ? "small requests" : "large requests"}${pool.expandable ? " · expandable" : ""}`;
}

class Allocator {
  constructor(app) {
    this.app = app;
    this.head = el("div.figures.small");
    this.pools = el("div");
    this.table = el("details.scroll");
    this.element = el("div", {}, this.head, this.legend(), this.pools, this.table);
    new ResizeObserver(() => this.layouts?.forEach((layout) => this.paint(layout))).observe(this.pools);
  }

  legend() {
    return el("p.note.keyed", {},
      el("span.swatch", { colour: "var(--activations)" }), this.inUse = el("span", {}, "in use "),
      el("span.swatch.pending"), "freed, but still in use by another stream ",
      el("span.swatch.hole"), "free. Each bar is a segment, to scale; long ones continue in the next row.");
  }

  show(lane, tick, blocks) {
    this.lane = lane;
    if (!lane.spans.rows) {
      this.head.replaceChildren();
      this.pools.replaceChildren(el("p.empty", {}, "This recording has no addresses of segments, only blocks and the reserved total. A PyTorch memory snapshot has both."));
      this.table.hidden = true;
      this.layouts = [];
      return;
    }
    const { segments, outside } = segmentsAt(lane, tick, blocks);
    const sum = (field) => segments.reduce((total, segment) => total + segment[field], 0);
    const [reserved, free, largest] = [sum("bytes"), sum("free"), segments.reduce((most, segment) => Math.max(most, segment.largest), 0)];
    const figure = (name, value, note) => el("div.figure", {}, el("dt", {}, name), el("dd", {}, value), note ? el("p", {}, note) : null);
    this.head.replaceChildren(
      figure("reserved", size(reserved), many(segments.length, "segment")),
      figure("in use", size(sum("used")), share(sum("used"), reserved)),
      figure("free inside", size(free), `${share(free, reserved)} in ${many(sum("holes"), "hole")}`),
      figure("largest hole", size(largest), free ? `${share(largest, free)} of what is free` : ""),
      sum("pending") ? figure("waiting for streams", size(sum("pending")), "") : "",
      outside ? figure("outside segments", size(outside), "blocks that fit no segment") : "");
    const groups = new Map();
    for (const segment of segments) groups.set(segment.pool, [...(groups.get(segment.pool) ?? []), segment]);
    const biggest = Math.max(1, ...[...groups.values()].map((group) => group.reduce((total, segment) => total + segment.bytes, 0)));
    this.layouts = [...groups].map(([pool, group]) => this.group(lane.info.pools[pool], group, biggest));
    this.pools.replaceChildren(...this.layouts.map((layout) => layout.element));
    this.layouts.forEach((layout) => this.paint(layout));
    this.drawTable(segments);
  }

  group(pool, segments, biggest) {
    const total = segments.reduce((sum, segment) => sum + segment.bytes, 0);
    const free = segments.reduce((sum, segment) => sum + segment.free, 0);
    const canvas = el("canvas.segments", { role: "img", "aria-label": `${poolName(pool)}: ${many(segments.length, "segment")}, ${size(total)}, of which ${size(free)} free` });
    const layout = { canvas, segments, total, biggest, larger: el("span") };
    const point = (event) => {
      const box = canvas.getBoundingClientRect();
      const found = this.find(layout, event.clientX - box.left, event.clientY - box.top);
      if (!found) this.app.tooltip.hide();
      else if (found.part.hole) this.app.tooltip.show(event, `free: ${size(found.part.bytes)}`, `in a segment of ${size(found.segment.bytes)}`);
      else this.app.tooltip.block(event, this.lane, found.part.block, found.part.pending ? "freed, but still in use by another stream" : null);
      return found;
    };
    canvas.addEventListener("pointermove", point);
    canvas.addEventListener("pointerleave", () => this.app.tooltip.hide());
    canvas.addEventListener("click", (event) => {
      const found = point(event);
      if (found && !found.part.hole) this.app.select(this.lane, found.part.block);
    });
    layout.element = el("div.pool", {}, el("h4", {}, poolName(pool)), el("p.muted", {}, `${many(segments.length, "segment")}, ${size(total)}, ${size(free)} free`, layout.larger), canvas);
    return layout;
  }

  /** Places the segments one after another, row by row, all pools to one scale but those that it would hide. */
  paint(layout) {
    const width = Math.max(200, this.pools.clientWidth);
    const ratio = Math.min(window.devicePixelRatio || 1, 2);
    // So many rows that a small pool of a large allocator can still be seen.
    const usual = layout.biggest / clamp(Math.ceil(layout.segments.length / 12), 3, 10);
    const perRow = Math.min(usual, layout.total);
    layout.larger.textContent = usual > perRow * 1.5 ? ` · drawn ${count(usual / perRow)} times larger than the others` : "";
    layout.scale = width / perRow;
    layout.pieces = [];
    let [x, row] = [0, 0];
    for (const segment of layout.segments) {
      let done = 0;
      while (done < segment.bytes) {
        if (width - x < 1) [x, row] = [0, row + 1];
        const room = (width - x) / layout.scale;
        const bytes = Math.min(segment.bytes - done, room);
        const wide = Math.max(1, bytes * layout.scale);
        layout.pieces.push({ segment, from: done, bytes, x, y: row * (ROW + ROW_GAP), width: wide });
        done += bytes;
        if (segment.bytes - done < 1) done = segment.bytes;
        x += wide;
      }
      x += 2;
    }
    const height = (row + 1) * (ROW + ROW_GAP);
    const { canvas } = layout;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = `${height}px`;
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    for (const piece of layout.pieces) this.paintPiece(context, layout, piece);
  }

  paintPiece(context, layout, piece) {
    context.fillStyle = palette.css("fragmentation");
    context.fillRect(piece.x, piece.y, piece.width, ROW);
    for (const part of piece.segment.parts) {
      if (part.hole) continue;
      const from = Math.max(part.from, piece.from);
      const to = Math.min(part.from + part.bytes, piece.from + piece.bytes);
      if (to <= from) continue;
      const x = piece.x + (from - piece.from) * layout.scale;
      const width = (to - from) * layout.scale;
      const colour = part.pending ? palette.colours.muted : this.app.colour === "place" ? hue(this.lane.shadeOf(part.block)) : shade(palette.colours[part.block.category], this.lane.shadeOf(part.block));
      const chosen = part.block.key === this.app.selectedKey(this.lane);
      context.fillStyle = chosen ? palette.css("accent") : `rgb(${colour.join(" ")})`;
      context.fillRect(x, piece.y, Math.max(width - (width > 3 ? 0.75 : 0), 0.3), ROW);
      if (part.pending) hatch(context, x, piece.y, width, ROW);
    }
    context.strokeStyle = palette.css("ink", 0.45);
    context.lineWidth = 1;
    if (piece.width > 2) context.strokeRect(piece.x + 0.5, piece.y + 0.5, piece.width - 1, ROW - 1);
  }

  find(layout, x, y) {
    const piece = layout.pieces.find((one) => x >= one.x && x < one.x + one.width && y >= one.y && y < one.y + ROW);
    if (!piece) return null;
    const at = piece.from + (x - piece.x) / layout.scale;
    const part = piece.segment.parts.find((one) => at >= one.from && at < one.from + one.bytes);
    return part ? { part, segment: piece.segment } : null;
  }

  drawTable(segments) {
    this.table.hidden = false;
    const row = (segment) => el("tr", {}, el("td", {}, el("code", {}, `0x${segment.address.toString(16)}`)),
      el("td", {}, poolName(this.lane.info.pools[segment.pool])),
      ...[segment.bytes, segment.used, segment.pending, segment.free, segment.largest].map((bytes) => el("td.number", {}, size(bytes))),
      el("td.number", {}, count(segment.holes)));
    const order = [...segments].sort((one, other) => other.free - one.free);
    const body = el("tbody", {}, ...order.slice(0, FEW_SEGMENTS).map(row));
    const more = order.length - FEW_SEGMENTS;
    this.table.replaceChildren(el("summary", {}, "As a table"),
      el("table", {}, el("caption", {}, "Segments, those with most free memory first"),
        el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "address"), el("th", { scope: "col" }, "pool"),
          ...["size", "in use", "waiting", "free", "largest hole", "holes"].map((name) => el("th.number", { scope: "col" }, name)))), body),
      more > 0 ? el("button", { onclick: (event) => { body.append(...order.slice(FEW_SEGMENTS).map(row)); event.target.remove(); } }, `Show ${many(more, "more segment")}`) : "");
  }
}

function hatch(context, x, y, width, height) {
  context.save();
  context.beginPath();
  context.rect(x, y, width, height);
  context.clip();
  context.strokeStyle = palette.css("surface", 0.7);
  context.beginPath();
  for (let at = x - height; at < x + width; at += 5) {
    context.moveTo(at, y + height);
    context.lineTo(at + height, y);
  }
  context.stroke();
  context.restore();
}
