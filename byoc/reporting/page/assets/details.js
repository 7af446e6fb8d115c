// What is known of the part that is selected.

/** Make an element with text and children; text of others is never parsed. */
function make(tag, fields = {}, ...children) {
  const element = document.createElement(tag);
  const { text, attributes = {}, on = {}, ...rest } = fields;
  Object.assign(element, rest);
  if (text !== undefined) element.textContent = printable(text);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  for (const [name, listener] of Object.entries(on)) element.addEventListener(name, listener);
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** Make an element of prose in which what stands between backticks is code. */
function makeProse(className, text) {
  const parts = text.split("`").map((part, at) => make(at % 2 ? "code" : "span", { text: part }));
  return make("div", { className }, ...parts);
}

function makeList(pairs) {
  const list = make("dl");
  for (const [term, value] of pairs) {
    if (value === null || value === undefined || value === "") continue;
    list.append(make("dt", { text: term }), value instanceof Node ? make("dd", {}, value) : make("dd", { text: value }));
  }
  return list;
}

function makeSwatch(device) {
  const look = lookOf(device);
  const swatch = make("span", { className: "swatch" });
  swatch.style.background = fillOf(device);
  swatch.style.borderColor = look.line;
  swatch.style.borderStyle = look.style;
  swatch.style.borderRadius = look.shape === "rectangle" ? "0" : "4px";
  return swatch;
}

class Details {
  constructor(pane, page) {
    Object.assign(this, { pane, page, tables: page.tables });
  }

  show(found) {
    this.pane.replaceChildren();
    this.pane.scrollTop = 0;
    if (!found) {
      this.pane.append(make("p", { className: "soft", text: "Click a part of the graph, or search for one. A double click or Enter opens and closes it." }));
      return;
    }
    if (found.edge) this.showEdge(found.edge);
    else if (found.tensor) this.showTensor(found.tensor.graph, found.tensor.number);
    else if (found.part.kind === "ports") this.showPorts(found.part);
    else if (found.part.kind === "region") this.showRegion(found.part);
    else if (found.part.kind === "node" || found.part.kind === "unit") this.showUnit(found.part);
    else this.showGroup(found.part);
  }

  head(title, kind, device) {
    const where = device === undefined ? "" : device < 0 ? "several devices" : this.tables.devices[device];
    this.pane.append(make("h1", { text: title }), make("p", { className: "soft" }, ...(device === undefined || device < 0 ? [] : [makeSwatch(device), " "]), make("span", { text: [kind, where].filter(Boolean).join(" on ") })));
  }

  showUnit(part) {
    const { graph } = part;
    const unit = part.kind === "node" ? graph.unitOf[part.nodes[0]] : part.units[0];
    const composite = graph.composite(unit);
    const single = part.kind === "node";
    const kind = single ? `Node of ${this.operatorName(graph, part.nodes[0])}` : composite ? `Composite ${composite}` : "Nodes placed as one";
    this.head(single ? graph.name(part.nodes[0]) : part.title, kind, part.device);
    this.why(graph, unit, part.device);
    this.costs(graph, unit, single && graph.unitNodes[unit].length > 1);
    this.gains(graph, unit, part);
    this.attributesOf(graph, part.nodes);
    this.rangesOf(graph, unit < 0 ? part.nodes : graph.unitNodes[unit]);
    this.tensorsOf(graph, part.nodes);
    if (graph.inserted.has(part.nodes[0])) this.pane.append(make("p", { className: "soft", text: "byoc added this node." }));
    if (graph.path) this.pane.append(makeList([["in", graph.path]]));
  }

  operatorName(graph, node) {
    const { domain, name } = graph.operator(node);
    return domain ? `${domain}.${name}` : name;
  }

  why(graph, unit, device) {
    if (!graph.placed) {
      this.pane.append(make("div", { className: "why", text: "This body is not placed by itself: it runs where its node does." }));
      return;
    }
    const reason = graph.reason(unit);
    if (reason === null) {
      const rules = graph.rules(unit);
      const box = make("div", { className: "why taken" }, make("b", { text: `${this.tables.devices[device]} takes it` }));
      if (rules.length) box.append(make("div", {}, "by ", make("code", { text: rules.slice(0, 6).join(", ") + (rules.length > 6 ? " …" : "") })));
      const region = graph.regions[graph.region(unit)];
      if (region) box.append(make("div", {}, "in region ", this.page.linkRegion(graph, graph.region(unit))));
      this.pane.append(box);
      return;
    }
    const row = this.tables.reasons.find((each) => each.number === reason.number);
    const box = make("div", { className: "why", attributes: { "data-role": "reason" } }, make("b", { text: "On the host: " }), make("span", { text: reason.text }));
    if (reason.remedy) box.append(makeProse("remedy", reason.remedy));
    if (row && row.nodes > 1) {
      box.append(make("div", { className: "soft", text: `So are ${formatCount(row.nodes, "node")} in all: ${formatSeconds(row.seconds)} of the host's time, ${formatShare(row.operations / this.tables.operations)} of the operations.` }));
    }
    this.pane.append(box);
  }

  /** The seconds of a unit on each device, as bars beside each other. */
  costs(graph, unit, partly) {
    if (!graph.placed) return;
    this.pane.append(make("h2", { text: partly ? "Predicted, with the nodes it is placed with" : "Predicted for one run" }));
    const each = this.tables.devices.map((_, device) => graph.seconds(unit, device));
    const most = Math.max(...each.map((seconds) => seconds || 0), 1e-30);
    const table = make("table");
    each.forEach((seconds, device) => {
      const here = graph.device(unit) === device;
      const bar = make("span", { className: "share" });
      bar.style.width = `${Math.round((90 * (seconds || 0)) / most)}px`;
      table.append(make("tr", {},
        make("td", {}, makeSwatch(device), " ", make(here ? "b" : "span", { text: this.tables.devices[device] + (here ? " (here)" : "") })),
        make("td", { className: "number" }, bar, make("span", { text: seconds === null ? "not supported" : formatSeconds(seconds) }))));
    });
    this.pane.append(table);
    const parts = [["operations", graph.operations(unit) ? Math.round(graph.operations(unit)).toLocaleString("en-US") : "0"]];
    if (this.tables.operations) parts.push(["share of all", formatShare((graph.trips * graph.operations(unit)) / this.tables.operations)]);
    const { overlay } = this.tables;
    const values = overlay ? graph.unitNodes[unit].map((node) => overlay.find(graph, node)).filter((value) => value !== undefined) : [];
    if (values.length) parts.push([overlay.title, values.map(roundNumber).join(", ")]);
    if (graph.trips !== 1) parts.push(["runs", roundNumber(graph.trips)]);
    if (graph.raw.units.estimated.includes(unit)) parts.push(["", "an estimate: a shape or the operator is not known"]);
    this.pane.append(makeList(parts));
  }

  /** What taking this, or removing the boundary here, would gain, as far as the report knows. */
  gains(graph, unit, part) {
    const lines = [];
    const reason = graph.reason(unit);
    const names = new Set(graph.unitNodes[unit].map((node) => graph.operator(node).name));
    for (const each of this.tables.report.what_if) {
      if (reason && names.has(each.operator) && reason.text.includes(each.reason)) {
        lines.push(`If ${each.target} took ${each.nodes === 1 ? `this ${each.operator}` : `these ${each.nodes} ${each.operator}`}: ${this.page.formatGain(each.gain)} less, ${formatCount(each.offloaded, "node")} more offloaded.`);
      }
    }
    for (const each of this.tables.report.break_even || []) {
      if (graph.unitNodes[unit].some((node) => graph.name(node) === each.unit)) lines.push(this.page.describeBreakEven(each));
    }
    const sent = this.findCrossings(graph, part.nodes);
    if (sent.length) {
      const seconds = sent.reduce((sum, { boundary }) => sum + (boundary.seconds || 0), 0);
      lines.push(`Its ${formatCount(sent.length, "tensor")} at the boundary ${sent.length === 1 ? "takes" : "take"} ${formatSeconds(graph.trips * seconds)} of transfer, which a neighbour on the same device would save.`);
    }
    if (!lines.length) return;
    this.pane.append(make("h2", { text: "What would change it" }), make("ul", {}, ...lines.map((text) => make("li", { text }))));
  }

  /** The stated attributes of the nodes of a unit. */
  attributesOf(graph, nodes) {
    const stated = nodes.filter((node) => graph.attributes(node).length);
    if (!stated.length) return;
    this.pane.append(make("h2", { text: "Attributes" }));
    for (const node of stated) {
      if (nodes.length > 1) this.pane.append(make("div", { className: "soft", text: `${this.operatorName(graph, node)} ${graph.name(node)}` }));
      this.pane.append(makeList(graph.attributes(node)));
    }
  }

  /** The ranges of the integers that a unit reads and makes, beside those that the data had. */
  rangesOf(graph, nodes) {
    const tensors = nodes.flatMap((node) => [...graph.nodes.outputs[node], ...graph.nodes.inputs[node]]);
    const found = new Set(tensors.map((tensor) => graph.ranges.get(tensor)).filter(Boolean));
    if (!found.size) return;
    this.pane.append(make("h2", { text: "Integers against the data" }));
    for (const each of [...found].slice(0, 12)) {
      const name = graph.tensor(each.tensor).name;
      this.pane.append(make("button", { className: "link name", text: shorten(name, 48), on: { click: () => this.page.showTensor(graph, each.tensor) } }), drawRange(each), makeList(describeRange(each)));
    }
    if (found.size > 12) this.pane.append(make("p", { className: "soft", text: `and ${found.size - 12} more` }));
  }

  /** The values of a constant: all where they are few, else where they lie and a histogram. */
  valuesOf(graph, tensor) {
    const found = (this.tables.data.constants || {})[graph.tensor(tensor).name];
    if (!graph.constant[tensor] || !found) return;
    this.pane.append(make("h2", { text: "Values" }));
    if (found.values.length) {
      this.pane.append(make("p", { className: "name", text: found.values.map(roundNumber).join(", ") }));
      return;
    }
    if (found.bins.length) this.pane.append(drawBins(found));
    this.pane.append(makeList([
      ["range", found.least === found.greatest ? `all are ${roundNumber(found.least)}` : `${roundNumber(found.least)} to ${roundNumber(found.greatest)}`],
      ["mean", found.least === found.greatest ? "" : roundNumber(found.mean)],
      ["zeros", found.zeros ? formatShare(found.zeros) : ""],
      ["not finite", found.odd ? formatNumber(found.odd) : ""],
    ]));
  }

  /** The boundary tensors that some nodes read or make, each with its region. */
  findCrossings(graph, nodes) {
    const own = new Set(nodes.flatMap((node) => [...graph.nodes.inputs[node], ...graph.nodes.outputs[node]]));
    const seen = new Set();
    return graph.regions.flatMap((region, number) => region.boundary
      .filter((boundary) => own.has(boundary.tensor) && !seen.has(boundary.tensor) && seen.add(boundary.tensor))
      .map((boundary) => ({ region: number, boundary })));
  }

  tensorsOf(graph, nodes) {
    const inside = new Set(nodes);
    const read = new Map();
    const made = new Map();
    for (const node of nodes) {
      for (const tensor of graph.nodes.inputs[node]) {
        if (tensor >= 0 && !inside.has(graph.producer[tensor])) read.set(tensor, graph.producer[tensor]);
      }
      for (const tensor of graph.nodes.outputs[node]) {
        if (tensor >= 0 && !(graph.readers.get(tensor) || []).every((reader) => inside.has(reader))) made.set(tensor, node);
        else if (tensor >= 0 && !graph.readers.has(tensor)) made.set(tensor, node);
      }
    }
    this.tensorTable("Inputs", graph, [...read.keys()]);
    this.tensorTable("Outputs", graph, [...made.keys()]);
  }

  tensorTable(title, graph, tensors) {
    if (!tensors.length) return;
    const weight = (tensor) => (graph.constant[tensor] ? -1 : graph.tensor(tensor).bytes || 0);
    tensors.sort((a, b) => weight(b) - weight(a));
    this.pane.append(make("h2", { text: `${title} (${tensors.length})` }));
    const table = make("table");
    for (const tensor of tensors.slice(0, 60)) {
      const name = make("button", { className: "link name", text: shorten(graph.tensor(tensor).name, 60), on: { click: () => this.page.showTensor(graph, tensor) } });
      table.append(make("tr", {}, make("td", {}, name, make("div", { className: "soft", text: `${graph.constant[tensor] ? "constant · " : ""}${graph.describeTensor(tensor)}` }))));
    }
    if (tensors.length > 60) table.append(make("tr", {}, make("td", { className: "soft", text: `and ${tensors.length - 60} more` })));
    this.pane.append(table);
  }

  showRegion(part) {
    const { graph } = part;
    const region = graph.regions[part.region];
    this.head(region.name, "Region", region.device);
    const measured = this.tables.measured.get(region.name);
    const report = this.tables.regionReports.get(region.name);
    const host = part.seconds.host / (graph.trips || 1);
    this.pane.append(makeList([
      ["nodes", report ? report.nodes : part.nodes.length],
      ["on the device's own CPU", report && report.own_cpu ? `${report.own_cpu} of them` : ""],
      ["options tried", report && report.tried ? report.tried.map((each, number) => `${Object.entries(each).map((pair) => pair.join("=")).join(", ")} (${number === report.tried.length - 1 ? "holds" : "does not hold"})`).join("; ") : ""],
      ["predicted", `${formatSeconds(region.seconds)}, its launch included`],
      ["compiler's estimate", report && report.estimate ? `${formatSeconds(report.estimate.seconds)}, ${roundNumber(report.estimate.seconds / region.seconds)} × predicted${report.estimate.cycles ? `; ${formatNumber(Math.round(report.estimate.cycles))} cycles` : ""}` : ""],
      ["measured", measured ? `${formatSeconds(measured[0] / measured[1])}, ${roundNumber(measured[0] / measured[1] / region.seconds)} × predicted, as ${(this.tables.data.codegens || {})[region.name] || "its codegen"} runs it here` : ""],
      ["memory", report && report.memory ? `${formatUse(report.memory)}: constants ${formatBytes(report.memory.constants)}, activations ${formatBytes(report.memory.activations)}` : ""],
      ["SRAM", report ? formatUse(report.sram) : ""],
      ["not verified", report && report.not_here ? `it cannot run on the machine that compiled it: ${report.not_here}` : ""],
      ["host alone", formatSeconds(host)],
      ["transfers", formatSeconds(region.boundary.reduce((sum, each) => sum + (each.seconds || 0), 0))],
      ["runs", graph.trips === 1 ? "" : roundNumber(graph.trips)],
      ["operators", describeOperators(graph, part.nodes, 8)],
      ["composites", report ? Object.entries(report.composites).map(([name, count]) => (count > 1 ? `${count} × ${name}` : name)).join(", ") : ""],
    ]));
    this.boundaryTable(graph, region);
    this.layers(region.name);
    if (report && report.borders.length) this.borders(report.borders, graph, region);
  }

  boundaryTable(graph, region) {
    for (const enters of [true, false]) {
      const rows = region.boundary.filter((each) => each.enters === enters).sort((a, b) => (b.bytes || 0) - (a.bytes || 0));
      if (!rows.length) continue;
      this.pane.append(make("h2", { text: `${enters ? "Enters" : "Leaves"}: ${formatCount(rows.length, "tensor")}, ${formatSum(rows.map((each) => each.bytes))}` }));
      const table = make("table");
      for (const each of rows.slice(0, 40)) {
        const name = make("button", { className: "link name", text: shorten(graph.tensor(each.tensor).name, 48), on: { click: () => this.page.showTensor(graph, each.tensor) } });
        table.append(make("tr", {}, make("td", {}, name, make("div", { className: "soft", text: `${graph.describeTensor(each.tensor)}` }), make("div", { className: "soft", text: describeContract(each) })),
          make("td", { className: "number" }, make("div", { text: formatBytes(each.bytes) }), make("div", { className: "soft", text: formatSeconds(each.seconds) }))));
      }
      if (rows.length > 40) table.append(make("tr", {}, make("td", { className: "soft", text: `and ${rows.length - 40} more` })));
      this.pane.append(table);
    }
  }

  layers(name) {
    const layers = listLayers(this.tables, name);
    if (!layers.length) return;
    const total = layers.reduce((sum, layer) => sum + layer.weight, 0) || 1;
    const most = layers.reduce((largest, each) => Math.max(largest, each.weight), 0) || 1;
    const isTraced = Boolean(((this.tables.data.trace || {}).operators || {})[name]);
    this.pane.append(make("h2", { text: isTraced ? `What is inside, in a traced run: ${formatSeconds(total)}` : `Layers of the compiled region: ${Math.round(total).toLocaleString("en-US")} cycles` }));
    const table = make("table");
    for (const layer of [...layers].sort((a, b) => b.weight - a.weight).slice(0, 40)) {
      const bar = make("span", { className: "share" });
      bar.style.width = `${Math.round((70 * layer.weight) / most)}px`;
      table.append(make("tr", {}, make("td", { className: "name", text: layer.name }), make("td", { className: "number" }, bar, make("span", { text: layer.shown })), make("td", { className: "number", text: formatShare(layer.weight / total) })));
    }
    this.pane.append(table);
  }

  /** Why the region ends where it does, and the transfer that a neighbour inside of it would save. */
  borders(borders, graph, region) {
    const rows = borders.filter((each) => each.neighbour);
    if (!rows.length) return;
    this.pane.append(make("h2", { text: "What it borders on" }));
    const table = make("table");
    const sent = new Map(region.boundary.map((each) => [`${each.enters}:${graph.tensor(each.tensor).name}`, each.seconds]));
    for (const each of rows.slice(0, 30)) {
      const seconds = sent.get(`${each.enters}:${each.tensor}`);
      const saves = seconds ? ` · inside it would save ${formatSeconds(seconds)} of transfer` : "";
      table.append(make("tr", {}, make("td", {}, make("button", { className: "link name", text: `${each.operator} ${shorten(each.neighbour, 40)}`, on: { click: () => this.page.revealName(graph, each.neighbour) } }), make("div", { className: "soft", text: `${each.enters ? "before" : "after"} · ${each.device} · ${each.reason}${saves}` }))));
    }
    this.pane.append(table);
  }

  showGroup(part) {
    const { graph } = part;
    const kind = { host: "Host segment", repeat: `${part.count} equal blocks`, group: "Group of neighbours", body: "Body", root: "Model" }[part.kind];
    this.head(part.title, kind, part.device);
    const { own, host } = part.seconds;
    this.pane.append(makeList([
      ["nodes", part.nodes.length], ["operators", describeOperators(graph, part.nodes, 10)],
      ["predicted", graph.placed ? formatSeconds(own) : ""], ["host alone", graph.placed ? formatSeconds(host) : ""],
      ["each block", part.kind === "repeat" ? formatSeconds(own / part.count) : ""],
      ["runs", graph.trips === 1 ? "" : roundNumber(graph.trips)],
    ]));
    const counts = new Map();
    for (const unit of part.units) {
      const reason = graph.reason(unit);
      const own = graph.unitNodes[unit].filter((node) => !graph.inserted.has(node)).length;
      if (reason && own) counts.set(reason.text, (counts.get(reason.text) || 0) + own);
    }
    const sorted = [...counts.entries()].sort((a, b) => b[1] - a[1]).slice(0, 8);
    if (sorted.length) this.pane.append(make("h2", { text: "Why on the host" }), ...sorted.map(([text, count]) => make("div", { className: "why" }, make("b", { text: `${count} × ` }), make("span", { text }))));
    this.tensorsOf(graph, part.nodes);
  }

  showPorts(part) {
    this.head(part.title, part.enters ? "What the model is given" : "What the model returns", 0);
    this.tensorTable("Tensors", part.graph, [...part.tensors]);
  }

  showEdge(edge) {
    this.head(`${edge.source.title} → ${edge.target.title}`, edge.crossing ? "Crosses the boundary" : "Stays on its device");
    if (edge.crossing) this.showSent(edge);
    this.tensorTable("Tensors", edge.graph, [...edge.tensors]);
  }

  /** What crosses at an edge, and what is gained if both of its ends are on one side. */
  showSent({ graph, source, target, tensors }) {
    const sides = [[source, false], [target, true]].filter(([part]) => part.region >= 0);
    const rows = sides.flatMap(([part, enters]) => graph.regions[part.region].boundary.filter((each) => each.enters === enters && tensors.has(each.tensor)));
    if (!rows.length) return;
    const seconds = rows.reduce((sum, each) => sum + (each.seconds || 0), 0);
    const sizes = [...tensors].map((tensor) => graph.bytesSent(tensor, source.region, target.region));
    this.pane.append(makeList([
      ["sent", `${formatSum(sizes)} in ${formatSeconds(seconds)}`],
      ["without it", `${formatSeconds(graph.trips * seconds)} of transfer less in a run, if nothing else reads these tensors on the other side; what computing there costs is not counted`],
    ]));
    const stated = [...new Set(rows.map(describeContract))].filter(Boolean);
    if (stated.length) this.pane.append(makeList([["contract", stated.join("; ")]]));
  }

  showTensor(graph, tensor) {
    const { name } = graph.tensor(tensor);
    this.head(name, graph.constant[tensor] ? "Constant" : "Tensor");
    const producer = graph.producer[tensor];
    const link = (node) => this.page.linkNode(graph, node);
    const readers = graph.readers.get(tensor) || [];
    this.pane.append(makeList([["type", graph.describeTensor(tensor)], ["made by", producer < 0 ? (graph.constant[tensor] ? "the model" : "the graph's input") : link(producer)]]));
    this.valuesOf(graph, tensor);
    const range = graph.ranges.get(tensor);
    if (range) this.pane.append(make("h2", { text: "Integers against the data" }), drawRange(range), makeList(describeRange(range)));
    graph.regions.forEach((region, number) => {
      for (const each of region.boundary.filter((one) => one.tensor === tensor)) {
        this.pane.append(make("h2", {}, each.enters ? "Enters " : "Leaves ", this.page.linkRegion(graph, number)), makeList([["sent", `${formatBytes(each.bytes)} in ${formatSeconds(each.seconds)}`], ["contract", describeContract(each)]]));
      }
    });
    this.pane.append(make("h2", { text: `Read by (${readers.length})` }), make("ul", {}, ...readers.slice(0, 40).map((node) => make("li", {}, link(node)))));
  }
}

/** Draw the histogram of a constant's values, with a line where zero is. */
function drawBins({ bins, least, greatest }) {
  const [width, height] = [264, 56];
  const step = width / bins.length;
  const most = Math.max(...bins);
  const text = `Histogram of the values from ${roundNumber(least)} to ${roundNumber(greatest)}`;
  const picture = draw("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": text, class: "histogram" });
  bins.forEach((count, bin) => {
    const tall = count ? Math.max(1, (height * count) / most) : 0;
    picture.append(draw("rect", { x: bin * step, y: height - tall, width: step - 1, height: tall }));
  });
  if (least < 0 && greatest > 0) {
    const zero = (-least / (greatest - least)) * width;
    picture.append(draw("line", { x1: zero, x2: zero, y1: 0, y2: height }));
  }
  return picture;
}

/** A range of integers and that of the data in words: pairs of a term and a value. */
function describeRange(range) {
  const { unused, beyond, clipped } = measureFit(range);
  const spell = ([from, to]) => `${roundNumber(from)} to ${roundNumber(to)}`;
  return [
    [range.dtype, spell([range.low, range.high])], ["data", spell(range.data)],
    ["unused", `${formatShare(unused)} of the integers`],
    ["saturates", beyond > 1e-6 ? `${formatShare(beyond)} of the data's range${clipped ? `, at most ${formatShare(clipped)} of its values` : ""}` : ""],
  ];
}

/** Draw two bars over one axis: above what the integers reach, below what the data had; saturating parts stand out. */
function drawRange(range) {
  const [width, height] = [264, 24];
  const [least, greatest] = range.data;
  const from = Math.min(range.low, least);
  const scale = width / (Math.max(range.high, greatest) - from || 1);
  const text = describeRange(range).filter(([, value]) => value).map((pair) => pair.join(" ")).join("; ");
  const picture = draw("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": text, class: "ranges" });
  const add = (low, high, y, kind) => high > low && picture.append(draw("rect", { x: (low - from) * scale, y, width: Math.max(1, (high - low) * scale), height: 9, class: kind }));
  add(range.low, range.high, 1, "integers");
  add(Math.max(least, range.low), Math.min(greatest, range.high), 13, "data");
  add(least, Math.min(greatest, range.low), 13, "beyond");
  add(Math.max(least, range.high), greatest, 13, "beyond");
  return picture;
}

/** The contract of a boundary tensor in words: dtype, layout, scale and zero point, who converts. */
function describeContract(boundary) {
  const parts = [];
  if (boundary.dtype) parts.push(boundary.dtype);
  if (boundary.layout) parts.push(boundary.layout);
  if (boundary.scale !== null) parts.push(`scale ${roundNumber(boundary.scale)}`, `zero point ${boundary.zero_point ?? 0}`);
  const converts = Object.entries(boundary.converts || {}).map(([what, who]) => `${what} by the ${who}`);
  return [parts.join(", "), converts.join(", ")].filter(Boolean).join(" · ");
}
