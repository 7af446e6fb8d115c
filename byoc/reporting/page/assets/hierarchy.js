// The hierarchy of what is drawn: graph -> regions and host segments -> blocks -> composites -> nodes.
// A part makes its children when it is opened, so that large models cost nothing until then.

/** A part of the picture: some nodes of a graph, and the parts that it opens into. */
class Part {
  /** `fields`: kind, title, graph, nodes (numbers), units, device (-1: several), makeChildren. */
  constructor(fields) {
    Object.assign(this, { open: false, parent: null, count: 1, region: -1, units: [], token: "" }, fields);
    this.id = `p${Part.next++}`;
  }

  get canOpen() {
    return Boolean(this.makeChildren);
  }

  get children() {
    if (!this.found) {
      this.found = this.makeChildren ? this.makeChildren() : [];
      for (const child of this.found) child.parent = this;
    }
    return this.found;
  }

  /** The set of nodes, for asking whether one is inside. */
  get inside() {
    if (!this.foundInside) this.foundInside = new Set(this.nodes);
    return this.foundInside;
  }

  /** Predicted seconds of one run of the model, and those of the host alone. */
  get seconds() {
    if (this.foundSeconds === undefined) {
      const { graph } = this;
      let own = 0;
      let host = 0;
      for (const unit of this.units) {
        own += graph.trips * (graph.seconds(unit) || 0);
        host += graph.trips * (graph.seconds(unit, 0) || 0);
      }
      this.foundSeconds = { own, host };
    }
    return this.foundSeconds;
  }

  /** The share of its units' host seconds (or of its units) by device. */
  get shares() {
    const { graph } = this;
    const found = new Map();
    for (const unit of this.units) {
      const device = graph.device(unit);
      const weight = (graph.seconds(unit, 0) || 0) + 1e-12;
      found.set(device, (found.get(device) || 0) + weight);
    }
    const total = [...found.values()].reduce((a, b) => a + b, 0) || 1;
    return [...found.entries()].map(([device, weight]) => [device, weight / total]).sort((a, b) => b[1] - a[1]);
  }
}
Part.next = 0;

const tokenNumbers = new Map();
function numberToken(text) {
  if (!tokenNumbers.has(text)) tokenNumbers.set(text, tokenNumbers.size);
  return tokenNumbers.get(text);
}

/** What tells a unit from one that is alike: operators, device, types of what it makes. */
function describeUnit(graph, unit) {
  const nodes = graph.unitNodes[unit].map((node) =>
    `${graph.nodes.operators[node]}:${graph.nodes.outputs[node].map((t) => (t < 0 ? "" : graph.raw.tensors.types[t])).join(",")}`);
  return numberToken(`${graph.device(unit)}|${graph.composite(unit)}|${nodes.join(";")}`);
}

/** The operators of nodes, the most frequent first; those that byoc added only where there is nothing else. */
function sumOperators(graph, nodes) {
  const counts = new Map();
  const own = nodes.filter((node) => !graph.inserted.has(node));
  for (const node of own.length ? own : nodes) {
    const { name } = graph.operator(node);
    counts.set(name, (counts.get(name) || 0) + 1);
  }
  return [...counts.entries()].sort((a, b) => b[1] - a[1]);
}

function describeOperators(graph, nodes, most = 3) {
  const sorted = sumOperators(graph, nodes);
  const shown = sorted.slice(0, most).map(([name, count]) => (count > 1 ? `${formatNumber(count)} ${name}` : name));
  return shown.join(", ") + (sorted.length > most ? ", …" : "");
}

/** What parts are, by their titles: composites under their own names. */
function describeParts(parts, most = 3) {
  const counts = new Map();
  for (const part of parts) {
    if (part.kind === "group" || part.kind === "region") return "";
    counts.set(part.title, (counts.get(part.title) || 0) + 1);
  }
  const sorted = [...counts.entries()].sort((a, b) => b[1] - a[1]);
  const shown = sorted.slice(0, most).map(([name, count]) => (count > 1 ? `${formatNumber(count)} ${name}` : name));
  return shown.join(", ") + (sorted.length > most ? ", …" : "");
}

/** The part of names up to a separator that all nodes share, such as `/encoder/layer.3`. */
function findScope(graph, nodes) {
  if (nodes.length < 2) return "";
  let scope = graph.name(nodes[0]);
  for (const node of nodes) {
    const name = graph.name(node);
    let same = 0;
    while (same < scope.length && same < name.length && scope[same] === name[same]) same++;
    scope = scope.slice(0, same);
    if (!scope) return "";
  }
  const cut = scope.replace(/[^/.]*$/, "").replace(/[/.]+$/, "");
  return cut.length > 1 ? cut : "";
}

/** The inputs or the outputs of the model as one part, null without any. */
function makePorts(graph, enters) {
  const all = enters ? graph.raw.inputs : graph.raw.outputs;
  const tensors = [...all].filter((tensor) => !graph.constant[tensor]);
  if (!tensors.length) return null;
  const noun = enters ? "input" : "output";
  const title = tensors.length === 1 ? graph.tensor(tensors[0]).name : formatCount(tensors.length, noun);
  return new Part({ kind: "ports", noun, title, graph, nodes: [], device: 0, enters, tensors: new Set(tensors) });
}

/** The parts of a whole graph: its regions, host segments, and folds of these. */
function makeGraphParts(graph) {
  if (!graph.placed) return foldParts(graph, graph.unitNodes.map((_, unit) => makeUnitPart(graph, unit)));
  return foldParts(graph, makeSegments(graph));
}

/** Regions, and the runs of the host between them, in topological order. */
function makeSegments(graph) {
  const units = graph.unitNodes.length;
  const groupOf = (unit) => (graph.region(unit) < 0 ? graph.regions.length + unit : graph.region(unit));
  const groups = graph.regions.length + units;
  const stage = new Int32Array(groups);
  const waiting = new Int32Array(groups);
  const after = new Map();
  for (let unit = 0; unit < units; unit++) {
    const reader = groupOf(unit);
    const seen = new Set();
    for (const node of graph.unitNodes[unit]) {
      for (const tensor of graph.nodes.inputs[node]) {
        const producer = tensor < 0 ? -1 : graph.producer[tensor];
        const maker = producer < 0 || graph.unitOf[producer] < 0 ? -1 : groupOf(graph.unitOf[producer]);
        if (maker < 0 || maker === reader || seen.has(maker)) continue;
        seen.add(maker);
        if (!after.has(maker)) after.set(maker, []);
        after.get(maker).push(reader);
        waiting[reader]++;
      }
    }
  }
  const members = new Map();
  for (let unit = 0; unit < units; unit++) {
    const group = groupOf(unit);
    if (!members.has(group)) members.set(group, []);
    members.get(group).push(unit);
  }
  const ready = [...members.keys()].filter((group) => waiting[group] === 0);
  const isHost = (group) => group >= graph.regions.length;
  for (let at = 0; at < ready.length; at++) {
    const group = ready[at];
    for (const next of after.get(group) || []) {
      // A host unit after a host unit is in the same segment; a region begins a stage of its own.
      const step = isHost(group) && isHost(next) ? stage[group] : stage[group] + 1;
      stage[next] = Math.max(stage[next], step);
      if (--waiting[next] === 0) ready.push(next);
    }
  }
  return collectSegments(graph, members, stage, isHost);
}

function collectSegments(graph, members, stage, isHost) {
  const hosts = new Map();
  const parts = [];
  for (const [group, units] of members) {
    if (isHost(group)) {
      if (!hosts.has(stage[group])) hosts.set(stage[group], []);
      hosts.get(stage[group]).push(...units);
    } else parts.push([stage[group], units[0], makeRegionPart(graph, group, units)]);
  }
  for (const [at, units] of hosts) {
    units.sort((a, b) => a - b);
    if (units.length === 1) parts.push([at, units[0], makeUnitPart(graph, units[0])]);
    else parts.push([at, units[0], makeHostPart(graph, units)]);
  }
  parts.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  return parts.map(([, , part]) => part);
}

const nodesOf = (graph, units) => units.flatMap((unit) => graph.unitNodes[unit]).sort((a, b) => a - b);

function makeRegionPart(graph, number, units) {
  const region = graph.regions[number];
  const nodes = nodesOf(graph, units);
  return new Part({
    kind: "region", title: region.name, graph, nodes, units, device: region.device, region: number,
    token: `r${region.device}|${units.map((unit) => describeUnit(graph, unit)).join(",")}`,
    makeChildren: () => foldParts(graph, units.map((unit) => makeUnitPart(graph, unit))),
  });
}

function makeHostPart(graph, units) {
  const nodes = nodesOf(graph, units);
  return new Part({
    kind: "host", title: describeOperators(graph, nodes, 2), graph, nodes, units, device: 0,
    token: `h|${units.map((unit) => describeUnit(graph, unit)).join(",")}`,
    makeChildren: () => foldParts(graph, units.map((unit) => makeUnitPart(graph, unit))),
  });
}

function makeUnitPart(graph, unit) {
  const nodes = graph.unitNodes[unit];
  const composite = graph.composite(unit);
  const fields = {
    graph, nodes, units: [unit], device: graph.device(unit), region: graph.region(unit),
    token: `u${describeUnit(graph, unit)}`,
  };
  if (nodes.length > 1) {
    const title = composite || sumOperators(graph, nodes).filter(([name]) => !/QuantizeLinear$/.test(name)).map(([name]) => name).slice(0, 3).join(" + ");
    return new Part({
      ...fields, kind: "unit", title: title || describeOperators(graph, nodes),
      makeChildren: () => nodes.map((node) => makeNodePart(graph, node, unit)),
    });
  }
  return makeNodePart(graph, nodes[0], unit, fields.token);
}

function makeNodePart(graph, node, unit, token = "") {
  const bodies = graph.tables.bodies.get(`${graph.number}:${node}`) || [];
  const part = new Part({
    kind: "node", title: graph.operator(node).name, graph, nodes: [node], units: graph.unitNodes[unit].length === 1 ? [unit] : [],
    unit, device: graph.device(unit), region: graph.region(unit), token,
  });
  if (bodies.length) {
    part.makeChildren = () => bodies.map((number) => makeBodyPart(graph.tables.graphs[number], part));
  }
  return part;
}

/** The device that all have, -1 if they differ. */
function findDevice(devices, otherwise = -1) {
  const different = new Set(devices);
  return different.size === 1 ? devices[0] : different.size ? -1 : otherwise;
}

/** A body inside its node: the parts of another graph. */
function makeBodyPart(graph, around) {
  const units = graph.unitNodes.map((_, unit) => unit);
  return new Part({
    kind: "body", title: graph.path.split("/").pop() || "body", graph, units, around,
    nodes: nodesOf(graph, units), device: findDevice(units.map((unit) => graph.device(unit)), around.device), makeChildren: () => makeGraphParts(graph),
  });
}

/** The part in which a node is drawn, opening all around it; null for a constant. */
function revealNode(root, graph, node) {
  const chain = [];
  for (let at = graph; at.around[0] >= 0; at = at.tables.graphs[at.around[0]]) chain.unshift([at.around, at]);
  let part = root;
  for (const [[outer, inner], body] of chain) {
    part = descend(part, graph.tables.graphs[outer], inner);
    if (!part) return null;
    part.open = true;
    part = part.children.find((child) => child.graph === body);
    part.open = true;
  }
  return descend(part, graph, node);
}

function descend(part, graph, node) {
  if (graph.unitOf[node] < 0) return null;
  let found = part;
  while (found && !(found.kind === "node" && found.nodes[0] === node && found.graph === graph)) {
    const next = found.canOpen && found.children.find((child) => child.graph === graph && child.inside.has(node));
    if (!next) return null;
    found.open = true;
    found = next;
  }
  return found;
}
