// Data of the page: the manifest and the sections, which are in the file or come from the server.

function fromBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const letters = atob(text);
  const bytes = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i++) bytes[i] = letters.charCodeAt(i);
  return bytes;
}

const manifest = JSON.parse(new TextDecoder().decode(fromBase64(byId("manifest").textContent)));

/** Sections, unpacked. */
const store = {
  waiting: new Map(),

  /** A section's columns. Each caller gets a reader of its own. */
  async section(number) {
    if (!this.waiting.has(number)) this.waiting.set(number, this.load(number));
    const bytes = await this.waiting.get(number);
    this.waiting.delete(number);
    return new Columns(bytes);
  },

  async load(number) {
    const inFile = byId(`section-${number}`);
    const packed = inFile
      ? new Blob([fromBase64(inFile.textContent)]).stream()
      : (await this.fetch(`section/${number}`)).body;
    const unpacked = packed.pipeThrough(new DecompressionStream("deflate-raw"));
    return new Uint8Array(await new Response(unpacked).arrayBuffer());
  },

  async fetch(path) {
    const answer = await fetch(path);
    if (!answer.ok) throw new Error(`the server answered ${answer.status}; it may have ended`);
    return answer;
  },
};

/** Reads columns: a byte for the width, then the lowest bytes of all numbers, then the next ones. */
class Columns {
  constructor(bytes) {
    this.bytes = bytes;
    this.at = 0;
  }

  /** Numbers up to 2^53 - 1, or 32-bit ones where the array can only hold these. */
  plain(length, Kind = Float64Array) {
    const width = this.bytes[this.at];
    const { bytes } = this;
    const values = new Kind(length);
    let at = this.at + 1;
    let scale = 1;
    for (let place = 0; place < width; place++) {
      for (let row = 0; row < length; row++) values[row] += bytes[at + row] * scale;
      at += length;
      scale *= 256;
    }
    this.at = at;
    return values;
  }

  /** Numbers that were written as differences, with the sign in the lowest bit. */
  near(length, Kind = Float64Array) {
    const coded = this.plain(length);
    const values = new Kind(length);
    let value = 0;
    for (let row = 0; row < length; row++) {
      const half = Math.floor(coded[row] / 2);
      value += coded[row] % 2 ? -half - 1 : half;
      values[row] = value;
    }
    return values;
  }

  rest() {
    return this.bytes.subarray(this.at);
  }
}
