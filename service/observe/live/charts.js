// SPDX-License-Identifier: Apache-2.0
// Charts as SVG, drawn anew with every scrape, and the few elements they are made of.

const $ = id => document.getElementById(id);

function svg(name, attributes, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
}
function html(name, text, attributes = {}) {
  const node = document.createElement(name);
  if (text !== undefined) node.textContent = text;
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  return node;
}

function frame(id, label, emptyText) {
  const box = $(id), width = box.clientWidth, height = box.clientHeight;
  if (emptyText) { box.replaceChildren(html("div", emptyText, { class: "empty" })); return null; }
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  box.replaceChildren(root);
  return { root, width, height };
}

function ticksUpTo(top) {
  const raw = top / 4, magnitude = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find(s => s * magnitude >= raw) * magnitude;
  return Array.from({ length: Math.floor(top / step + 1e-9) + 1 }, (_, i) => i * step);
}

function barChart(id, label, series, boundText, emptyText) {
  const filled = series[0].bounds.map((_, i) => series.some(s => s.counts[i] > 0));
  const first = filled.indexOf(true), last = filled.lastIndexOf(true);
  const area = frame(id, label, first < 0 ? emptyText : "");
  if (!area) return;
  const { root, width, height } = area, left = 38, bottom = 20, top = 8;
  const from = Math.max(0, first - 1), to = Math.min(filled.length - 1, last + 1), slots = to - from + 1;
  const shares = series.map(s => s.counts.map(c => s.count ? c / s.count : 0));
  const most = Math.max(...shares.flat()), ticks = ticksUpTo(most), scale = (height - bottom - top) / Math.max(most, ticks.at(-1));
  for (const t of ticks) {
    const y = height - bottom - t * scale;
    root.append(svg("line", { class: "grid", x1: left, x2: width, y1: y, y2: y }), svg("text", { x: left - 6, y: y + 4, "text-anchor": "end" }, percent(t).replace(" ", "")));
  }
  const slot = (width - left - 10) / slots, every = Math.ceil(46 / slot), bar = Math.max(2, (slot - Math.min(6, slot * .25)) / 2);
  for (let i = from; i <= to; i++) {
    const x = left + (i - from) * slot;
    if ((i - from) % every === 0)
      root.append(svg("text", { x: x + slot / 2, y: height - 5, "text-anchor": "middle" }, boundText(series[0].bounds[i])));
    series.forEach((s, n) => {
      const tall = shares[n][i] * scale;
      if (tall < .3) return;
      const rect = svg("rect", { class: `bar ${s.variant}`, x: x + slot / 2 + (n - 1) * bar, y: height - bottom - tall, width: bar - 1, height: Math.max(1, tall), rx: 1 });
      rect.append(svg("title", {}, `${s.variant}: ${percent(shares[n][i])} up to ${boundText(s.bounds[i])}`));
      root.append(rect);
    });
  }
}

function lineChart(id, label, series, { text, log, emptyText }) {
  const points = series.flatMap(s => s.points).filter(([, v]) => Number.isFinite(v) && (!log || v > 0));
  const area = frame(id, label, points.length < 2 || !points.some(([, v]) => v > 0) ? emptyText : "");
  if (!area) return;
  const { root, width, height } = area, left = 52, bottom = 20, top = 8, right = 4;
  const end = history.at(-1).at, span = Math.min(seconds, Math.max(60, end - history[0].at));
  const x = at => left + (width - left - right) * (1 - (end - at) / span);
  const values = points.map(([, v]) => v), most = Math.max(...values), least = Math.min(...values);
  let y, ticks;
  if (log) {
    const low = Math.log10(least) - .08, high = Math.log10(most) + .08, room = Math.max(high - low, .5);
    y = v => height - bottom - (height - bottom - top) * (Math.log10(v) - low) / room;
    ticks = [];
    for (let d = Math.floor(low); d <= low + room; d++) for (const m of [1, 2, 5]) {
      const t = m * 10 ** d;
      if (Math.log10(t) >= low && Math.log10(t) <= low + room) ticks.push(t);
    }
    if (ticks.length > 5) ticks = ticks.filter(t => [1, 5].includes(Math.round(t / 10 ** Math.floor(Math.log10(t) + 1e-9))));
  } else {
    ticks = ticksUpTo(most * 1.05 || 1);
    const high = Math.max(most * 1.05, ticks.at(-1));
    y = v => height - bottom - (height - bottom - top) * v / high;
  }
  for (const t of ticks)
    root.append(svg("line", { class: "grid", x1: left, x2: width, y1: y(t), y2: y(t) }), svg("text", { x: left - 6, y: y(t) + 4, "text-anchor": "end" }, text(t)));
  for (const ago of [span, span / 2, 0])
    root.append(svg("text", { x: x(end - ago), y: height - 5, "text-anchor": ago === span ? "start" : ago ? "middle" : "end" }, ago ? `${words(ago)} ago` : "now"));
  for (const s of series) {
    let path = "", open = false;
    for (const [at, v] of s.points) {
      if (end - at > span || !Number.isFinite(v) || (log && v <= 0)) { open = false; continue; }
      path += `${open ? "L" : "M"}${x(at).toFixed(1)} ${y(v).toFixed(1)}`;
      open = true;
    }
    root.append(svg("path", { class: `line ${s.variant} ${s.thin ? "thin" : ""}`, d: path || "M0 0" }));
  }
}

