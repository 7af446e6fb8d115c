// Pictures of numbers: where time goes, memory over the steps, the timeline of a run.

const SVG = "http://www.w3.org/2000/svg";

function draw(tag, attributes = {}, text) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = printable(text);
  return element;
}

/** A bar of parts side by side: parts are {label, value, fill, pattern}. */
function makeBar(parts, total) {
  const bar = make("div", { className: "bar" });
  for (const part of parts) {
    if (!part.value) continue;
    const share = part.value / total;
    const span = make("span", { text: share > 0.12 && !part.hatched ? part.label : "", title: `${part.label}: ${part.shown || formatShare(share)}` });
    span.style.width = `${100 * share}%`;
    span.style.background = part.fill;
    span.style.color = inkOf();
    if (!span.textContent) span.style.padding = "0"; // its width is its share, and nothing else
    if (part.hatched) span.style.background = `repeating-linear-gradient(45deg, ${part.fill} 0 5px, transparent 5px 9px)`;
    bar.append(span);
  }
  return bar;
}

/** The seconds of a run: on the host, on each device, of transfers and launches. */
function splitSeconds(tables) {
  const devices = tables.devices.map(() => 0);
  for (const graph of tables.graphs) {
    if (!graph.placed) continue;
    graph.unitNodes.forEach((_, unit) => {
      if (graph.device(unit) === 0 && graph.hasPlacedBody(unit)) return;
      devices[graph.device(unit)] += graph.trips * (graph.seconds(unit) || 0);
    });
  }
  return devices;
}

/** A line for each target with a limit of its rule file, or whose compiler reports what it uses. */
function describeMemory({ report }) {
  const planned = Object.entries(report.memory || {}).map(([target, use]) => `${target} needs ${formatUse(use)}, as planned for limits.memory: constants of all regions ${formatBytes(use.constants)}, largest arena of activations ${formatBytes(use.activations)}.`);
  const compiled = Object.entries(report.sram || {}).map(([target, use]) => `Compiled regions of ${target} use at most ${formatUse(use)} of SRAM.`);
  return [...planned, ...compiled].map((text) => make("p", { className: "caption", text }));
}

function showMemory(pane, page) {
  const { memory } = page.tables.data;
  const limits = describeMemory(page.tables);
  if (!memory || !memory.buffers.length) {
    pane.replaceChildren(...limits, make("p", { className: "note soft", text: (memory && memory.why) || "The sizes of the tensors are not known, so there is no picture of memory." }));
    return;
  }
  const { buffers, steps, peak, total } = memory;
  const graph = page.tables.graphs[0];
  const left = 64;
  const width = Math.max(640, pane.clientWidth - 40);
  const height = Math.max(120, pane.clientHeight - 62);
  const x = (step) => left + ((width - left) * step) / Math.max(1, steps);
  const y = (offset) => height - 22 - ((height - 30) * offset) / peak;
  const svg = draw("svg", { width, height, role: "img", "aria-label": `Memory of activations over ${steps} steps, at most ${formatBytes(peak)}` });
  for (let line = 0; line <= 4; line++) {
    const at = (peak * line) / 4;
    svg.append(draw("line", { x1: left, x2: width, y1: y(at), y2: y(at), stroke: "var(--grid)" }));
    svg.append(draw("text", { x: left - 6, y: y(at) + 4, "text-anchor": "end", class: "axis" }, formatBytes(Math.round(at))));
  }
  for (const [tensor, offset, bytes, first, last, device] of buffers) {
    const box = draw("rect", {
      x: x(first), y: y(offset + bytes), width: Math.max(1, x(last + 1) - x(first)), height: Math.max(0.8, y(offset) - y(offset + bytes)),
      fill: fillOf(device), stroke: "var(--bg)", "stroke-width": 0.8, class: "live", tabindex: -1,
    });
    const { name } = graph.tensor(tensor);
    box.append(draw("title", {}, `${name}: ${formatBytes(bytes)} at ${formatBytes(offset)}, steps ${first} to ${last}`));
    box.addEventListener("click", () => page.showTensor(graph, tensor));
    svg.append(box);
  }
  svg.append(draw("text", { x: left, y: height - 6, class: "axis" }, `units of the main graph, 0 to ${steps}, in the order of execution →`));
  const saved = total > peak ? `, instead of ${formatBytes(total)} without reuse` : "";
  pane.replaceChildren(
    ...limits,
    make("p", { className: "caption", text: `The activations of the main graph lie in ${formatBytes(peak)}${saved}: a rectangle is a tensor, as wide as it lives, as high as it is large. ${memory.why || ""}` }),
    make("div", { className: "scroll" }, svg));
}

function showTimeline(pane, page) {
  const { trace } = page.tables.data;
  if (!trace || !trace.events.length) {
    pane.replaceChildren(
      make("p", { className: "note" }, "No run was traced. ", make("code", { text: "byoc run m.byoc --inputs random --trace trace.json" }), " writes a timeline; ", make("code", { text: "byoc report m.byoc -o report.html --trace trace.json" }), " draws it here and puts measured seconds beside predicted ones."));
    return;
  }
  const { events, seconds } = trace;
  const sent = listTransfers(page.tables, events);
  const rows = sent.length ? [...trace.rows, "transfers, predicted"] : trace.rows;
  const left = 150;
  const height = 24;
  const width = Math.max(700, pane.clientWidth - 40);
  const x = (at) => left + ((width - left - 10) * at) / (seconds || 1);
  const svg = draw("svg", { width, height: rows.length * (height + 6) + 34, role: "img", "aria-label": `Timeline of a run of ${formatSeconds(seconds)}` });
  for (let line = 0; line <= 5; line++) {
    const at = (seconds * line) / 5;
    svg.append(draw("line", { x1: x(at), x2: x(at), y1: 0, y2: rows.length * (height + 6) + 6, stroke: "var(--grid)" }));
    svg.append(draw("text", { x: x(at), y: rows.length * (height + 6) + 22, "text-anchor": line === 5 ? "end" : "middle", class: "axis" }, formatSeconds(at)));
  }
  rows.forEach((row, number) => {
    const y = number * (height + 6) + 4;
    svg.append(draw("text", { x: left - 8, y: y + 16, "text-anchor": "end" }, shorten(row, 22)));
  });
  for (const event of events) {
    const device = page.tables.devices.indexOf(event.device);
    const y = event.row * (height + 6) + 4;
    const wide = Math.max(1.2, x(event.start + event.seconds) - x(event.start));
    const box = draw("rect", { x: x(event.start), y, width: wide, height, fill: fillOf(Math.max(0, device)), stroke: lookOf(Math.max(0, device)).line, class: "live", tabindex: -1, ...(device > 0 ? { rx: 4 } : { "stroke-dasharray": "3 2" }) });
    const memory = `${event.bytes_held ? `; ${formatBytes(event.bytes_held)} of tensors are alive` : ""}${event.peak_bytes ? `, at most ${formatBytes(event.peak_bytes)} in memory` : ""}`;
    box.append(draw("title", {}, `${event.name} on ${event.device}: ${formatSeconds(event.seconds)}, reads ${formatBytes(event.bytes_read)}, makes ${formatBytes(event.bytes_made)}${memory}`));
    box.addEventListener("click", () => page.showStage(event.name));
    svg.append(box);
    if (wide > 60) drawLayers(svg, x(event.start), y + height - 6, wide, listLayers(page.tables, event.name));
    if (wide > 60) svg.append(draw("text", { x: x(event.start) + 5, y: y + 14, "pointer-events": "none" }, shorten(event.name, Math.floor(wide / 7))));
  }
  for (const each of sent) {
    const wide = Math.max(2, x(each.seconds) - x(0));
    const at = each.enters ? x(each.at) - wide : x(each.at);
    const box = draw("rect", { x: Math.max(left, at), y: trace.rows.length * (height + 6) + 4, width: wide, height, class: "live transfer", fill: isDark() ? "#ffae7a" : "#b84300", tabindex: -1 });
    const way = each.enters ? `into ${each.name}, before it runs` : `out of ${each.name}, after it ran`;
    box.append(draw("title", {}, `${formatSum(each.sizes)} ${way}: predicted ${formatSeconds(each.seconds)}; what was measured of it is part of the region's run`));
    box.addEventListener("click", () => page.showStage(each.name));
    svg.append(box);
  }
  const peak = events.reduce((most, event) => Math.max(most, event.peak_bytes || 0), 0);
  pane.replaceChildren(make("p", { className: "caption", text: `A traced run took ${formatSeconds(seconds)}; predicted were ${formatSeconds(page.tables.report.predicted.seconds)}. ${peak ? `The process had at most ${formatBytes(peak)} in memory. ` : ""}${trace.why || ""}` }), make("div", { className: "scroll" }, svg));
}

/** The transfers of the regions of a traced run: when they begin or end, bytes, and predicted seconds. */
function listTransfers(tables, events) {
  const regions = new Map(tables.graphs.flatMap((graph) => graph.regions.map((region) => [region.name, region])));
  return events.filter((event) => regions.has(event.name)).flatMap((event) => [true, false].map((enters) => {
    const sent = regions.get(event.name).boundary.filter((each) => each.enters === enters);
    return {
      name: event.name, enters, at: event.start + (enters ? 0 : event.seconds), sizes: sent.map((each) => each.bytes),
      seconds: sent.reduce((sum, each) => sum + (each.seconds || 0), 0),
    };
  }));
}

/** The operators inside of a stage as a traced run had them, else the layers that a codegen tells: {name, operation, weight, shown}. */
function listLayers(tables, name) {
  const operators = ((tables.data.trace || {}).operators || {})[name];
  if (operators && operators.length) {
    return operators.map((each) => ({
      name: each.name, operation: each.nodes.join(", "), weight: each.seconds,
      shown: each.cycles ? `${each.cycles.toLocaleString("en-US")} cycles` : formatSeconds(each.seconds),
    }));
  }
  const layers = (tables.data.layers || {})[name] || [];
  return layers.map((layer) => ({ name: layer.name, operation: layer.operation, weight: layer.cycles, shown: `${layer.cycles.toLocaleString("en-US")} cycles` }));
}

/** The layers of a stage at the foot of its run, as wide as their share of the time. */
function drawLayers(svg, left, top, width, layers) {
  const total = layers.reduce((sum, layer) => sum + layer.weight, 0);
  let at = 0;
  for (const [number, layer] of total ? layers.entries() : []) {
    const share = layer.weight / total;
    const box = draw("rect", { x: left + width * at, y: top, width: Math.max(0.5, width * share), height: 5, class: "layer", fill: "var(--ink)", opacity: number % 2 ? 0.75 : 0.4 });
    box.append(draw("title", {}, `${layer.name}${layer.operation && layer.operation !== layer.name ? ` (${layer.operation})` : ""}: ${layer.shown}, ${formatShare(share)} of it`));
    svg.append(box);
    at += share;
  }
}
