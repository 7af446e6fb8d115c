// The layout: dagre places the children of each open part, from the inside out; cytoscape draws.

const PADDING = { top: 40, side: 16, bottom: 14 };
const LEAF = { width: 212, height: 50 };
const PORT = { width: 180, height: 34 };

/** What is visible: closed parts and nodes, open parts as boxes around theirs, and edges between. */
class Scene {
  constructor(root) {
    this.root = root;
    this.parts = [];
    this.ports = [];
    this.shown = root.graph.tables.graphs.map(() => null);
    this.visit(root, []);
    this.edges = this.findEdges();
  }

  visit(part, around) {
    part.around_ = around;
    if (part !== this.root) this.parts.push(part);
    if (part.open && part.canOpen) {
      for (const child of part.children) this.visit(child, [...around, part]);
      return;
    }
    if (part.kind === "ports") this.ports.push(part);
    const { graph } = part;
    if (!this.shown[graph.number]) this.shown[graph.number] = new Array(graph.nodes.names.length).fill(null);
    for (const node of part.nodes) this.shown[graph.number][node] = part;
  }

  /** Where a node is visible: in its own place, or as an open part with bodies. */
  partOf(graph, node) {
    const shown = this.shown[graph.number] && this.shown[graph.number][node];
    return shown || (this.boxes || this.findBoxes()).get(`${graph.number}:${node}`) || null;
  }

  findBoxes() {
    this.boxes = new Map();
    for (const part of this.parts) {
      if (part.kind === "node" && part.open) this.boxes.set(`${part.graph.number}:${part.nodes[0]}`, part);
    }
    return this.boxes;
  }

  /** The edges between visible parts, each with the tensors that flow there. */
  findEdges() {
    const edges = new Map();
    this.root.graph.tables.graphs.forEach((graph, number) => {
      if (!this.shown[number] && ![...(this.boxes || this.findBoxes()).keys()].some((key) => key.startsWith(`${number}:`))) return;
      graph.nodes.inputs.forEach((tensors, node) => {
        let reader;
        for (const tensor of tensors) {
          const producer = tensor < 0 ? -1 : graph.producer[tensor];
          if (producer < 0 || graph.constant[tensor]) continue;
          reader = reader === undefined ? this.partOf(graph, node) : reader;
          const maker = this.partOf(graph, producer);
          if (!maker || !reader || maker === reader) continue;
          const key = `${maker.id}>${reader.id}`;
          if (!edges.has(key)) edges.set(key, { id: key, source: maker, target: reader, graph, tensors: new Set() });
          edges.get(key).tensors.add(tensor);
        }
      });
    });
    for (const port of this.ports) this.findPortEdges(port, edges);
    return [...edges.values()];
  }

  /** Add the edges from the inputs of the model, or to its outputs. */
  findPortEdges(port, edges) {
    const { graph } = port;
    for (const tensor of port.tensors) {
      const ends = port.enters ? graph.readers.get(tensor) || [] : [graph.producer[tensor]].filter((node) => node >= 0);
      for (const node of ends) {
        const other = this.partOf(graph, node);
        if (!other) continue;
        const [source, target] = port.enters ? [port, other] : [other, port];
        const key = `${source.id}>${target.id}`;
        if (!edges.has(key)) edges.set(key, { id: key, source, target, graph, tensors: new Set() });
        edges.get(key).tensors.add(tensor);
      }
    }
  }

  /** Give every visible part its place: x and y of the centre, width, height. */
  place() {
    const lifted = new Map();
    for (const edge of this.edges) {
      const [source, target] = meet(edge.source, edge.target);
      if (!source || source === target) continue;
      const around = source.around_[source.around_.length - 1];
      if (!lifted.has(around)) lifted.set(around, new Map());
      lifted.get(around).set(`${source.id}>${target.id}`, [source, target]);
    }
    const measure = (part) => {
      part.box = part.open && part.canOpen ? arrange(part, lifted.get(part), measure) : { ...(part.kind === "ports" ? PORT : LEAF) };
      return part.box;
    };
    measure(this.root);
    const settle = (part, x, y) => {
      part.x = x;
      part.y = y;
      if (!part.open || !part.canOpen) return;
      const left = x - part.box.width / 2;
      const top = y - part.box.height / 2;
      for (const child of part.children) settle(child, left + child.at.x, top + child.at.y);
    };
    settle(this.root, 0, 0);
  }
}

/** The two ancestors (or parts themselves) that lie beside each other in one open part. */
function meet(source, target) {
  const one = [...source.around_, source];
  const other = [...target.around_, target];
  let depth = 0;
  while (depth < one.length && depth < other.length && one[depth] === other[depth]) depth++;
  return depth < one.length && depth < other.length ? [one[depth], other[depth]] : [null, null];
}

/** Place the children of a part with dagre, unless nothing has changed; returns the size of the box. */
function arrange(part, edges, measure) {
  const boxes = part.children.map(measure);
  const links = edges ? [...edges.keys()] : [];
  const key = `${boxes.map((box) => `${box.width}x${box.height}`).join()}|${links.join()}`;
  if (part.arranged && part.arranged.key === key) return part.arranged.box;
  const layout = new dagre.graphlib.Graph();
  const { children } = part;
  layout.setGraph({ rankdir: "TB", nodesep: 22, ranksep: 38, edgesep: 12, marginx: 0, marginy: 0, ranker: children.length > 40 ? "longest-path" : "network-simplex" });
  layout.setDefaultEdgeLabel(() => ({}));
  children.forEach((child, at) => layout.setNode(child.id, { ...boxes[at] }));
  for (const [source, target] of edges ? edges.values() : []) layout.setEdge(source.id, target.id);
  dagre.layout(layout);
  let [left, right, top, bottom] = [Infinity, -Infinity, Infinity, -Infinity];
  for (const child of children) {
    const at = layout.node(child.id);
    left = Math.min(left, at.x - at.width / 2);
    right = Math.max(right, at.x + at.width / 2);
    top = Math.min(top, at.y - at.height / 2);
    bottom = Math.max(bottom, at.y + at.height / 2);
  }
  if (!children.length) [left, right, top, bottom] = [0, LEAF.width, 0, 10];
  const wide = Math.max(right - left, LEAF.width);
  const shift = PADDING.side - left + (wide - (right - left)) / 2;
  for (const child of children) {
    const at = layout.node(child.id);
    child.at = { x: at.x + shift, y: at.y - top + PADDING.top };
  }
  part.arranged = { key, box: { width: wide + 2 * PADDING.side, height: bottom - top + PADDING.top + PADDING.bottom } };
  return part.arranged.box;
}
