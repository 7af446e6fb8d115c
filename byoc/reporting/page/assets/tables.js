// The tables of the report: what Python wrote, with the few indices that the page asks for.

/** Decode the data block: base64 of gzip of JSON. */
async function readData() {
  const text = document.getElementById("data").textContent;
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

const UNPRINTABLE = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\uffff]/g;

/** Make a name of others printable: marks that nobody sees, or that turn the text, become escapes. */
function printable(text) {
  return String(text).replace(UNPRINTABLE, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/** Shorten the middle of a text: the beginning and the end of a name tell it from others. */
function shorten(text, most) {
  text = printable(text);
  if (text.length <= most) return text;
  const tail = Math.floor((most - 1) * 0.6);
  return `${text.slice(0, most - 1 - tail)}…${text.slice(-tail)}`;
}

/** Shorten a name from its beginning: the end tells it from others. */
function shortenPath(text, most) {
  text = printable(text);
  return text.length <= most ? text : `…${text.slice(-(most - 1)).replace(/^[/.]/, "")}`;
}

function roundNumber(value) {
  return Number(value).toLocaleString("en-US", { maximumSignificantDigits: 3, useGrouping: false });
}

function formatSeconds(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0 s";
  const [scale, unit] = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]].find(([s]) => Math.abs(value) >= s) || [1e-12, "ps"];
  return `${roundNumber(value / scale)} ${unit}`;
}

function formatBytes(value) {
  if (value === null || value === undefined) return "unknown";
  const step = [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]].find(([s]) => value >= s);
  return step ? `${roundNumber(value / step[0])} ${step[1]}` : `${value} B`;
}

function sumKnown(sizes) {
  return sizes.reduce((total, size) => total + (size ?? 0), 0);
}

/** The sum of some sizes, with what is not known: as the text has it. */
function formatSum(sizes) {
  const sum = sumKnown(sizes);
  if (!sizes.some((size) => size === null || size === undefined)) return formatBytes(sum);
  return sum ? `${formatBytes(sum)} + unknown` : "unknown";
}

function formatShare(value) {
  if (!Number.isFinite(value)) return "–";
  if (value > 0 && value < 0.001) return "< 0.1 %";
  if (value < 1 && value > 0.999) return "> 99.9 %";
  return `${(100 * value).toFixed(value === 1 || value === 0 ? 0 : 1)} %`;
}

function formatNumber(count) {
  return count.toLocaleString("en-US");
}

function formatCount(count, noun) {
  return `${formatNumber(count)} ${noun}${count === 1 ? "" : "s"}`;
}

/** A graph of the model: rows of nodes in units, with producers and readers. */
class Graph {
  constructor(tables, number) {
    const raw = tables.doc.graphs[number];
    Object.assign(this, { tables, number, path: raw.path, around: raw.around, raw, regions: raw.regions });
    this.nodes = raw.nodes;
    this.placed = raw.units.kinds.length > 0;
    this.trips = raw.trips === null ? 1 : raw.trips;
    this.constant = new Uint8Array(raw.tensors.names.length);
    for (const tensor of raw.tensors.constant) this.constant[tensor] = 1;
    this.inserted = new Set(raw.nodes.inserted);
    const count = raw.nodes.names.length;
    this.producer = new Int32Array(raw.tensors.names.length).fill(-1);
    for (let node = 0; node < count; node++) {
      for (const tensor of raw.nodes.outputs[node]) if (tensor >= 0) this.producer[tensor] = node;
    }
    this.makeUnits(count);
  }

  /** Fill in the nodes of each unit; in a graph that was not placed each node is a unit of its own. */
  makeUnits(count) {
    this.unitOf = new Int32Array(count).fill(-1);
    this.unitNodes = [];
    if (this.placed) {
      this.unitNodes = this.raw.units.kinds.map(() => []);
      for (let node = 0; node < count; node++) {
        const unit = this.nodes.units[node];
        this.unitOf[node] = unit;
        if (unit >= 0) this.unitNodes[unit].push(node);
      }
      return;
    }
    for (let node = 0; node < count; node++) {
      const made = this.nodes.outputs[node].filter((tensor) => tensor >= 0);
      if (made.length && made.every((tensor) => this.constant[tensor])) continue;
      this.unitOf[node] = this.unitNodes.length;
      this.unitNodes.push([node]);
    }
  }

  /** The readers of each tensor, made when it is first asked for. */
  get readers() {
    if (!this.foundReaders) {
      this.foundReaders = new Map();
      this.nodes.inputs.forEach((tensors, node) => {
        for (const tensor of tensors) {
          if (tensor < 0) continue;
          if (!this.foundReaders.has(tensor)) this.foundReaders.set(tensor, []);
          const known = this.foundReaders.get(tensor);
          if (known[known.length - 1] !== node) known.push(node);
        }
      });
    }
    return this.foundReaders;
  }

  /** The range of the integers of each tensor that has one: under its name, and as integers and floats around it. */
  get ranges() {
    if (!this.foundRanges) {
      this.foundRanges = new Map();
      for (const each of this.raw.ranges || []) {
        const made = this.producer[each.tensor];
        const reader = (this.readers.get(each.tensor) || []).find((node) => this.operator(node).name === "QuantizeLinear");
        const whole = made >= 0 && this.operator(made).name === "DequantizeLinear" ? this.nodes.inputs[made][0] : reader === undefined ? -1 : this.nodes.outputs[reader][0];
        this.foundRanges.set(each.tensor, each);
        if (!(whole >= 0) || this.producer[whole] < 0) continue; // in a bundle of others
        const floats = (this.readers.get(whole) || []).filter((reader) => this.operator(reader).name === "DequantizeLinear").map((reader) => this.nodes.outputs[reader][0]);
        for (const tensor of [whole, this.nodes.inputs[this.producer[whole]][0], ...floats]) this.foundRanges.set(tensor, each);
      }
    }
    return this.foundRanges;
  }

  operator(node) {
    return this.tables.doc.operators[this.nodes.operators[node]];
  }

  name(node) {
    return this.nodes.names[node];
  }

  /** The stated attributes of a node: pairs of a name and a value. */
  attributes(node) {
    const number = (this.nodes.attributes || [])[node] ?? -1;
    if (number < 0) return [];
    return this.tables.doc.attributes[number].split("\n").map((line) => {
      const end = line.indexOf(": ");
      return [line.slice(0, end), line.slice(end + 2)];
    });
  }

  /** The device of a unit; in a body that was not placed that of the node around it. */
  device(unit) {
    if (this.placed) return this.raw.units.devices[unit];
    const [graph, node] = this.around;
    if (graph < 0) return 0;
    const outer = this.tables.graphs[graph];
    return outer.unitOf[node] < 0 ? 0 : outer.device(outer.unitOf[node]);
  }

  region(unit) {
    return this.placed ? this.raw.units.regions[unit] : -1;
  }

  composite(unit) {
    const number = this.placed ? this.raw.units.composites[unit] : -1;
    return number < 0 ? "" : this.tables.doc.composites[number];
  }

  /** The seconds of one run of a unit on a device, null where that does not support it. */
  seconds(unit, device = this.device(unit)) {
    return this.placed ? this.raw.units.seconds[device][unit] : null;
  }

  operations(unit) {
    return this.placed ? this.raw.units.operations[unit] : 0;
  }

  reason(unit) {
    const number = this.placed ? this.raw.units.reasons[unit] : -1;
    return number < 0 ? null : { number, ...this.tables.doc.reasons[number] };
  }

  rules(unit) {
    return this.placed ? this.raw.units.rules[unit].map((rule) => this.tables.doc.rules[rule]) : [];
  }

  /** Whether a body of a node of the unit is placed by itself, and so counted there. */
  hasPlacedBody(unit) {
    return this.unitNodes[unit].some((node) =>
      (this.tables.bodies.get(`${this.number}:${node}`) || []).some((body) => this.tables.graphs[body].placed));
  }

  tensor(number) {
    const kind = this.raw.tensors.types[number];
    const type = kind < 0 ? null : this.tables.doc.types[kind];
    return { name: this.raw.tensors.names[number], type, bytes: type ? type.bytes : null };
  }

  /** The bytes of a tensor that cross between two regions (-1: the host), null where they are not known. */
  bytesSent(tensor, from, to) {
    if (!this.foundSent) {
      this.foundSent = new Map();
      this.regions.forEach((region, number) => {
        for (const each of region.boundary) this.foundSent.set(`${number}:${each.enters}:${each.tensor}`, each.bytes);
      });
    }
    const sent = this.foundSent.get(`${from}:false:${tensor}`);
    if (sent !== undefined) return sent;
    const taken = this.foundSent.get(`${to}:true:${tensor}`);
    return taken !== undefined ? taken : this.tensor(tensor).bytes;
  }

  describeTensor(number) {
    const { type, bytes } = this.tensor(number);
    if (!type) return "type unknown";
    const shape = type.shape === null ? "[…]" : `[${type.shape.map((dim) => (dim === null ? "?" : printable(dim))).join(", ")}]`;
    return `${type.dtype}${shape}${bytes === null ? "" : ` · ${formatBytes(bytes)}`}`;
  }
}

/** All that the page shows: the report, the decisions, and what was measured, if anything. */
/** The user's numbers of nodes, which colour the graph. */
class Overlay {
  constructor({ title, values, marks }) {
    Object.assign(this, { title, marks, shown: true, values: new Map(Object.entries(values)) });
    const numbers = [...this.values.values()]; // too many, perhaps, to be arguments of one call
    this.least = numbers.reduce((one, other) => Math.min(one, other));
    this.greatest = numbers.reduce((one, other) => Math.max(one, other));
  }

  /** The number of a node, by its name or its first output's; undefined where it has none. */
  find(graph, node) {
    const path = graph.path ? `${graph.path}/` : "";
    const made = graph.nodes.outputs[node].find((tensor) => tensor >= 0);
    return this.values.get(path + graph.name(node)) ?? this.values.get(path + (made === undefined ? "" : graph.tensor(made).name));
  }

  /** The largest number of a part's nodes: what stands out is seen before a part is opened. */
  findLargest(part) {
    const found = part.nodes.map((node) => this.find(part.graph, node)).filter((value) => value !== undefined);
    return found.length ? found.reduce((one, other) => Math.max(one, other)) : undefined;
  }

  /** The colour at a share of the range. */
  fill(share) {
    const [low, high] = isDark() ? [[40, 46, 54], [196, 84, 0]] : [[255, 244, 226], [216, 92, 0]];
    return `rgb(${low.map((from, at) => Math.round(from + share * (high[at] - from))).join(", ")})`;
  }

  fillOf(value) {
    return this.fill(this.greatest > this.least ? (value - this.least) / (this.greatest - this.least) : 1);
  }
}

class Tables {
  constructor(data) {
    this.data = data;
    this.doc = data.decisions;
    this.report = data.report;
    this.promises = data.promises;
    this.devices = this.doc.devices;
    this.bodies = new Map();
    this.doc.graphs.forEach((graph, number) => {
      if (number === 0) return;
      const key = graph.around.join(":");
      if (!this.bodies.has(key)) this.bodies.set(key, []);
      this.bodies.get(key).push(number);
    });
    this.graphs = this.doc.graphs.map((_, number) => new Graph(this, number));
    this.regionReports = new Map(this.report.regions.map((each) => [each.name, each]));
    this.measured = measureRegions(data.trace);
    this.reasons = this.sumReasons();
    this.overlay = data.overlay ? new Overlay(data.overlay) : null;
  }

  /** The reasons for staying on the host with their nodes and work (the host's seconds), the largest first. */
  sumReasons() {
    const rows = new Map();
    let operations = 0;
    let seconds = 0;
    for (const graph of this.graphs) {
      if (!graph.placed) continue;
      graph.unitNodes.forEach((nodes, unit) => {
        const inside = graph.hasPlacedBody(unit);
        const work = inside ? 0 : graph.trips * graph.operations(unit);
        const taken = inside ? 0 : graph.trips * (graph.seconds(unit, 0) || 0);
        operations += work;
        seconds += taken;
        const reason = graph.reason(unit);
        if (reason === null) return;
        const own = nodes.filter((node) => !graph.inserted.has(node)).length;
        if (!own) return;
        const row = rows.get(reason.number) || { ...reason, nodes: 0, operations: 0, seconds: 0, units: [] };
        row.nodes += own;
        row.operations += work;
        row.seconds += taken;
        row.units.push([graph.number, unit]);
        rows.set(reason.number, row);
      });
    }
    this.operations = operations;
    this.hostSeconds = seconds;
    return [...rows.values()].sort((a, b) => b.seconds - a.seconds || b.operations - a.operations || b.nodes - a.nodes);
  }
}

/**
 * How a range of integers fits the data: the shares of the integers that are unused, of the data's range beyond, and
 * of its values outside of the range that the method chose. Tensors that share a scale may have integers for more.
 */
function measureFit({ low, high, data: [least, greatest], clipped }) {
  const inside = Math.max(0, Math.min(high, greatest) - Math.max(low, least));
  const beyond = greatest > least ? 1 - inside / (greatest - least) : 0;
  return { unused: 1 - inside / (high - low || 1), beyond, clipped: beyond > 1e-6 ? clipped : 0 };
}

/** The seconds of a run of each stage of a trace: name -> [seconds, runs]. */
function measureRegions(trace) {
  const found = new Map();
  for (const event of trace ? trace.events : []) {
    const known = found.get(event.name) || [0, 0];
    found.set(event.name, [known[0] + event.seconds, known[1] + 1]);
  }
  return found;
}
