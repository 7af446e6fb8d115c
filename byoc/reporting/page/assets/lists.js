// The lists below the picture: sortable tables of regions, boundary tensors, reasons, what-ifs.

/** Show a table whose head sorts it: columns are {title, number, value, show}. */
function showTable(pane, columns, rows, { sort = 0, onClick = null, empty = "Nothing to show." } = {}) {
  if (!rows.length) {
    pane.replaceChildren(make("p", { className: "note soft", text: empty }));
    return;
  }
  let by = sort;
  let falling = Boolean(columns[by].number);
  const draw = () => {
    const { value } = columns[by];
    const sorted = [...rows].sort((a, b) => {
      const [one, other] = [value(a), value(b)];
      const order = typeof one === "number" || typeof other === "number" ? (one ?? -1) - (other ?? -1) : String(one).localeCompare(String(other));
      return falling ? -order : order;
    });
    const head = make("tr", {}, ...columns.map((column, at) => make("th", { className: column.number ? "number" : "", attributes: { scope: "col", "aria-sort": at === by ? (falling ? "descending" : "ascending") : "none" } },
      make("button", { text: column.title + (at === by ? (falling ? " ▾" : " ▴") : ""), on: { click: () => { falling = at === by ? !falling : Boolean(column.number); by = at; draw(); } } }))));
    const body = sorted.slice(0, 500).map((row) => {
      const line = make("tr", {}, ...columns.map((column) => {
        const shown = column.show(row);
        return make("td", { className: column.number ? "number" : "" }, shown instanceof Node ? shown : make("span", { text: shown ?? "" }));
      }));
      if (onClick) {
        line.tabIndex = 0;
        line.addEventListener("click", () => onClick(row));
        line.addEventListener("keydown", (event) => { if (event.key === "Enter") onClick(row); });
      }
      return line;
    });
    if (rows.length > 500) body.push(make("tr", {}, make("td", { className: "soft", text: `and ${rows.length - 500} more; sort to see others`, attributes: { colspan: columns.length } })));
    pane.replaceChildren(make("table", {}, make("thead", {}, head), make("tbody", {}, ...body)));
  };
  draw();
}

function listRegions(pane, page) {
  const { tables } = page;
  const rows = tables.graphs.flatMap((graph) => graph.regions.map((region, number) => {
    const measured = tables.measured.get(region.name);
    const report = tables.regionReports.get(region.name);
    const sizes = (enters) => region.boundary.filter((each) => each.enters === enters).map((each) => each.bytes);
    return {
      graph, number, region, report, total: region.seconds * graph.trips, into: sizes(true), out: sizes(false),
      measured: measured ? measured[0] / measured[1] : null, transfer: region.boundary.reduce((total, each) => total + (each.seconds || 0), 0),
    };
  }));
  const most = Math.max(...rows.map((row) => row.total), 1e-30);
  const folded = foldRows(rows);
  const columns = [
    { title: "Region", value: (row) => row.region.name, show: (row) => make("span", {}, makeSwatch(row.region.device), " ", make("span", { className: "name", text: row.region.name }), row.count > 1 ? make("span", { className: "soft", text: `  and ${row.count - 1} like it` }) : null) },
    { title: "Device", value: (row) => row.region.device, show: (row) => tables.devices[row.region.device] },
    { title: "Nodes", number: true, value: (row) => (row.report ? row.report.nodes : 0), show: (row) => (row.report ? formatNumber(row.report.nodes) : "") },
    { title: "Predicted", number: true, value: (row) => row.total, show: (row) => withBar(row.total / most, formatSeconds(row.total)) },
    ...(folded.length < rows.length ? [{ title: "Together", number: true, value: (row) => row.total * row.count, show: (row) => formatSeconds(row.total * row.count) }] : []),
    ...(rows.some((row) => row.measured !== null) ? [
      { title: "Measured", number: true, value: (row) => row.measured, show: (row) => formatSeconds(row.measured) },
      { title: "Measured / predicted", number: true, value: (row) => (row.measured === null ? -1 : row.measured / row.region.seconds), show: (row) => (row.measured === null ? "–" : roundNumber(row.measured / row.region.seconds)) },
    ] : []),
    ...[["Memory", "memory"], ["SRAM", "sram"]].filter(([, key]) => rows.some((row) => row.report && row.report[key])).map(([title, key]) => (
      { title, number: true, value: (row) => ((row.report && row.report[key]) || { used: -1 }).used, show: (row) => formatUse(row.report && row.report[key]) })),
    { title: "Transfers", number: true, value: (row) => row.transfer, show: (row) => formatSeconds(row.transfer) },
    { title: "In", number: true, value: (row) => sumKnown(row.into), show: (row) => formatSum(row.into) },
    { title: "Out", number: true, value: (row) => sumKnown(row.out), show: (row) => formatSum(row.out) },
  ];
  showTable(pane, columns, folded, { sort: 3, onClick: (row) => page.picture.revealRegion(row.graph, row.number), empty: "There is no region: nothing was offloaded." });
}

/** Rows of equal regions as one, with their count; measured ones stay apart. */
function foldRows(rows) {
  const known = new Map();
  for (const row of rows) {
    const used = ["memory", "sram"].map((key) => formatUse(row.report && row.report[key]));
    const same = [...used, row.region.device, row.report && row.report.nodes, roundNumber(row.region.seconds), row.graph.trips, formatSum(row.into), formatSum(row.out)];
    const key = row.measured === null ? same.join() : row.region.name;
    if (known.has(key)) known.get(key).count++;
    else known.set(key, { ...row, count: 1 });
  }
  return [...known.values()];
}

/** Used bytes of a memory and their limit, as in the report. */
function formatUse(use) {
  return use ? `${formatBytes(use.used)}${use.limit ? ` of ${formatBytes(use.limit)}` : ""}` : "";
}

function withBar(share, text) {
  const bar = make("span", { className: "share" });
  bar.style.width = `${Math.round(60 * share)}px`;
  return make("span", {}, bar, make("span", { text }));
}

function listBoundary(pane, page) {
  const rows = page.tables.graphs.flatMap((graph) => graph.regions.flatMap((region, number) => region.boundary.map((boundary) => ({ graph, region, number, boundary }))));
  const most = Math.max(...rows.map((row) => row.boundary.bytes || 0), 1);
  const columns = [
    { title: "Tensor", value: (row) => row.graph.tensor(row.boundary.tensor).name, show: (row) => make("span", { className: "name", text: shorten(row.graph.tensor(row.boundary.tensor).name, 60) }) },
    { title: "Bytes", number: true, value: (row) => row.boundary.bytes, show: (row) => withBar((row.boundary.bytes || 0) / most, formatBytes(row.boundary.bytes)) },
    { title: "Transfer", number: true, value: (row) => row.boundary.seconds, show: (row) => formatSeconds(row.boundary.seconds) },
    { title: "Way", value: (row) => Number(row.boundary.enters), show: (row) => make("span", { className: "whole", text: row.boundary.enters ? "into" : "out of" }) },
    { title: "Region", value: (row) => row.region.name, show: (row) => make("span", { className: "name whole", text: row.region.name }) },
    { title: "Type", value: (row) => row.graph.describeTensor(row.boundary.tensor), show: (row) => row.graph.describeTensor(row.boundary.tensor).split(" · ")[0] },
    ...(rows.some((row) => describeContract(row.boundary)) ? [{ title: "At the boundary", value: (row) => describeContract(row.boundary), show: (row) => describeContract(row.boundary) }] : []),
  ];
  showTable(pane, columns, rows, { sort: 1, onClick: (row) => { page.picture.revealRegion(row.graph, row.number); page.showTensor(row.graph, row.boundary.tensor); }, empty: "No tensor crosses a boundary." });
}

function listReasons(pane, page) {
  const { tables } = page;
  const most = Math.max(...tables.reasons.map((row) => row.seconds), 1e-30);
  const columns = [
    { title: "Reason", value: (row) => row.text, show: (row) => make("span", {}, make("span", { text: row.text }), row.remedy ? makeProse("remedy", row.remedy) : null) },
    { title: "On the host", number: true, value: (row) => row.seconds, show: (row) => withBar(row.seconds / most, formatSeconds(row.seconds)) },
    { title: "Of the work", number: true, value: (row) => row.seconds, show: (row) => formatShare(row.seconds / (tables.hostSeconds || 1)) },
    { title: "Of the operations", number: true, value: (row) => row.operations, show: (row) => formatShare(row.operations / (tables.operations || 1)) },
    { title: "Nodes", number: true, value: (row) => row.nodes, show: (row) => formatNumber(row.nodes) },
  ];
  showTable(pane, columns, tables.reasons, { sort: 1, onClick: (row) => page.showReason(row), empty: "Nothing is on the host." });
}

function listGains(pane, page) {
  const { report } = page.tables;
  const gains = report.what_if.map((each) => ({ gain: each.gain, text: `if ${each.target} took ${formatNumber(each.nodes)} ${each.operator}`, why: each.reason, nodes: each.offloaded, operator: each.operator, reason: each.reason }));
  const breaks = (report.break_even || []).map((each) => ({ gain: 0, text: page.describeBreakEven(each), why: "the host is cheaper", nodes: each.nodes, unit: each.unit }));
  const columns = [
    { title: "What if", value: (row) => row.text, show: (row) => row.text },
    { title: "Gain", number: true, value: (row) => row.gain, show: (row) => (row.gain ? page.formatGain(row.gain) : "–") },
    { title: "More nodes", number: true, value: (row) => row.nodes, show: (row) => formatNumber(row.nodes) },
    { title: "What is in the way", value: (row) => row.why, show: (row) => row.why },
  ];
  const open = (row) => {
    if (row.unit) return page.revealName(page.tables.graphs[0], row.unit);
    const found = page.tables.reasons.find((each) => each.text.includes(row.reason));
    return found && page.showReason(found);
  };
  showTable(pane, columns, [...gains, ...breaks], { sort: 1, onClick: open, empty: "Nothing was found that would gain." });
}

/** The plans of an accuracy budget: what each keeps and costs, and what a further decibel costs. */
function listTrade(pane, page) {
  const { precision } = page.tables.report;
  const [scale, unit] = precision.budget.startsWith("top1") ? [100, "%"] : [1, "dB"];
  const most = Math.max(...page.trade.map((point) => point.seconds), 1e-30);
  const total = precision.units + precision.in_float.length; // with these in floats nothing further is gained
  const rows = page.trade.map((point, number) => {
    const before = page.trade[number - 1];
    const known = before && before.reached !== null && point.reached !== null && point.in_float < total;
    return { ...point, step: known ? (point.seconds - before.seconds) / (scale * (point.reached - before.reached)) : null };
  });
  const narrow = precision.dtype || "integers";
  const showUnits = (names, type) => (names.length ? `to ${type}: ${shorten(names.join(", "), 60)}` : "");
  const columns = [
    { title: "Kept", number: true, value: (row) => row.reached ?? Infinity, show: (row) => `${row.taken ? "taken: " : ""}${row.reached === null ? "all" : `${roundNumber(scale * row.reached)} ${unit}`}` },
    { title: "Predicted", number: true, value: (row) => row.seconds, show: (row) => withBar(row.seconds / most, formatSeconds(row.seconds)) },
    { title: `A further ${unit}`, number: true, value: (row) => row.step, show: (row) => (row.step === null ? "" : formatSeconds(row.step)) },
    { title: `Units in ${narrow}`, number: true, value: (row) => total - row.in_float - row.wide, show: (row) => formatNumber(total - row.in_float - row.wide) },
    ...(rows.some((row) => row.wide) ? [{ title: "In int16", number: true, value: (row) => row.wide, show: (row) => formatNumber(row.wide) }] : []),
    { title: "In floating point", number: true, value: (row) => row.in_float, show: (row) => formatNumber(row.in_float) },
    { title: "What differs from the plan before", value: (row) => [...row.to_float, ...row.to_wide, ...row.to_narrow].join(), show: (row) => [showUnits(row.to_float, "floating point"), showUnits(row.to_wide, "int16"), showUnits(row.to_narrow, narrow)].filter(Boolean).join("; ") },
  ];
  showTable(pane, columns, rows, { sort: 1 });
}

/** The tensors in integers, that whose range fits the data worst first: by the share that is unused or saturates. */
function listRanges(pane, page) {
  const rows = page.ranges.map(({ graph, range }) => ({ graph, range, ...measureFit(range) }));
  const columns = [
    { title: "Tensor", value: (row) => row.graph.tensor(row.range.tensor).name, show: (row) => make("span", { className: "name", text: shorten(row.graph.tensor(row.range.tensor).name, 60) }) },
    { title: "Integers above, data below", number: true, value: (row) => Math.max(row.unused, row.beyond), show: (row) => drawRange(row.range) },
    { title: "Unused integers", number: true, value: (row) => row.unused, show: (row) => formatShare(row.unused) },
    { title: "Of the data's range saturates", number: true, value: (row) => row.beyond, show: (row) => (row.beyond > 1e-6 ? formatShare(row.beyond) : "–") },
    ...(rows.some((row) => row.clipped) ? [{ title: "Of its values", number: true, value: (row) => row.clipped, show: (row) => (row.clipped ? formatShare(row.clipped) : "–") }] : []),
    { title: "Integers", value: (row) => row.range.low, show: (row) => `${row.range.dtype}: ${roundNumber(row.range.low)} to ${roundNumber(row.range.high)}` },
    { title: "Data", value: (row) => row.range.data[0], show: (row) => row.range.data.map(roundNumber).join(" to ") },
  ];
  showTable(pane, columns, rows, { sort: 1, onClick: (row) => page.showTensor(row.graph, row.range.tensor) });
}

function listNotes(pane, page) {
  const { report } = page.tables;
  const refused = report.refusals.map((each) => `${each.codegen} refused ${each.region}: ${each.reason}`);
  const lines = [...refused, ...page.tables.promises, ...report.notes];
  if (!lines.length) lines.push("There are no notes.");
  pane.replaceChildren(make("ul", { className: "note" }, ...lines.map((text) => make("li", { text }))));
}
