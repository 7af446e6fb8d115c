// How parts look: colours, shapes and borders by device, and what stands on them.

// Okabe and Ito's palette, which colour-blind people can tell apart; shapes and borders say it again.
const LOOKS = [
  { fill: "#c9ced6", dark: "#4a515c", line: "#59616c", shape: "rectangle", style: "dashed" },
  { fill: "#8cc4ea", dark: "#1c5c8c", line: "#0072b2", shape: "round-rectangle", style: "solid" },
  { fill: "#f3c463", dark: "#80570a", line: "#b87700", shape: "cut-rectangle", style: "solid" },
  { fill: "#7fd0b4", dark: "#0d5f48", line: "#00805f", shape: "barrel", style: "double" },
  { fill: "#e3b3cc", dark: "#713b57", line: "#a6507f", shape: "bottom-round-rectangle", style: "solid" },
  { fill: "#f0a27a", dark: "#7d3404", line: "#c04f00", shape: "octagon", style: "double" },
];
const lookOf = (device) => (device < 0 ? { fill: "#e6e2d6", dark: "#3b382f", line: "#7a7565", shape: "round-rectangle", style: "dotted" } : LOOKS[device ? 1 + ((device - 1) % (LOOKS.length - 1)) : 0]);
const isDark = () => document.documentElement.dataset.theme === "dark";
const fillOf = (device) => (isDark() ? lookOf(device).dark : lookOf(device).fill);
const inkOf = () => (isDark() ? "#f2f4f7" : "#101317");

const pencil = document.createElement("canvas").getContext("2d");

/** Shorten a text until it fits into so many pixels: lists at the end, names at the beginning. */
function fitText(text, width, font = "13px") {
  pencil.font = `${font} system-ui, sans-serif`;
  const cut = text.includes(", ") ? (whole, most) => `${whole.slice(0, most - 1)}…` : shortenPath;
  const whole = printable(text).slice(0, 400);
  if (pencil.measureText(whole).width <= width) return whole;
  let [fits, over] = [3, Math.min(whole.length, 160)];
  while (over - fits > 1) {
    const middle = (fits + over) >> 1;
    if (pencil.measureText(cut(whole, middle)).width <= width) fits = middle;
    else over = middle;
  }
  return cut(whole, fits);
}

/** What stands on a part: what it is, then how much it is. */
function labelOf(part, tables) {
  const { graph } = part;
  if (part.kind === "ports") return fitText(`${part.noun}${part.tensors.size === 1 ? ` ${part.title}` : `s: ${part.tensors.size}`}`, part.box.width - 24);
  const open = part.open && part.canOpen;
  const opens = part.canOpen ? (open ? "▾ " : "▸ ") : "";
  const times = part.kind === "repeat" ? `${part.count} × ` : "";
  const width = part.box.width - 26;
  const where = part.device < 0 ? "mixed" : tables.devices[part.device];
  const cost = part.units.length && graph.placed ? ` · ${formatSeconds(part.seconds.own)}` : "";
  const count = part.nodes.filter((node) => !graph.inserted.has(node)).length;
  const about = part.kind === "node" ? `${graph.name(part.nodes[0])}` : `${where} · ${formatCount(count, "node")}${cost}`;
  if (open) {
    const font = "bold 14px";
    const whole = part.kind === "body" ? "" : `   ${about}`;
    pencil.font = `${font} system-ui, sans-serif`;
    const room = width - pencil.measureText(opens + times + whole).width;
    return room > 60 ? opens + times + fitText(part.title, room, font) + whole : opens + times + fitText(part.title, width - 20, font);
  }
  pencil.font = "13px system-ui, sans-serif";
  const short = pencil.measureText(about).width > width ? `${formatCount(count, "node")}${cost}` : about;
  const below = part.kind === "node" ? fitText(about, width - pencil.measureText(cost).width) + cost : fitText(short, width);
  const before = opens + times;
  pencil.font = "13px system-ui, sans-serif";
  return `${before}${fitText(part.title, width - pencil.measureText(before).width)}\n${below}`;
}
