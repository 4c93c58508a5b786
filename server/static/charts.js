// Charts on uPlot, over the windows of an episode. What they show is in panels.js, or another page's own.
//
// A panel: { title, unit, lines, limits, log, range, splits, values, stepped, shown, lane, marksTurns }.
// A line: { label, read(entries, index), overlaid }; with `overlaid` the same is read of the overlays.
// A limit: { label, value, text, line } is dashed, in the colour of that line if there is one.
// An overlay: { name, colour, dash }, another episode that is drawn behind.

import { colour, faded, LINES } from "./colours.js";

const WHOLE = [1, 2, 5].flatMap((first) => [1, 10, 100, 1e3, 1e4].map((size) => first * size)).sort((a, b) => a - b);
const DECADES = [1, 10, 100, 1e3, 1e4, 1e5, 1e6];
export const MOST_POINTS = 400; // of a line: about as many as a chart has pixels
const AXIS_PX = 20; // the x axis below the last lane
const TIME_PX = 64; // a time of day below the x axis
const AWAY_PX = 5;
const TICK_PX = 7;
const DRAG_PX = 8; // below which a drag is a click
const FONT = "11px system-ui, sans-serif";
const NO_MARKS = { turned: [], bursts: [], away: [] };

// A number as an operator reads it; a figure that is next to nothing is 0.
export function short(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  return size < 5e-4 ? "0" : String(Number(value.toPrecision(3)));
}

export class Charts {
  // `height` of each in pixels.
  constructor(place, { height = 132 } = {}) {
    Object.assign(this, { place, height, charts: [], panels: [], overlays: [], at: null, size: 1, points: [] });
    this.onCursor = () => {}; // is told the windows under the cursor, [first, last]; null outside
    this.onRange = () => {}; // is told the windows that were chosen by dragging, [first, last]; null: all
    this.tick = String; // what stands below a window
    this.last = [[], [], NO_MARKS, [0, 1]];
    new ResizeObserver(() => this.#resize()).observe(place);
    place.addEventListener("keydown", (event) => this.#key(event));
    place.addEventListener("dblclick", () => this.onRange(null));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.build(this.panels, this.overlays);
      this.draw(...this.last);
    });
  }

  // Empty charts.
  build(panels, overlays = []) {
    for (const { chart } of this.charts) chart.destroy();
    this.place.replaceChildren();
    Object.assign(this, { panels, overlays, at: null });
    this.charts = panels.map((panel, index) => this.#chart(panel, index === panels.length - 1));
    this.#resize();
  }

  // Entries from the first on, those of each overlay, marks, and the range that is shown: [first, last].
  draw(entries, overlaid = [], marks = NO_MARKS, range = [0, entries.length - 1]) {
    this.last = [entries, overlaid, marks, range];
    const [from, to] = [range[0], Math.min(range[1], entries.length - 1)];
    const size = Math.max(Math.ceil((to - from + 1) / MOST_POINTS), 1);
    const points = [];
    for (let first = from; first <= to; first += size) points.push([first, Math.min(first + size - 1, to)]);
    if (size !== this.size || points.length < this.points.length) this.at = null;
    Object.assign(this, { size, points });
    const x = points.map(([first, last]) => (first + last) / 2);
    for (const { panel, chart } of this.charts) {
      const sums = (line, of) => summed(line, of, points, panel);
      const behind = panel.lines.filter((line) => line.overlaid)
        .flatMap((line) => this.overlays.map((_, which) => sums(line, overlaid[which] ?? []).means));
      const own = panel.lines.map((line) => sums(line, entries));
      Object.assign(chart, { marks, view: range });
      chart.setData([x, ...behind, ...own.flatMap((one) => [one.highs, one.lows]), ...own.map((one) => one.means)]);
    }
    this.#say();
  }

  #chart(panel, isLast) {
    const figure = document.createElement("figure");
    figure.className = "chart";
    const caption = document.createElement("figcaption");
    const title = document.createElement("h2");
    title.textContent = panel.title;
    if (panel.unit) {
      const unit = document.createElement("small");
      unit.textContent = panel.unit;
      title.append(" ", unit);
    }
    caption.append(title);
    const box = document.createElement("div");
    figure.append(caption, box);
    this.place.append(figure);
    const stroke = (index) => colour(LINES[index % LINES.length]);
    const paths = panel.stepped ? uPlot.paths.stepped({ align: -1 }) : undefined;
    const plain = { paths, points: { show: false, filter: () => null } };
    const behind = panel.lines.filter((line) => line.overlaid).flatMap((line) => this.overlays.map(({ name, ...style }) =>
      ({ ...plain, label: `${name} ${line.label}`, stroke: colour(style.colour), width: 1.25, dash: style.dash })));
    const limits = panel.limits.map(({ value, line }) =>
      ({ value, mark: line === undefined ? colour("limit") : stroke(line) }));
    const edges = panel.lines.flatMap(({ label }) =>
      [{ ...plain, label: `${label} highest`, width: 0 }, { ...plain, label: `${label} lowest`, width: 0 }]);
    const lines = panel.lines.map((line, index) => ({
      label: line.label, stroke: stroke(index), width: 1.75, paths,
      points: { show: false, filter: alone, size: 5, fill: stroke(index) },
    }));
    const keys = [
      ...panel.lines.map((line, index) => ({ label: line.label, mark: stroke(index), style: "" })),
      ...panel.limits.filter((limit) => limit.label)
        .map((limit) => ({ label: limit.label, mark: colour("limit"), style: "dashed" })),
    ].map((key) => keyOf(caption, key));
    const first = 1 + behind.length; // the series of the upper edges begin there
    const chart = new uPlot({
      width: 300, height: this.height, legend: { show: false }, padding: [8, 10, 0, 0],
      cursor: {
        sync: { key: "windows", filters: { pub: (type) => type === "mousemove" || type === "mouseleave" } },
        drag: { x: true, y: false, setScale: false, dist: DRAG_PX }, points: { size: 5 },
      },
      series: [{ label: "window" }, ...behind, ...edges, ...lines],
      bands: lines.map((_, n) => ({ series: [first + 2 * n, first + 2 * n + 1], fill: faded(stroke(n)) })),
      axes: this.#axes(panel, isLast),
      scales: { x: { time: false, range: (u) => u.view ?? [0, 1] }, y: scaleOf(panel) },
      hooks: {
        drawClear: [shade],
        draw: [dash],
        setCursor: [(u) => this.#moved(u.cursor.idx ?? null)],
        setSelect: [(u) => this.#chosen(u)],
      },
    }, [[], ...[...behind, ...edges, ...lines].map(() => [])], box);
    Object.assign(chart, { view: this.last[3], limits, marksTurns: panel.marksTurns });
    figure.chart = chart; // so that what is drawn can be read
    chart.root.querySelector("canvas").setAttribute("role", "img");
    const height = this.height + (panel.lane && isLast ? AXIS_PX : 0);
    return { panel, chart, figure, box, keys, height, own: first + edges.length };
  }

  #axes(panel, isLast) {
    const axis = {
      stroke: colour("soft"), font: FONT, ticks: { show: false }, grid: { stroke: colour("grid"), width: 1 },
    };
    const bare = panel.lane && !isLast;
    return [
      { ...axis, incrs: WHOLE, space: TIME_PX, size: bare ? 4 : AXIS_PX, gap: 3,
        values: bare ? () => [] : (_, splits) => splits.map((window) => this.tick(window)) },
      { ...axis, size: 46, gap: 4,
        splits: panel.log ? (_, __, low, high) => DECADES.filter((d) => d >= low && d <= high) : panel.splits,
        // uPlot leaves out what has no room.
        values: (_, splits) => splits.map((value) => (value === null ? "" : (panel.values ?? short)(value))) },
    ];
  }

  #moved(index) {
    if (index === this.at) return;
    this.at = index;
    this.#say();
    this.onCursor(index === null ? null : this.points[index] ?? null);
  }

  // The windows that were dragged over.
  #chosen(u) {
    const { left, width } = u.select;
    if (width < DRAG_PX) return;
    u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    const window = (px) => Math.round(u.posToVal(px, "x"));
    this.onRange([Math.max(window(left), 0), Math.max(window(left + width), window(left) + 1)]);
  }

  // The values under the cursor, or the last ones.
  #say() {
    const index = Math.min(this.at ?? Infinity, this.points.length - 1);
    const [first, last] = this.points[index] ?? [0, 0];
    for (const { panel, chart, keys, own } of this.charts) {
      const shown = panel.shown ?? short;
      const values = panel.lines.map((_, line) => chart.data[own + line]?.[index]);
      values.forEach((value, line) => (keys[line].textContent = value == null ? "–" : shown(value)));
      panel.limits.filter((limit) => limit.label)
        .forEach((limit, place) => (keys[values.length + place].textContent = limit.text ?? shown(limit.value)));
      const said = panel.lines.map((line, n) => `${line.label} ${keys[n].textContent}`).join(", ");
      chart.root.querySelector("canvas").setAttribute("aria-label",
        `${panel.title}, ${panel.unit}; window ${first === last ? last : `${first} to ${last}`}: ${said}`);
    }
  }

  #key(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const count = this.points.length;
    if (!step || !count || event.target !== this.place) return;
    event.preventDefault();
    const to = Math.min(Math.max((this.at ?? count - 1) + step, 0), count - 1);
    for (const { chart } of this.charts) {
      chart.setCursor({ left: chart.valToPos(chart.data[0][to], "x"), top: 4 }, false, false);
    }
    this.#moved(to);
  }

  #resize() {
    for (const { chart, box, height } of this.charts) {
      chart.setSize({ width: Math.max(box.clientWidth, 160), height });
    }
  }
}

// A line as means over the windows of each point, with the least and the greatest value where there are
// several; of a stepped line the last value.
function summed(line, entries, points, { log, stepped }) {
  const means = [];
  const highs = new Array(points.length).fill(null);
  const lows = highs.slice();
  points.forEach(([first, last], place) => {
    let [sum, count, low, high, value] = [0, 0, Infinity, -Infinity, null];
    for (let index = first; index <= last && index < entries.length; index += 1) {
      const read = line.read(entries, index) ?? null;
      if (read === null || (log && read <= 0)) continue; // a logarithm needs more than 0
      value = read;
      sum += read;
      count += 1;
      if (read < low) low = read;
      if (read > high) high = read;
    }
    means.push(count > 1 && !stepped ? sum / count : value);
    if (first !== last && count && !stepped) [lows[place], highs[place]] = [low, high];
  });
  return { means, lows, highs };
}

// An entry of a chart's legend; returns where its value goes.
function keyOf(caption, { label, mark, style }) {
  const key = document.createElement("span");
  key.className = "key";
  const swatch = document.createElement("span");
  swatch.className = `swatch ${style}`;
  swatch.style.borderColor = mark;
  const value = document.createElement("span");
  value.className = "value";
  key.append(swatch, label, value);
  caption.append(key);
  return value;
}

// Values between two gaps: dots, since no line can be drawn through one.
function alone(u, series) {
  const values = u.data[series];
  return [...values.keys()].filter((place) => values[place] != null && values[place - 1] == null && values[place + 1] == null);
}

function scaleOf(panel) {
  if (panel.log) {
    const [least, lower, upper] = [1, 10, 1000];
    return {
      distr: 3,
      range: (_, low, high) => uPlot.rangeLog(
        Math.max(Math.min(low ?? lower, lower), least), Math.max(high ?? upper, upper), 10, true),
    };
  }
  if (panel.range) return { range: panel.range };
  const most = Math.max(0, ...panel.limits.map((limit) => limit.value));
  return { range: (_, low, high) => uPlot.rangeNum(Math.min(low ?? 0, 0), Math.max(high || 1, 1.05 * most), 0.08, true) };
}

// Bursts as bands over the whole height, windows in which a GPU was away as a bar at the top, turned knobs
// as ticks in one chart.
function shade(u) {
  const { turned = [], bursts = [], away = [] } = u.marks ?? {};
  const { left, top, width, height } = u.bbox;
  const [from, to] = u.view;
  const ratio = uPlot.pxRatio;
  const x = (window) => Math.min(Math.max(u.valToPos(window, "x", true), left), left + width);
  const bars = (runs, fill, tall) => {
    u.ctx.fillStyle = fill;
    for (const [first, last] of runs) {
      if (last <= from || first - 1 >= to) continue;
      u.ctx.fillRect(x(first - 1), top, Math.max(x(last) - x(first - 1), ratio), tall);
    }
  };
  u.ctx.save();
  bars(bursts, colour("burst"), height);
  bars(away, colour("away"), AWAY_PX * ratio);
  if (u.marksTurns) {
    u.ctx.strokeStyle = colour("turned");
    u.ctx.lineWidth = ratio;
    for (const window of turned) {
      if (window - 1 < from || window - 1 > to) continue;
      stroke(u.ctx, x(window - 1), top + height, x(window - 1), top + height - TICK_PX * ratio);
    }
  }
  u.ctx.restore();
}

// Limits over the whole width, dashed.
function dash(u) {
  const { left, top, width, height } = u.bbox;
  u.ctx.save();
  u.ctx.setLineDash([6 * uPlot.pxRatio, 4 * uPlot.pxRatio]);
  u.ctx.lineWidth = uPlot.pxRatio;
  for (const { value, mark } of u.limits ?? []) {
    const y = u.valToPos(value, "y", true);
    u.ctx.strokeStyle = mark;
    if (y >= top && y <= top + height) stroke(u.ctx, left, y, left + width, y);
  }
  u.ctx.restore();
}

function stroke(canvas, x0, y0, x1, y1) {
  canvas.beginPath();
  canvas.moveTo(x0, y0);
  canvas.lineTo(x1, y1);
  canvas.stroke();
}
