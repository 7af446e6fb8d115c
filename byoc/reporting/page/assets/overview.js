// The page: the verdict, the summary, search, tabs and keys.

class Page {
  constructor(tables) {
    this.tables = tables;
    this.details = new Details(byId("details"), this);
    this.showVerdict();
    this.makeTabs();
    this.picture = new Picture(byId("graph"), tables, (found) => this.showSelected(found));
    this.showSummary();
    this.showLegend();
    this.details.show(null);
    this.search = new Search(byId("search"), byId("found"), this);
    this.listen();
  }

  /** The one line that says it all: what is wrong first. */
  showVerdict() {
    const { report } = this.tables;
    byId("model").textContent = shorten(report.model, 70);
    const chips = [];
    if (!report.nodes.offloaded) chips.push(["bad", "Nothing was offloaded"]);
    if (report.not_verified !== null) {
      const { compiled } = this.tables.data;
      chips.push(compiled ? ["bad", `Not verified: ${report.not_verified}`] : ["", "Only a plan: nothing was compiled or verified"]);
    }
    if (report.verification && !report.verification.passed) chips.push(["bad", `Verification failed against ${report.verification.against}`]);
    if (report.predicted.seconds > report.predicted.host_only * 1.0001) chips.push(["bad", "Predicted to be slower than the host alone"]);
    chips.push(...this.judgeAccuracy());
    if (report.nodes.offloaded) {
      const names = [...new Set(report.regions.map((each) => each.device))].join(" and ");
      chips.push(["", `${formatShare(report.compute.offloaded)} of the compute on ${names}`]);
      chips.push(["", `${formatCount(report.regions.length, "region")}, ${formatNumber(report.nodes.offloaded)} of ${formatCount(report.nodes.total, "node")}`]);
    }
    const ratio = report.predicted.host_only / report.predicted.seconds;
    chips.push([ratio > 1.005 ? "good" : "", `${formatSeconds(report.predicted.seconds)} predicted, host alone ${formatSeconds(report.predicted.host_only)}${ratio > 1.005 ? ` (${roundNumber(ratio)} × faster)` : ""}`]);
    const ranHere = report.regions.some((each) => !each.not_here);
    if (report.verification && report.verification.passed && ranHere) {
      const error = report.verification.largest_relative_error;
      const against = report.verification.accuracy ? ` against the model in ${(report.precision || {}).dtype || "lower precision"}` : "";
      const size = error === 0 ? ", equal" : `, largest error ${(error ?? 0).toExponential(1)} of the range`;
      chips.push(["good", `${report.not_verified === null ? "Verified" : "The rest is verified"}${against}${error === null ? "" : size}`]);
    }
    byId("verdict").replaceChildren(...chips.map(([kind, text]) => make("span", { className: `chip ${kind}`, text })));
  }

  /** What lower precision costs: a verified bundle may compute the wrong model exactly. */
  judgeAccuracy() {
    const { accuracy, accuracy_warnings: warnings } = this.tables.data;
    const chips = warnings.map((text) => ["warn", text[0].toUpperCase() + text.slice(1)]);
    if (!accuracy.length) return chips;
    const [worst] = accuracy;
    const same = worst.same_class ? `, the same class in ${worst.same_class}` : "";
    const of = accuracy.length > 1 ? ` (worst of ${accuracy.length} outputs)` : "";
    return [[worst.level, worst.ratio === "equal" ? "Equal to the float model" : `${worst.ratio} against the float model${same}${of}`], ...chips];
  }

  summarizeAccuracy() {
    const { accuracy, accuracy_warnings: warnings } = this.tables.data;
    if (!accuracy.length && !warnings.length) return [];
    const rows = accuracy.slice(0, 5).map((each) => make("li", {},
      make("span", { className: "name", text: shortenPath(each.output, 40) }), make("span", { text: ": " }),
      make("b", { className: `level ${each.level}`, text: each.ratio }),
      make("span", { text: each.same_class ? `, the same class in ${each.same_class} of its rows` : "" })));
    const rest = accuracy.length - rows.length;
    return [make("h2", { text: "Accuracy (signal-to-noise against the float model)" }),
      make("ul", { className: "accuracy" }, ...rows),
      rest > 0 ? make("p", { className: "soft", text: `and ${formatCount(rest, "output")} with a higher ratio` }) : null,
      ...warnings.map((text) => make("p", { className: "level warn", text: `${text[0].toUpperCase()}${text.slice(1)}.` })),
      accuracy.length ? make("p", { className: "soft", text: "Good from 30 dB, an error of 3 % of the signal; bad below 20 dB, 10 %, unless 99 % of the rows keep their class." }) : null].filter(Boolean);
  }

  showSummary() {
    const { tables } = this;
    const { report } = tables;
    const pane = byId("summary");
    const devices = splitSeconds(tables);
    const { predicted } = report;
    const most = Math.max(predicted.seconds, predicted.host_only);
    const parts = [
      ...devices.map((value, device) => ({ label: tables.devices[device], value, fill: fillOf(device), shown: formatSeconds(value) })),
      { label: "transfers", value: predicted.transfer, fill: isDark() ? "#b3541e" : "#f0a27a", hatched: true, shown: formatSeconds(predicted.transfer) },
      { label: "launches", value: predicted.launch, fill: isDark() ? "#6b5b95" : "#b8aad6", hatched: true, shown: formatSeconds(predicted.launch) },
    ];
    const rest = Math.max(0, most - parts.reduce((sum, part) => sum + part.value, 0));
    const line = (label, own) => make("div", { className: "barline" }, make("span", { text: label }), makeBar([...own], most));
    pane.replaceChildren(
      ...this.summarizeAccuracy(),
      make("h2", { text: "Where the time goes (predicted)" }),
      line("this plan", [...parts, { label: "", value: rest, fill: "transparent" }]),
      line("host alone", [{ label: formatSeconds(predicted.host_only), value: predicted.host_only, fill: fillOf(0) }, { label: "", value: Math.max(0, most - predicted.host_only), fill: "transparent" }]),
      make("div", { className: "keyline" }, ...parts.filter((part) => part.value).map((part) => make("span", {}, this.makePatch(part), make("span", { text: `${part.label} ${part.shown}` })))),
      ...this.summarizeGains(),
      ...this.summarizeReasons(),
      ...this.summarizeModel(devices));
  }

  makePatch(part) {
    const patch = make("span", { className: "swatch" });
    patch.style.background = part.hatched ? `repeating-linear-gradient(45deg, ${part.fill} 0 4px, transparent 4px 7px)` : part.fill;
    patch.style.borderColor = "var(--line)";
    patch.style.borderWidth = "1px";
    return patch;
  }

  summarizeReasons() {
    const { tables } = this;
    const rows = tables.reasons.slice(0, 4);
    if (!rows.length) return [make("h2", { text: "Why not more" }), make("p", { text: "Everything is on accelerators." })];
    const shown = rows.map((row) => {
      const share = tables.hostSeconds ? row.seconds / tables.hostSeconds : 0;
      const fill = make("i");
      fill.style.width = `${100 * share}%`;
      return make("button", { className: "reason", title: "Show these nodes", on: { click: () => this.showReason(row) } },
        make("div", { text: row.text }), make("div", { className: "share-line" }, fill),
        make("div", { className: "soft", text: `${formatShare(share)} of the work, ${formatSeconds(row.seconds)} on the host · ${formatCount(row.nodes, "node")} · ${formatShare(tables.operations ? row.operations / tables.operations : 0)} of the operations` }),
        row.remedy ? makeProse("remedy", row.remedy) : null);
    });
    const more = tables.reasons.length - rows.length;
    return [make("h2", { text: "Why not more (by share of the work)" }), ...shown,
      more > 0 ? make("button", { className: "link", text: `${formatCount(more, "other reason")}`, on: { click: () => this.showList("reasons") } }) : null].filter(Boolean);
  }

  summarizeGains() {
    const rows = this.tables.report.what_if.filter((each) => each.gain > 0).slice(0, 3);
    if (!rows.length) return [];
    return [make("h2", { text: "What would gain most" }), make("ul", {}, ...rows.map((each) => make("li", {}, make("b", { text: `${this.formatGain(each.gain)} less` }), make("span", { text: ` if ${each.target} took ${formatNumber(each.nodes)} ${each.operator}` }))))];
  }

  summarizeModel() {
    const { report } = this.tables;
    const trips = this.tables.graphs.filter((graph) => graph.trips !== 1 && graph.placed).length;
    return [make("h2", { text: "Model" }), makeList([
      ["nodes", `${formatNumber(report.nodes.total)} that run: ${formatNumber(report.nodes.offloaded)} on accelerators, ${formatNumber(report.nodes.host)} on the host; ${formatNumber(report.nodes.constant)} constant`],
      ["strategy", report.strategy || ""],
      ["transfers", report.predicted.transfer ? `${formatSeconds(report.predicted.transfer)}, ${formatShare(report.predicted.transfer / report.predicted.seconds)} of the time` : ""],
      ["precision", report.precision ? `${report.precision.dtype || "by target"}, ${report.precision.units} units` : ""],
      ["energy", report.predicted.joules === null ? "" : `${roundNumber(report.predicted.joules)} J, host alone ${report.predicted.host_only_joules === null ? "unknown" : `${roundNumber(report.predicted.host_only_joules)} J`}`],
      ["estimated", report.predicted.estimated > 0.0005 ? `${formatShare(report.predicted.estimated)} of the work` : ""],
      ["sizes", (report.open_dimensions || []).map((each) => `${each.name} = ${each.size}`).join(", ")],
      ["bodies", trips ? `${trips} run more than once` : ""],
    ])];
  }

  formatGain(gain) {
    const { objective, optimized } = this.tables.report.predicted;
    if (objective === "latency") return formatSeconds(gain);
    if (objective === "energy") return `${roundNumber(gain)} J`;
    return formatShare(optimized ? gain / optimized : 0);
  }

  describeBreakEven(each) {
    const ways = [];
    if (each.link !== null) ways.push(`a link of ${roundNumber(each.link / 1e9)} GB/s`);
    if (each.faster !== null) ways.push(`${each.target} being ${roundNumber(each.faster)} × as fast`);
    const what = `${each.operators.join(", ")} at ${shorten(each.unit, 40)}${each.groups > 1 ? ` (${each.groups} of this kind)` : ""}`;
    const when = ways.length ? `it would pay from ${ways.join(", or ")} on` : "no link or speed would change that";
    return `${what}: on ${each.target} it would take ${formatSeconds(each.loss)} more, transfers counted; ${when}.`;
  }

  /** The plans of an accuracy budget, none without one. */
  get trade() {
    return (this.tables.report.precision || {}).trade || [];
  }

  makeTabs() {
    const side = [["summary", "Summary"], ["details", "Selected"]];
    byId("side-tabs").replaceChildren(...side.map(([name, text]) => make("button", { text, id: `tab-${name}`, attributes: { role: "tab", "aria-controls": name }, on: { click: () => this.showSide(name) } })));
    this.showSide("summary");
    const regions = this.tables.report.regions.length;
    this.ranges = this.tables.graphs.flatMap((graph) => (graph.raw.ranges || []).map((range) => ({ graph, range })));
    this.lists = {
      regions: [`Regions (${regions})`, listRegions], boundary: ["Boundary tensors", listBoundary], reasons: [`Why on the host (${this.tables.reasons.length})`, listReasons],
      gains: ["What if", listGains], ...(this.trade.length > 1 ? { accuracy: ["Accuracy", listTrade] } : {}), ...(this.ranges.length ? { ranges: [`Ranges that fit worst (${this.ranges.length})`, listRanges] } : {}), memory: ["Memory", showMemory], timeline: ["Timeline", showTimeline], notes: [`Notes (${this.tables.report.notes.length + this.tables.promises.length})`, listNotes],
    };
    byId("list-tabs").replaceChildren(...Object.entries(this.lists).map(([name, [text]]) => make("button", { text, id: `tab-${name}`, attributes: { role: "tab", "aria-controls": "list" }, on: { click: () => this.showList(name) } })));
    this.showList(regions ? "regions" : "reasons");
    for (const list of document.querySelectorAll("[role=tablist]")) list.addEventListener("keydown", moveTab);
  }

  showSide(name) {
    for (const each of ["summary", "details"]) {
      byId(each).hidden = each !== name;
      markTab(byId(`tab-${each}`), each === name);
    }
  }

  showList(name) {
    this.listed = name;
    for (const each of Object.keys(this.lists)) markTab(byId(`tab-${each}`), each === name);
    byId("list").scrollTop = 0;
    this.lists[name][1](byId("list"), this);
  }

  showSelected(found) {
    this.details.show(found);
    this.showSide(found ? "details" : "summary");
    const part = found && found.part;
    const trail = [];
    for (let at = part; at && at.kind !== "root"; at = at.parent) trail.unshift(at);
    byId("trail").replaceChildren(...trail.slice(0, -1).slice(-6).map((each) => make("button", { text: `${shorten(each.title, 30)} ›`, on: { click: () => this.picture.select(each) } })));
    if (part) this.tell(`${part.kind} ${part.title}, ${part.device < 0 ? "several devices" : this.tables.devices[part.device]}${part.canOpen ? (part.open ? ", open" : ", closed") : ""}`);
  }

  showTensor(graph, number) {
    this.details.show({ tensor: { graph, number } });
    this.showSide("details");
  }

  /** Show the nodes that stay on the host for a reason: the largest selected, all others faded. */
  showReason(row) {
    const largest = [...row.units].sort((a, b) => this.tables.graphs[b[0]].operations(b[1]) - this.tables.graphs[a[0]].operations(a[1]))[0];
    const graph = this.tables.graphs[largest[0]];
    this.picture.reveal(graph, graph.unitNodes[largest[1]][0]);
    this.picture.highlight(row.units);
  }

  showStage(name) {
    for (const graph of this.tables.graphs) {
      const number = graph.regions.findIndex((region) => region.name === name);
      if (number >= 0) { this.picture.revealRegion(graph, number); return; }
    }
  }

  revealName(graph, name) {
    const node = graph.nodes.names.indexOf(name);
    if (node >= 0) this.picture.reveal(graph, node);
  }

  linkNode(graph, node) {
    return make("button", { className: "link name", text: `${graph.operator(node).name} ${shorten(graph.name(node), 48)}`, on: { click: () => this.picture.reveal(graph, node) } });
  }

  linkRegion(graph, number) {
    return make("button", { className: "link name", text: graph.regions[number].name, on: { click: () => this.picture.revealRegion(graph, number) } });
  }

  showLegend() {
    const used = new Set(this.tables.graphs.flatMap((graph) => graph.unitNodes.map((_, unit) => graph.device(unit))));
    const shown = this.tables.devices.map((name, device) => [name, device]).filter(([, device]) => device === 0 || used.has(device));
    const { overlay } = this.tables;
    const [own, marks] = overlay ? this.makeColours(overlay) : [null, []];
    byId("legend").replaceChildren(...(own ? [own] : []), ...(overlay && overlay.shown ? marks : []), ...shown.map(([name, device]) => make("span", {}, makeSwatch(device), make("span", { text: name }))),
      make("span", { text: "▸ opens" }), make("span", { text: "arrows with bytes (orange) cross a boundary" }));
  }

  /** The choice of what colours mean, and the scale of the user's numbers. */
  makeColours(overlay) {
    const choose = (event) => {
      overlay.shown = event.target.value === "overlay";
      this.picture.draw();
      this.showLegend();
    };
    const options = [["device", "device"], ["overlay", overlay.title]].map(([value, text]) => make("option", { value, text, selected: (value === "overlay") === overlay.shown }));
    const isOne = overlay.least === overlay.greatest; // then there is no scale to draw
    const scale = make("span", { className: isOne ? "scale one" : "scale" });
    scale.style.background = `linear-gradient(to right, ${overlay.fill(isOne ? 1 : 0)}, ${overlay.fill(1)})`;
    const [least, greatest] = [overlay.least, overlay.greatest].map((value) => make("span", { text: roundNumber(value) }));
    const one = make("span", { text: overlay.marks ? overlay.title : `${overlay.title}: ${roundNumber(overlay.least)}` });
    return [make("label", {}, "colours ", make("select", { on: { change: choose } }, ...options)),
      [make("span", {}, ...(isOne ? [scale, one] : [least, scale, greatest]))]];
  }

  setTheme(theme) {
    document.documentElement.dataset.theme = theme;
    byId("theme").textContent = theme === "dark" ? "Light" : "Dark";
    if (!this.picture) return;
    this.picture.draw();
    this.showSummary();
    this.showLegend();
    this.showList(this.listed);
  }

  tell(text) {
    byId("told").textContent = printable(text);
  }

  listen() {
    const { picture } = this;
    byId("theme").addEventListener("click", () => this.setTheme(isDark() ? "light" : "dark"));
    byId("help").addEventListener("click", () => this.showHelp());
    const zoom = { in: () => picture.zoomBy(1.3), out: () => picture.zoomBy(1 / 1.3), fit: () => picture.fit(), open: () => picture.openAll(), close: () => picture.closeAll(), save: () => picture.save(this.tables.report.model.replace(/^.*[/:]/, "")) };
    for (const button of document.querySelectorAll("[data-zoom]")) button.addEventListener("click", zoom[button.dataset.zoom]);
    const keys = {
      "/": () => byId("search").focus(), "?": () => this.showHelp(), f: zoom.fit, o: zoom.open, c: zoom.close, s: zoom.save, "+": zoom.in, "=": zoom.in, "-": zoom.out,
      d: () => this.setTheme(isDark() ? "light" : "dark"),
    };
    const moves = { ArrowUp: "up", ArrowDown: "down", ArrowLeft: "left", ArrowRight: "right" };
    document.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) || byId("keys").open) return;
      if (keys[event.key]) { keys[event.key](); event.preventDefault(); }
    });
    byId("graph").addEventListener("keydown", (event) => {
      if (moves[event.key]) picture.move(moves[event.key]);
      else if (event.key === "Enter" || event.key === " ") picture.toggle(picture.selected);
      else if (event.key === "Backspace" || event.key === "Escape") {
        const around = picture.selected && picture.selected.parent;
        picture.highlight(null);
        picture.select(around && around.kind !== "root" ? around : null);
      } else return;
      event.preventDefault();
    });
    picture.cy.on("tap", (event) => { if (event.target === picture.cy) { picture.highlight(null); picture.select(null); } });
    this.listenToSplit();
    window.addEventListener("resize", () => { picture.resize(); if (["memory", "timeline"].includes(this.listed)) this.showList(this.listed); });
  }

  /** Let the user drag the border between the graph and the lists, or move it by keys. */
  listenToSplit() {
    const split = byId("split");
    const set = (height) => {
      document.querySelector("main").style.setProperty("--lists", `${Math.round(Math.min(Math.max(60, height), 0.8 * window.innerHeight))}px`);
      this.picture.cy.resize();
    };
    split.addEventListener("pointerdown", (event) => { split.setPointerCapture(event.pointerId); event.preventDefault(); });
    split.addEventListener("pointermove", (event) => { if (split.hasPointerCapture(event.pointerId)) set(window.innerHeight - event.clientY); });
    split.addEventListener("keydown", (event) => {
      const step = { ArrowUp: 40, ArrowDown: -40 }[event.key];
      if (!step) return;
      set(byId("lists").clientHeight + step);
      event.preventDefault();
    });
  }

  showHelp() {
    const rows = [["/", "search"], ["↑ ↓ ← →", "move along edges and beside"], ["Enter, double click", "open or close"], ["Backspace, Esc", "select what is around, show all"], ["f", "fit all into view"], ["o, c", "open all (up to 5,000 parts), close all"], ["s", "save the picture"], ["+ −, wheel", "zoom"], ["drag", "move the picture"], ["d", "light or dark"], ["?", "this help"]];
    const shapes = this.tables.devices.map((name, device) => make("p", {}, makeSwatch(device), " ", make("span", { text: `${name}: ${lookOf(device).shape.replace(/-/g, " ")}, ${lookOf(device).style} border` })));
    const dialog = byId("keys");
    dialog.replaceChildren(make("h1", { text: "Keys and symbols" }), make("dl", {}, ...rows.flatMap(([key, text]) => [make("dt", {}, make("kbd", { text: key })), make("dd", { text })])), ...shapes,
      make("p", { text: "A double border stands for equal blocks, of which one is shown in numbers. A part of several colours has nodes on several devices, as wide as their share of the work. Widths of arrows grow with the bytes." }),
      make("button", { text: "Close", on: { click: () => dialog.close() } }));
    dialog.showModal();
  }
}

const byId = (id) => document.getElementById(id);

function markTab(tab, chosen) {
  tab.setAttribute("aria-selected", String(chosen));
  tab.tabIndex = chosen ? 0 : -1;
}

function moveTab(event) {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  const tabs = [...event.currentTarget.querySelectorAll("[role=tab]")];
  const next = tabs[(tabs.indexOf(document.activeElement) + step + tabs.length) % tabs.length];
  next.focus();
  next.click();
}
