// The picture: cytoscape draws the scene; clicks and keys select, open and close.

const LEAST_ZOOM = 0.62; // labels of 8 pixels

class Picture {
  constructor(container, tables, onSelect) {
    Object.assign(this, { container, tables, onSelect, selected: null });
    const main = tables.graphs[0];
    const units = main.unitNodes.map((_, unit) => unit);
    this.root = new Part({
      kind: "root", title: tables.report.model, graph: main, units, nodes: nodesOf(main, units), device: -1,
      makeChildren: () => [makePorts(main, true), ...makeGraphParts(main), makePorts(main, false)].filter(Boolean),
    });
    this.root.open = true;
    this.openFew();
    this.cy = cytoscape({
      container, elements: [], style: this.makeStyle(), minZoom: 0.02, maxZoom: 3,
      autoungrabify: true, autounselectify: true, boxSelectionEnabled: false, hideEdgesOnViewport: false,
      textureOnViewport: false, pixelRatio: "auto", layout: { name: "preset" },
    });
    this.cy.on("tap", "node", (event) => this.select(event.target.scratch("part"), { centre: false }));
    this.cy.on("tap", "edge", (event) => this.selectEdge(event.target.scratch("edge")));
    this.cy.on("dbltap", "node", (event) => this.toggle(event.target.scratch("part")));
    this.draw();
    this.showStart();
  }

  makeStyle() {
    const ink = inkOf();
    const soft = isDark() ? "#8d97a5" : "#7b8490";
    const cross = isDark() ? "#ffae7a" : "#b84300";
    const halo = isDark() ? "#14171b" : "#ffffff";
    return [
      { selector: "node", style: {
        shape: "data(shape)", width: "data(width)", height: "data(height)", label: "data(label)", color: ink,
        "background-color": "data(fill)", "border-color": "data(line)", "border-width": 2, "border-style": "data(border)",
        "font-size": 13, "font-family": "system-ui, sans-serif", "text-wrap": "wrap", "text-valign": "center",
        "text-halign": "center", "line-height": 1.25, "min-zoomed-font-size": 5,
        "z-index-compare": "manual", "z-index": 60,
      } },
      { selector: "node.mixed", style: {
        "background-fill": "linear-gradient", "background-gradient-direction": "to-right",
        "background-gradient-stop-colors": "data(colors)", "background-gradient-stop-positions": "data(stops)",
      } },
      { selector: "node.ports", style: { "background-opacity": 0, "border-style": "solid", "border-width": 1.5, "font-size": 12 } },
      { selector: "node.opens", style: { "border-width": 3 } },
      { selector: "node.repeat", style: { "border-style": "double", "border-width": 6 } },
      { selector: "node.open", style: {
        "background-opacity": isDark() ? 0.28 : 0.2, label: "", "z-index": "data(depth)", "border-width": 2,
      } },
      { selector: "node.heading", style: {
        "background-color": halo, "border-width": 0, "font-weight": "bold", "font-size": 14, "text-wrap": "none",
        "z-index": 50, events: "no",
      } },
      { selector: "edge", style: {
        width: "data(width)", "line-color": soft, "target-arrow-color": soft, "target-arrow-shape": "triangle",
        "arrow-scale": 0.9, "curve-style": "bezier", "z-index-compare": "manual", "z-index": 40, opacity: 0.85,
      } },
      { selector: "edge.far", style: { opacity: 0.3 } },
      { selector: "edge.crossing", style: {
        "line-color": cross, "target-arrow-color": cross, "source-label": "data(label)", "source-text-offset": 22, "source-text-margin-x": 36, "font-size": 11, color: ink,
        "text-background-color": halo, "text-background-opacity": 0.85, "text-background-padding": 2, "min-zoomed-font-size": 6,
      } },
      { selector: ".selected", style: { "overlay-color": isDark() ? "#ffd84d" : "#e0a100", "overlay-opacity": 0.16, "overlay-padding": 7, "border-color": ink, "border-width": 4, "z-index": 90 } },
      { selector: "node.open.selected", style: { "overlay-opacity": 0, "border-color": isDark() ? "#ffd84d" : "#e0a100", "border-width": 5, "border-style": "solid", "z-index": "data(depth)" } },
      { selector: "edge.beside", style: { "line-color": ink, "target-arrow-color": ink, opacity: 1, "z-index": 95 } },
      { selector: ".faded", style: { opacity: 0.22 } },
    ];
  }

  /** Draw what is open, after a change or in another theme. */
  draw() {
    this.scene = new Scene(this.root);
    this.scene.place();
    const many = this.scene.parts.length > 600; // moved as a picture, and sharp again at rest
    Object.assign(this.cy.renderer(), { hideEdgesOnViewport: many, textureOnViewport: many });
    const elements = this.scene.parts.map((part) => this.makeNode(part));
    elements.push(...this.scene.parts.filter((part) => part.open && part.canOpen).map((part) => this.makeHeading(part)));
    elements.push(...this.scene.edges.map((edge) => this.makeEdge(edge)));
    this.cy.batch(() => {
      this.cy.elements().remove();
      this.cy.add(elements);
      for (const part of this.scene.parts) this.cy.getElementById(part.id).scratch("part", part);
      for (const edge of this.scene.edges) this.cy.getElementById(edge.id).scratch("edge", edge);
      this.cy.style().fromJson(this.makeStyle()).update();
    });
    this.mark();
  }

  makeNode(part) {
    const look = lookOf(part.device);
    const overlay = this.tables.overlay && this.tables.overlay.shown ? this.tables.overlay : null;
    const value = overlay && part.nodes ? overlay.findLargest(part) : undefined;
    const shares = part.device < 0 && !overlay ? part.shares : [];
    const stops = [];
    const colors = [];
    let at = 0;
    for (const [device, share] of shares) {
      colors.push(fillOf(device), fillOf(device));
      stops.push(`${(100 * at).toFixed(1)}%`, `${(100 * (at += share)).toFixed(1)}%`);
    }
    const open = part.open && part.canOpen;
    const label = labelOf(part, this.tables);
    const classes = [open ? "open" : "", part.canOpen ? "opens" : "", part.kind, shares.length > 1 && !open ? "mixed" : ""];
    return {
      group: "nodes", classes: classes.filter(Boolean).join(" "), position: { x: part.x, y: part.y }, pannable: true,
      data: {
        id: part.id, label, width: part.box.width, height: part.box.height,
        shape: open ? "round-rectangle" : part.kind === "ports" ? "round-tag" : look.shape, fill: overlay ? (value === undefined ? (isDark() ? "#20252b" : "#ffffff") : overlay.fillOf(value)) : fillOf(part.device), line: look.line, border: look.style,
        colors: colors.join(" ") || "#888", stops: stops.join(" ") || "0%", depth: part.around_.length,
      },
    };
  }

  /** The heading of an open part, above the arrows that lead into it: those pass behind its plate. */
  makeHeading(part) {
    const label = labelOf(part, this.tables);
    pencil.font = "bold 14px system-ui, sans-serif";
    const width = pencil.measureText(label).width + 12;
    return {
      group: "nodes", classes: "heading", selectable: false, grabbable: false,
      position: { x: part.x + (width - part.box.width) / 2 + 6, y: part.y - part.box.height / 2 + 18 },
      data: { id: `${part.id} heading`, label, width, height: 22, shape: "round-rectangle", fill: "#000", line: "#000", border: "solid" },
    };
  }

  makeEdge(edge) {
    const devices = [edge.source.device, edge.target.device];
    const regions = [edge.source.region, edge.target.region];
    const apart = devices[0] !== devices[1] || (regions[0] !== regions[1] && !regions.includes(-1));
    const crossing = apart && !devices.includes(-1);
    const sizes = [...edge.tensors].map((tensor) => edge.graph.bytesSent(tensor, edge.source.region, edge.target.region));
    const bytes = sumKnown(sizes);
    edge.crossing = crossing;
    const width = 1.2 + Math.min(6, Math.max(0, Math.log2(1 + bytes / 4096) * 0.5));
    return {
      group: "edges", classes: [crossing ? "crossing" : "", this.isFar(edge) ? "far" : ""].join(" "),
      data: { id: edge.id, source: edge.source.id, target: edge.target.id, width: crossing ? width + 0.8 : width, label: formatSum(sizes) },
    };
  }

  /** Whether an edge passes other parts on its way: it is drawn faintly, unless an end is selected. */
  isFar(edge) {
    const gap = Math.abs(edge.target.y - edge.source.y) - (edge.source.box.height + edge.target.box.height) / 2;
    return gap > 3 * LEAF.height;
  }

  /** Open what takes most of the time, as long as little is shown. */
  openFew() {
    for (let round = 0; round < 2; round++) {
      const shown = new Scene(this.root).parts;
      const closed = shown.filter((part) => part.canOpen && !part.open && part.kind !== "repeat");
      const largest = closed.sort((a, b) => b.seconds.own - a.seconds.own)[0];
      if (shown.length > 9 || !largest) return;
      largest.open = true;
    }
  }

  /** Show the whole if it can be read then, else its top. */
  showStart() {
    this.cy.resize();
    this.cy.fit(undefined, 40);
    if (this.cy.zoom() > 1.1) this.cy.zoom(1.1);
    if (this.cy.zoom() < LEAST_ZOOM) {
      const whole = this.cy.elements().boundingBox();
      const zoom = Math.max(LEAST_ZOOM, Math.min(0.8, (this.cy.width() - 16) / whole.w));
      this.cy.zoom(zoom);
      this.cy.pan({ x: this.cy.width() / 2 - zoom * (whole.x1 + whole.x2) / 2, y: 52 - zoom * whole.y1 });
    } else this.cy.center();
    this.start = { ...this.cy.pan() };
  }

  /** Take another size; the beginning is shown anew unless the user has moved the graph. */
  resize() {
    const { x, y } = this.cy.pan();
    if (x === this.start.x && y === this.start.y) this.showStart();
    else this.cy.resize();
  }

  select(part, { centre = true } = {}) {
    this.selected = part;
    this.mark();
    if (centre && part) this.bringIntoView(part);
    this.onSelect(part ? { part } : null);
  }

  selectEdge(edge) {
    this.selected = null;
    this.mark();
    this.cy.getElementById(edge.id).addClass("beside");
    this.onSelect({ edge });
  }

  mark() {
    this.cy.batch(() => {
      this.cy.elements(".selected, .beside").removeClass("selected beside");
      const element = this.selected && this.cy.getElementById(this.selected.id);
      if (element && element.length) {
        element.addClass("selected");
        element.connectedEdges().addClass("beside");
      }
    });
  }

  /** Show only some units in full colour: `units` are [graph, unit]; null shows all again. */
  highlight(units) {
    const wanted = units && new Set(units.map(([graph, unit]) => `${graph}:${unit}`));
    this.cy.batch(() => {
      this.cy.elements().removeClass("faded");
      if (!wanted) return;
      for (const part of this.scene.parts) {
        if (part.open && part.canOpen) continue;
        const hit = part.units.some((unit) => wanted.has(`${part.graph.number}:${unit}`)) || wanted.has(`${part.graph.number}:${part.unit}`);
        if (!hit) this.cy.getElementById(part.id).addClass("faded");
      }
    });
  }

  bringIntoView(part) {
    const element = this.cy.getElementById(part.id);
    if (!element.length) return;
    if (this.cy.zoom() < 0.5) this.cy.zoom({ level: 0.9, position: element.position() });
    const box = element.renderedBoundingBox();
    const [width, height] = [this.cy.width(), this.cy.height()];
    const fits = box.x1 > 10 && box.x2 < width - 60 && box.y1 > 40 && box.y2 < height - 40;
    if (fits) return;
    if (part.open && part.canOpen && box.h > height - 80) {
      this.cy.panBy({ x: width / 2 - (box.x1 + box.x2) / 2, y: 60 - box.y1 });
    } else this.cy.center(element);
  }

  /** Open or close a part, which stays where it is on the screen. */
  toggle(part) {
    if (!part || !part.canOpen) return;
    const before = this.cy.getElementById(part.id).renderedPosition();
    const top = before && before.y - (part.box.height / 2) * this.cy.zoom();
    part.open = !part.open;
    if (part.open && part.children.length === 1 && part.children[0].canOpen) part.children[0].open = true;
    this.draw();
    const after = this.cy.getElementById(part.id).renderedPosition();
    if (before) this.cy.panBy({ x: before.x - after.x, y: top - (after.y - (part.box.height / 2) * this.cy.zoom()) });
    this.select(part);
  }

  /** Open what opens, the outermost first, as long as at most so many parts are shown. */
  openAll(most = 5000) {
    let shown = this.root.children.length;
    const waiting = [...this.root.children];
    for (let at = 0; at < waiting.length; at++) {
      const part = waiting[at];
      if (!part.canOpen || shown + part.children.length > most) continue;
      part.open = true;
      shown += part.children.length;
      waiting.push(...part.children);
    }
    this.draw();
    this.fit();
  }

  closeAll() {
    const close = (part) => {
      part.open = false;
      for (const child of part.found || []) close(child);
    };
    close(this.root);
    this.root.open = true;
    this.selected = null;
    this.draw();
    this.showStart();
    this.onSelect(null);
  }

  /** Open what is around a node, and select it. */
  reveal(graph, node) {
    const part = revealNode(this.root, graph, node);
    this.draw();
    if (part) this.select(part);
    return part;
  }

  /** Open what is around a region, and select it. */
  revealRegion(graph, number) {
    const node = graph.nodes.units.findIndex((unit) => unit >= 0 && graph.region(unit) === number);
    if (node < 0) return null;
    let part = revealNode(this.root, graph, node);
    while (part && part.kind !== "region" && part.parent) part = part.parent;
    if (!part || part.kind !== "region") return this.reveal(graph, node);
    part.open = false;
    this.draw();
    this.select(part);
    return part;
  }

  /** Move the selection along an edge (up, down) or to a neighbour at the same height. */
  move(direction) {
    if (!this.selected || !this.cy.getElementById(this.selected.id).length) {
      const first = this.scene.parts.reduce((best, part) => (!best || part.y < best.y ? part : best), null);
      if (first) this.select(first);
      return;
    }
    const from = this.selected;
    const sign = direction === "up" || direction === "left" ? -1 : 1;
    const upright = direction === "up" || direction === "down";
    const ends = upright ? this.scene.edges.filter((edge) => (sign > 0 ? edge.source : edge.target) === from).map((edge) => (sign > 0 ? edge.target : edge.source)) : [];
    const beside = this.scene.parts.filter((part) => part !== from && !from.around_.includes(part) && !part.around_.includes(from));
    const pool = ends.length ? ends : beside;
    let best = null;
    for (const part of pool) {
      const along = sign * (upright ? part.y - from.y : part.x - from.x);
      const aside = Math.abs(upright ? part.x - from.x : part.y - from.y);
      if (!ends.length && along <= 1) continue;
      const cost = Math.abs(along) + (upright ? 1 : 3) * aside;
      if (!best || cost < best.cost) best = { part, cost };
    }
    if (best) this.select(best.part);
  }

  zoomBy(factor) {
    this.cy.zoom({ level: this.cy.zoom() * factor, renderedPosition: { x: this.cy.width() / 2, y: this.cy.height() / 2 } });
  }

  fit() {
    this.cy.fit(undefined, 40);
  }

  /** Offer all that is open as a file, twice as fine as on the screen where that is not too large. */
  save(name) {
    const bg = isDark() ? "#14171b" : "#ffffff";
    const href = this.cy.png({ full: true, scale: 2, maxWidth: 8000, maxHeight: 8000, bg });
    make("a", { href, download: `${name}.png` }).click();
  }
}
