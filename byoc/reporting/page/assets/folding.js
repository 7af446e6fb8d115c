// Folding: many parts become few. Equal blocks as one, then by scope of names, then by position.

const MOST_CHILDREN = 28;
const MOST_REPEATS_TRIED = 8;

/** Fold many parts into few: equal blocks as one, then by scope of names, then by position. */
function foldParts(graph, parts) {
  if (parts.length <= 6) return parts;
  const run = findRun(graph, parts);
  if (run && (parts.length > MOST_CHILDREN || run.count >= 4) && run.period * (run.count - 1) >= 4) {
    const stop = run.start + run.period * run.count;
    const blocks = [];
    for (let at = run.start; at < stop; at += run.period) blocks.push(parts.slice(at, at + run.period));
    return foldParts(graph, [...parts.slice(0, run.start), makeRepeatPart(graph, blocks), ...parts.slice(stop)]);
  }
  if (parts.length <= MOST_CHILDREN) return parts;
  return foldByScope(graph, parts) || foldByPosition(graph, parts);
}

/** The part of a scope that tells it from its neighbours: the last with a number, else the last. */
function nameScope(scope) {
  const parts = scope.split("/").filter(Boolean);
  return parts.findLast((part) => /\d/.test(part)) || parts[parts.length - 1] || "";
}

function makeGroup(graph, parts, fields) {
  const regions = new Set(parts.map((part) => part.region));
  const nodes = parts.flatMap((part) => part.nodes);
  return new Part({
    kind: "group", title: nameScope(findScope(graph, nodes)) || describeOperators(graph, nodes), graph, nodes,
    units: parts.flatMap((part) => part.units), device: findDevice(parts.map((part) => part.device)), region: regions.size === 1 ? parts[0].region : -1,
    token: `g|${parts.map((part) => part.token).join(",")}`, makeChildren: () => foldParts(graph, parts), ...fields,
  });
}

/** What names equal blocks: the scope that they share but for its number, else what one is made of. */
function nameBlocks(graph, blocks) {
  const scopes = blocks.map((parts) => nameScope(findScope(graph, parts.flatMap((part) => part.nodes))));
  const kinds = new Set(scopes.map((scope) => scope.replace(/\d+/g, "#")));
  if (kinds.size === 1 && scopes[0] && new Set(scopes).size === scopes.length) return `${scopes[0]} … ${scopes[scopes.length - 1]}`;
  return `(${describeParts(blocks[0]) || describeOperators(graph, blocks[0].flatMap((part) => part.nodes))})`;
}

/** Equal blocks as one part, which opens into the blocks. */
function makeRepeatPart(graph, blocks) {
  const block = (parts, number) =>
    parts.length === 1 ? parts[0] : makeGroup(graph, parts, { title: nameScope(findScope(graph, parts.flatMap((p) => p.nodes))) || `block ${number + 1}` });
  const whole = blocks.flat();
  return makeGroup(graph, whole, {
    kind: "repeat", count: blocks.length, period: blocks[0].length, title: nameBlocks(graph, blocks),
    makeChildren: () => foldEvenly(graph, blocks.map(block), "blocks"),
  });
}

/** The run of equal blocks that saves most parts, as {start, period, count}; null without one. */
function findRun(graph, parts) {
  const tokens = parts.map((part) => numberToken(part.token));
  const last = new Map();
  const distances = new Map();
  tokens.forEach((token, at) => {
    const before = last.get(token);
    if (before !== undefined) distances.set(at - before, (distances.get(at - before) || 0) + 1);
    last.set(token, at);
  });
  const periods = [...distances.entries()].sort((a, b) => b[1] - a[1] || a[0] - b[0]).slice(0, MOST_REPEATS_TRIED);
  let best = null;
  for (const [period] of periods) {
    let start = 0;
    for (let at = 0; at + period <= tokens.length; at++) {
      if (at + period < tokens.length && tokens[at] === tokens[at + period]) continue;
      const length = at - start + period;
      const count = Math.floor(length / period);
      const saved = (count - 1) * period;
      if (count >= 2 && (!best || saved > best.saved || (saved === best.saved && period < best.period))) {
        best = { start, period, count, length, saved };
      }
      start = at + 1;
    }
  }
  return best && chooseBorders(graph, parts, best);
}

/** Shift a run so that few tensors cross the borders of its blocks; it may lose a block. */
function chooseBorders(graph, parts, run) {
  if (run.period === 1) return run;
  const place = new Map();
  parts.forEach((part, at) => part.nodes.forEach((node) => place.set(node, at)));
  const change = new Int32Array(parts.length + 2);
  parts.forEach((part, at) => {
    for (const node of part.nodes) {
      for (const tensor of graph.nodes.outputs[node]) {
        const readers = tensor < 0 ? [] : graph.readers.get(tensor) || [];
        const end = readers.reduce((latest, reader) => Math.max(latest, place.get(reader) ?? at), at);
        if (end > at) { change[at + 1]++; change[end + 1]--; }
      }
    }
  });
  const crossing = new Int32Array(parts.length + 1);
  for (let at = 1; at <= parts.length; at++) crossing[at] = crossing[at - 1] + change[at];
  let best = null;
  for (let shift = 0; shift < run.period; shift++) {
    const count = Math.floor((run.length - shift) / run.period);
    if (count < Math.max(2, run.count - 1)) continue;
    const cost = crossing[run.start + shift];
    if (!best || cost < best.cost || (cost === best.cost && count > best.count)) best = { shift, count, cost };
  }
  return best ? { ...run, start: run.start + best.shift, count: best.count } : run;
}

/** Group neighbours whose names share a scope; null where scopes do not help. */
function foldByScope(graph, parts) {
  const all = findScope(graph, parts.flatMap((part) => part.nodes));
  for (let depth = 1; depth <= 4; depth++) {
    const keys = parts.map((part) => {
      const rest = graph.name(part.nodes[0]).slice(all.length).replace(/^[/.]+/, "").split(/[/.]/);
      return rest.length > 1 ? rest.slice(0, Math.min(depth, rest.length - 1)).join("/") : "";
    });
    const runs = [];
    keys.forEach((key, at) => {
      const known = runs[runs.length - 1];
      if (known && known.key === key) known.parts.push(parts[at]);
      else runs.push({ key, parts: [parts[at]] });
    });
    if (runs.length < 3 || runs.length > parts.length / 2) continue;
    // A run that has nearly all would only open into itself: a deeper scope says more.
    const longest = Math.max(...runs.map((run) => run.parts.length));
    if (longest > 0.8 * parts.length && depth < 4) continue;
    const made = runs.map(({ parts: own }) => (own.length === 1 ? own[0] : makeGroup(graph, own, {})));
    return made.length > MOST_CHILDREN ? foldParts(graph, made) : made;
  }
  return null;
}

function foldByPosition(graph, parts) {
  return foldEvenly(graph, parts, "");
}

/** Cut a sequence into at most so many runs of neighbours as are shown together. */
function foldEvenly(graph, parts, noun) {
  if (parts.length <= MOST_CHILDREN) return parts;
  const size = Math.max(Math.ceil(parts.length / MOST_CHILDREN), Math.min(16, Math.ceil(Math.sqrt(parts.length))));
  const runs = [];
  for (let at = 0; at < parts.length; at += size) {
    const own = parts.slice(at, at + size);
    const title = noun && `${noun} ${at + 1}–${at + own.length}`;
    runs.push(own.length === 1 ? own[0] : makeGroup(graph, own, { ...(title ? { title } : {}), makeChildren: () => foldEvenly(graph, own, noun) }));
  }
  return runs;
}
