// Colours, and painting columns of stacked bytes pixel by pixel: a frame costs its pixels, however much memory did.

const palette = {
  colours: {},
  dark: false,

  /** Reads the theme's colours. */
  read() {
    const style = getComputedStyle(document.documentElement);
    const hex = (name) => style.getPropertyValue(name).trim();
    for (const name of STACKING) this.colours[name] = rgb(hex(`--${name}`));
    for (const name of ["surface", "ink", "muted", "line", "accent", "bad", "forward", "backward", "step", "pools"]) {
      this.colours[name] = rgb(hex(`--${name}`));
    }
    this.dark = luminance(this.colours.surface) < 0.5;
  },

  css(name, opacity = 1) {
    const [red, green, blue] = this.colours[name];
    return `rgb(${red} ${green} ${blue} / ${opacity})`;
  },
};

function rgb(hex) {
  const number = parseInt(hex.slice(1), 16);
  return [(number >> 16) & 255, (number >> 8) & 255, number & 255];
}

const luminance = ([red, green, blue]) => (0.299 * red + 0.587 * green + 0.114 * blue) / 255;

const mix = (one, other, part) => one.map((value, channel) => Math.round(value + (other[channel] - value) * part));

/** A pixel of an image: the channels lie in the order red, green, blue, opacity. */
const pixel = ([red, green, blue]) => ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;

/** A shade of a category's colour that stays with a place in the program. */
function shade(colour, key) {
  const hash = Math.imul(key + 1, 2654435761) >>> 0;
  const part = ((hash >>> 16) & 7) / 7;
  return mix(colour, part < 0.5 ? [0, 0, 0] : [255, 255, 255], Math.abs(part - 0.5) * (palette.dark ? 0.34 : 0.42));
}

const HUES = STACKING.filter((name) => !["unknown", "rounding", "fragmentation", "workspace"].includes(name));

/** A colour for a place in the program, where categories say too little. */
function hue(key) {
  const hash = Math.imul(key + 1, 2246822519) >>> 0;
  return shade(palette.colours[HUES[(hash >>> 8) % HUES.length]], key);
}

/** Paints the columns of one lane into an image. */
class Painter {
  constructor(lane) {
    this.lane = lane;
    this.shades = new Map();
  }

  /** The pixel values for blocks of one category and place: its own, the line above it, and both where it is not meant. */
  tones(place, key, dim) {
    const name = `${place} ${key} ${dim} ${this.byPlace}`;
    let tones = this.shades.get(name);
    if (!tones) {
      const base = palette.colours[this.lane.categories[place]];
      let colour = key < 0 ? base : this.byPlace ? hue(key) : shade(base, key);
      if (dim) colour = mix(colour, palette.colours.surface, 0.82);
      const edge = mix(colour, palette.dark ? [0, 0, 0] : [255, 255, 255], palette.dark ? 0.32 : 0.45);
      tones = { fill: pixel(colour), edge: pixel(edge), light: pixel(mix(colour, palette.colours.surface, 0.55)) };
      this.shades.set(name, tones);
    }
    return tones;
  }

  /**
   * @param {ImageData} image where to paint
   * @param {object} columns of {@link Lane.columns}
   * @param {object} options bottom and top: bytes at the edges; byPlace: whether places or categories have colours; shown: categories by place; meant: which stacks and modules are looked for;
   *   selected: a block's key
   * @returns {object} how many blocks were painted one by one, and how many in one with others
   */
  paint(image, columns, { bottom: base, top, shown, meant, byPlace, selected }) {
    this.byPlace = byPlace;
    const { width, height } = image;
    const pixels = new Uint32Array(image.data.buffer);
    pixels.fill(0);
    const scale = height / (top - base);
    const y = (bytes) => clamp(height - Math.round((bytes - base) * scale), 0, height);
    const blocks = columns.exact ? new BigBlocks(this.lane, columns, 1 / scale, shown) : null;
    const dim = Boolean(meant);
    const accent = pixel(palette.colours.accent);
    for (let column = 0; column < columns.end; column++) {
      blocks?.advance(columns.tick[column]);
      let bytes = 0;
      let from = height;
      const lowest = y(columns.low[column]);
      for (let place = 0; place < columns.at.length; place++) {
        if (!shown[place]) continue;
        const end = bytes + columns.at[place][column];
        const list = blocks?.lists[place];
        if (list?.length) {
          let [big, any] = [0, 0];
          for (const block of list) big += block.asked;
          any = Math.max(0, columns.at[place][column] - big);
          let at = bytes + any;
          from = this.fill(pixels, width, column, from, y(at), this.tones(place, -1, dim).fill);
          for (const block of list) {
            at += block.asked;
            const to = y(at);
            const tones = this.tones(place, this.lane.shadeOf(block), dim && !meant.has(block));
            const chosen = block.key === selected;
            const fresh = block.column === column && from - to > 2;
            from = this.block(pixels, width, column, from, to, chosen ? accent : fresh ? tones.edge : tones.fill, tones.edge);
          }
        } else {
          const to = y(end);
          const tones = this.tones(place, -1, dim);
          // Above the lowest of the column's ticks the curve comes and goes: that part is lighter.
          const solid = clamp(lowest, to, from);
          if (!dim && columns.perColumn > 1 && solid > to && this.lane.categories[place] !== "fragmentation") {
            this.fill(pixels, width, column, from, solid, tones.fill);
            from = this.fill(pixels, width, column, solid, to, tones.light);
          } else {
            from = this.fill(pixels, width, column, from, to, tones.fill);
          }
        }
        bytes = end;
      }
    }
    return blocks?.tally() ?? { one: 0, merged: null };
  }

  fill(pixels, width, column, from, to, value) {
    const end = Math.max(0, to);
    for (let row = from - 1, at = row * width + column; row >= end; row--, at -= width) pixels[at] = value;
    return Math.min(from, end);
  }

  block(pixels, width, column, from, to, fill, edge) {
    const next = this.fill(pixels, width, column, from, to, fill);
    if (from - next > 2) pixels[next * width + column] = edge;
    return next;
  }
}

/** The blocks of a window that are high enough to be seen, tick by tick. */
class BigBlocks {
  constructor(lane, columns, least, shown) {
    this.lane = lane;
    this.least = least;
    this.lists = lane.categories.map(() => []);
    this.waiting = [];
    const first = columns.tick[0];
    const last = columns.tick[Math.max(0, columns.end - 1)];
    this.small = 0;
    for (const number of columns.window.chunks) {
      const chunk = lane.chunks[number];
      for (let row = 0; row < chunk.rows; row++) {
        if (chunk.born[row] > last || chunk.freed[row] <= first) continue;
        if (chunk.asked[row] < least) {
          this.small += 1;
          continue;
        }
        const place = lane.placeOfCode[chunk.category[row]];
        if (!shown[place]) continue;
        this.waiting.push({
          born: chunk.born[row], freed: chunk.freed[row], asked: chunk.asked[row], place,
          stack: chunk.stack[row], module: chunk.module[row], number, row, key: `${number}:${row}`, column: -1,
        });
      }
    }
    this.waiting.sort((one, other) => one.born - other.born || one.number - other.number || one.row - other.row);
    this.next = 0;
    this.column = -1;
    this.painted = 0;
    this.ends = Infinity;
  }

  /** Moves on to a later tick. */
  advance(tick) {
    this.column += 1;
    if (this.ends <= tick) {
      this.ends = Infinity;
      for (let place = 0; place < this.lists.length; place++) {
        this.lists[place] = this.lists[place].filter((block) => block.freed > tick);
        for (const block of this.lists[place]) this.ends = Math.min(this.ends, block.freed);
      }
    }
    for (; this.next < this.waiting.length && this.waiting[this.next].born <= tick; this.next++) {
      const block = this.waiting[this.next];
      if (block.freed <= tick) continue;
      block.column = this.column || -1;
      this.painted += 1;
      this.lists[block.place].push(block);
      this.ends = Math.min(this.ends, block.freed);
    }
  }

  tally() {
    return { one: this.painted, merged: this.small + this.waiting.length - this.painted };
  }
}
