// Contents of the memory at a moment: categories, modules and lines as a tree, as boxes and as a table.

const ORDERS = {
  "category, module, line": ["category", "module", "line"],
  "module, category, line": ["module", "category", "line"],
  "line, category": ["line", "category"],
};
/** Rows of the table that are shown at first. */
const FEW_ROWS = 25;

/** Groups blocks. What they have beyond what was asked for is a branch of its own, so that the tree sums to what was allocated. */
function growTree(lane, blocks, order, extra) {
  const root = { name: "all", bytes: 0, blocks: 0, children: new Map(), path: [] };
  const add = (path, bytes, number, category) => {
    let node = root;
    node.bytes += bytes;
    node.blocks += number;
    path.forEach((name, depth) => {
      let child = node.children.get(name);
      if (!child) {
        child = { name, bytes: 0, blocks: 0, children: new Map(), path: path.slice(0, depth + 1), category };
        node.children.set(name, child);
      }
      if (child.category !== category) child.category = null;
      child.bytes += bytes;
      child.blocks += number;
      node = child;
    });
  };
  let rounding = 0;
  for (const block of blocks) {
    const names = { category: block.category, module: lane.module(block.module) || "no module", line: lane.line(block.stack) || "no line known" };
    add(order.map((kind) => names[kind]), block.asked, 1, block.category);
    rounding += block.rounding;
  }
  if (rounding) add(["rounding"], rounding, 0, "rounding");
  for (const [name, bytes] of Object.entries(extra)) if (bytes > 0) add([name], bytes, 0, name === "beyond blocks" ? "unknown" : name);
  return root;
}

const sorted = (node) => [...node.children.values()].sort((one, other) => other.bytes - one.bytes || (one.name < other.name ? -1 : 1));

class Tree {
  constructor(app) {
    this.app = app;
    this.order = "category, module, line";
    this.path = [];
    this.boxes = el("div.icicle", { role: "tree", "aria-label": "What filled the memory, as boxes as wide as their bytes" });
    this.crumbs = el("p.crumbs");
    this.table = el("div.scroll");
    this.choice = el("select", { "aria-label": "Order of the tree", onchange: (event) => { this.order = event.target.value; this.path = []; this.draw(); } },
      ...Object.keys(ORDERS).map((name) => el("option", { value: name }, `by ${name}`)));
    this.element = el("div", {}, el("div.bar", {}, this.choice, this.crumbs), this.boxes, this.table);
    this.boxes.addEventListener("keydown", (event) => this.key(event));
  }

  show(lane, blocks, extra) {
    Object.assign(this, { lane, blocks, extra });
    this.known = { category: true, module: blocks.some((block) => block.module), line: blocks.some((block) => lane.line(block.stack)) };
    this.draw();
  }

  /** The levels, without those of which the recording tells nothing. */
  levels() {
    return ORDERS[this.order].filter((kind) => this.known[kind]);
  }

  draw() {
    if (!this.blocks) return;
    const root = growTree(this.lane, this.blocks, this.levels(), this.extra);
    let node = root;
    const path = [];
    for (const name of this.path) {
      const child = node.children.get(name);
      if (!child) break;
      node = child;
      path.push(name);
    }
    this.path = path;
    this.crumbs.replaceChildren(...["all", ...path].flatMap((name, depth) => [
      depth ? " › " : "",
      el("button.link", { "aria-current": depth === path.length ? "true" : null, onclick: () => { this.path = path.slice(0, depth); this.draw(); } }, nameOf(name)),
    ]), ` ${size(node.bytes)} in ${many(node.blocks, "block")}`);
    const depth = this.levels().length - path.length;
    this.boxes.replaceChildren(this.box(node, node, root, 0, depth));
    this.boxes.querySelector("button")?.setAttribute("tabindex", "0");
    this.drawTable(node, root);
  }

  box(node, whole, root, level, depth) {
    const part = node.bytes / Math.max(1, whole.bytes);
    const title = `${nameOf(node.name)}: ${size(node.bytes)}, ${share(node.bytes, root.bytes)}, ${many(node.blocks, "block")}`;
    const button = el("button.node", {
      tabindex: "-1", role: "treeitem", "aria-level": String(level + 1), "aria-expanded": node.children.size ? "true" : null, title, "aria-label": title,
      colour: node.category ? `var(--${node.category})` : "var(--line)",
      onclick: () => this.open(node),
    }, el("span.name", {}, el("bdi", {}, nameOf(node.name))), el("span.bytes", {}, size(node.bytes)));
    const children = [];
    if (level < depth) {
      let [rest, hidden] = [0, 0];
      for (const child of sorted(node)) {
        if (child.bytes / Math.max(1, whole.bytes) < 0.004) {
          rest += child.bytes;
          hidden += 1;
        } else {
          children.push(this.box(child, whole, root, level + 1, depth));
        }
      }
      if (hidden) {
        const text = `${many(hidden, "smaller one")}: ${size(rest)}`;
        children.push(el("div.branch", { style: { flexGrow: String(rest) } }, el("span.rest", { title: text }, text)));
      }
    }
    return el("div.branch", { role: "none", style: { flexGrow: String(Math.max(node.bytes, 1)), flexBasis: level ? "0" : `${part * 100}%` } },
      button, children.length ? el("div.children", { role: "group" }, ...children) : null);
  }

  open(node) {
    if (node.children.size && node.path.length) {
      this.path = node.path;
      this.draw();
      this.boxes.querySelector("button")?.focus();
    } else if (node.path.length) {
      this.app.search.set(node.name);
    } else {
      this.path = this.path.slice(0, -1);
      this.draw();
      this.boxes.querySelector("button")?.focus();
    }
  }

  /** Up and down go through the boxes; left leads out, as Escape does. */
  key(event) {
    const all = [...this.boxes.querySelectorAll("button.node")];
    const at = all.indexOf(document.activeElement);
    const to = { ArrowDown: at + 1, ArrowRight: at + 1, ArrowUp: at - 1, Home: 0, End: all.length - 1 }[event.key];
    if (to !== undefined) {
      event.preventDefault();
      all[clamp(to, 0, all.length - 1)]?.focus();
    } else if (event.key === "ArrowLeft" || event.key === "Escape" || event.key === "Backspace") {
      event.preventDefault();
      this.path = this.path.slice(0, -1);
      this.draw();
      this.boxes.querySelector("button")?.focus();
    }
  }

  drawTable(node, root) {
    const leaves = [];
    const collect = (branch) => (branch.children.size ? branch.children.forEach(collect) : leaves.push(branch));
    collect(node);
    leaves.sort((one, other) => other.bytes - one.bytes);
    const order = this.levels();
    const row = (leaf) => el("tr", {},
      ...order.map((kind, depth) => el(`td.${kind}`, {}, this.cell(kind, leaf.path[depth], leaf))),
      el("td.number", {}, leaf.blocks ? count(leaf.blocks) : ""), el("td.number", {}, size(leaf.bytes)), el("td.number", {}, share(leaf.bytes, root.bytes)));
    const body = el("tbody", {}, ...leaves.slice(0, FEW_ROWS).map(row));
    const more = leaves.length - FEW_ROWS;
    this.table.replaceChildren(
      el("table", {}, el("caption", {}, "As a table, largest first"),
        el("thead", {}, el("tr", {}, ...order.map((kind) => el("th", { scope: "col" }, kind)), ...["blocks", "size", "share"].map((name) => el("th.number", { scope: "col" }, name)))), body),
      more > 0 ? el("button", { onclick: (event) => { body.append(...leaves.slice(FEW_ROWS).map(row)); event.target.remove(); } }, `Show ${many(more, "more row")}`) : "");
  }

  cell(kind, name, leaf) {
    if (name === undefined) return "";
    if (kind === "category") return [el("span.swatch", { colour: `var(--${leaf.category ?? "unknown"})` }), name];
    if (name.startsWith("no ")) return el("span.muted", {}, name);
    return el("button.link", { title: name, onclick: () => this.app.search.set(name) }, nameOf(name));
  }
}

/** Paths are cut to their last parts; the whole is in the title. */
const nameOf = (name) => (name.includes("/") ? shortPath(name) : name);
