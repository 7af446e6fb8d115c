// Search over regions, nodes, operators and tensors; what is chosen is opened and selected.

const MOST_FOUND = 40;

class Search {
  constructor(field, list, page) {
    Object.assign(this, { field, list, page, found: [], chosen: 0 });
    field.addEventListener("input", () => this.find());
    field.addEventListener("focus", () => this.find());
    // A click into the list comes after the blur. Who has come back to the field by then keeps the list.
    field.addEventListener("blur", () => setTimeout(() => document.activeElement !== field && this.hide(), 150));
    field.addEventListener("keydown", (event) => this.press(event));
  }

  press(event) {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      const step = event.key === "ArrowDown" ? 1 : -1;
      this.chosen = (this.chosen + step + this.found.length) % Math.max(1, this.found.length);
      this.mark();
    } else if (event.key === "Enter" && this.found[this.chosen]) this.go(this.found[this.chosen]);
    else if (event.key === "Escape") { this.field.value = ""; this.hide(); byId("graph").focus(); } else return;
    event.preventDefault();
  }

  find() {
    const wanted = this.field.value.trim().toLowerCase();
    this.found = wanted ? this.collect(wanted) : [];
    this.chosen = 0;
    this.list.replaceChildren(...this.found.map((each, at) => make("li", { id: `found-${at}`, attributes: { role: "option" }, on: { mousedown: (event) => { event.preventDefault(); this.go(each); } } },
      make("span", { className: "name", text: shorten(each.text, 64) }), make("span", { className: "kind", text: each.kind }))));
    if (wanted && !this.found.length) this.list.replaceChildren(make("li", { className: "soft", text: "Nothing has this in its name." }));
    this.list.hidden = !wanted;
    this.field.setAttribute("aria-expanded", String(Boolean(wanted)));
    this.mark();
  }

  /** The best matches: regions, then whole names, then beginnings, then parts of names. */
  collect(wanted) {
    const ranked = [[], [], []];
    const add = (text, kind, go) => {
      const name = text.toLowerCase();
      const rank = name === wanted ? 0 : name.startsWith(wanted) ? 1 : name.includes(wanted) ? 2 : -1;
      if (rank >= 0 && ranked[rank].length < MOST_FOUND) ranked[rank].push({ text, kind, go });
    };
    const { picture, tables } = this.page;
    for (const graph of tables.graphs) {
      graph.regions.forEach((region, number) => add(region.name, "region", () => picture.revealRegion(graph, number)));
    }
    for (const graph of tables.graphs) {
      const operators = tables.doc.operators.map((each) => each.name.toLowerCase());
      for (let node = 0; node < graph.nodes.names.length; node++) {
        if (graph.unitOf[node] < 0) continue;
        const operator = graph.nodes.operators[node];
        const where = `${tables.doc.operators[operator].name} on ${tables.devices[graph.device(graph.unitOf[node])]}`;
        const go = () => picture.reveal(graph, node);
        if (operators[operator] === wanted && ranked[1].length < MOST_FOUND) ranked[1].push({ text: graph.name(node), kind: where, go });
        else add(graph.name(node), where, go);
      }
    }
    for (const graph of tables.graphs) {
      graph.raw.tensors.names.forEach((name, number) => add(name, "tensor", () => {
        const node = graph.producer[number] >= 0 ? graph.producer[number] : (graph.readers.get(number) || [-1])[0];
        if (node >= 0) picture.reveal(graph, node);
        this.page.showTensor(graph, number);
      }));
    }
    return ranked.flat().slice(0, MOST_FOUND);
  }

  go(each) {
    this.hide();
    this.field.value = "";
    byId("graph").focus({ preventScroll: true });
    each.go();
  }

  mark() {
    [...this.list.children].forEach((item, at) => item.setAttribute("aria-selected", String(at === this.chosen)));
    this.field.setAttribute("aria-activedescendant", this.found.length ? `found-${this.chosen}` : "");
    const item = this.list.children[this.chosen];
    if (item) item.scrollIntoView({ block: "nearest" });
  }

  hide() {
    this.list.hidden = true;
    this.field.setAttribute("aria-expanded", "false");
  }
}

async function start() {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  document.documentElement.dataset.theme = dark.matches ? "dark" : "light";
  try {
    const page = new Page(new Tables(await readData()));
    page.setTheme(document.documentElement.dataset.theme);
    dark.addEventListener("change", (event) => page.setTheme(event.matches ? "dark" : "light"));
    window.byocPage = page;
    document.documentElement.dataset.ready = "yes";
  } catch (error) {
    byId("verdict").replaceChildren(make("span", { className: "chip bad", text: `This report cannot be drawn: ${error.message}. It needs a browser of 2023 or later.` }));
    throw error;
  }
}

start();
