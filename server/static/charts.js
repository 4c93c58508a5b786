// Charts on uPlot, one column of numbers a window. What they show is in panels.js, or another page's own.
//
// A panel: { title, unit, lines, limits, log, range, splits, values, stepped, shown }.
// A line: { label, read(entries, index), ghosts }; with `ghosts` the same is read of other episodes.
// A limit: { label, value, text, line } is dashed, in the colour of that line if there is one.

import { colour, LINES } from "./colours.js";

const WHOLE = [1, 2, 5, 10, 20, 50, 100, 200, 500]; // windows between two ticks
const DECADES = [1, 10, 100, 1e3, 1e4, 1e5, 1e6];
const AXIS_PX = 32; // the x axis with its name, below the last lane
const TICK_PX = 5;
const MANY = 15; // turned knobs, from which they are ticks instead of lines
const FONT = "11px system-ui, sans-serif";

// A number as an operator reads it.
export function short(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(3)));
}

export class Charts {
  // `height` of each in pixels; `axis` names the x axis.
  constructor(place, { height = 150, axis = "window" } = {}) {
    Object.assign(this, { place, height, axis, charts: [], panels: [], length: 1, at: null });
    this.onCursor = () => {};
    this.last = [[], [], { turned: [], bursts: [], away: [] }];
    new ResizeObserver(() => this.#resize()).observe(place);
    place.addEventListener("keydown", (event) => this.#key(event));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.build(this.panels, this.length);
      this.draw(...this.last);
    });
  }

  // Empty charts, as long as the whole episode.
  build(panels, length) {
    for (const { chart } of this.charts) chart.destroy();
    this.place.replaceChildren();
    Object.assign(this, { panels, length, at: null });
    this.charts = panels.map((panel, index) => this.#chart(panel, index === panels.length - 1));
    this.#resize();
  }

  // Entries from the first on; `ghosts` are { name, style, entries }, drawn behind and as far.
  draw(entries, ghosts = [], marks = { turned: [], bursts: [], away: [] }) {
    this.last = [entries, ghosts, marks];
    const length = Math.max(this.length, entries.length - 1);
    const numbers = entries.map((_, index) => index);
    for (const { panel, chart } of this.charts) {
      const column = (line, from) => numbers.map((index) => (from[index] ? line.read(from, index) ?? null : null));
      const mine = panel.lines.map((line) => column(line, entries));
      const theirs = panel.lines.filter((line) => line.ghosts)
        .flatMap((line) => [0, 1].map((which) => column(line, ghosts[which]?.entries ?? [])));
      chart.marks = marks;
      chart.whole = length;
      chart.setData([numbers, ...theirs, ...mine]);
    }
    this.#say();
  }

  #chart(panel, isLast) {
    const figure = document.createElement("figure");
    figure.className = "chart";
    const caption = document.createElement("figcaption");
    const title = document.createElement("h2");
    title.textContent = panel.title;
    caption.append(title);
    figure.append(caption);
    const box = document.createElement("div");
    figure.append(box);
    this.place.append(figure);
    const stroke = (index) => colour(LINES[index % LINES.length]);
    const paths = panel.stepped ? uPlot.paths.stepped({ align: -1 }) : undefined;
    const plain = { paths, points: { show: false } };
    const ghostly = panel.lines.filter((line) => line.ghosts).flatMap((line) => [
      { ...plain, label: `best static ${line.label}`, stroke: colour("ghost-1"), width: 1.25, dash: [5, 3] },
      { ...plain, label: `heuristic ${line.label}`, stroke: colour("ghost-2"), width: 1.25, dash: [2, 2] },
    ]);
    const limits = panel.limits.map(({ value, line }) =>
      ({ value, mark: line === undefined ? colour("limit") : stroke(line) }));
    const lines = panel.lines.map((line, index) => ({
      ...plain, points: { show: isAlone, size: 5, fill: stroke(index) }, label: line.label, stroke: stroke(index), width: 1.75,
    }));
    const keys = [
      ...panel.lines.map((line, index) => ({ label: line.label, mark: stroke(index), style: "" })),
      ...panel.limits.filter((limit) => limit.label)
        .map((limit) => ({ label: limit.label, mark: colour("limit"), style: "dashed" })),
    ].map((key) => keyOf(caption, key));
    const chart = new uPlot({
      width: 300, height: this.height, legend: { show: false }, padding: [8, 10, 0, 0],
      cursor: { sync: { key: "windows" }, drag: { x: false, y: false }, points: { size: 5 } },
      series: [{ label: this.axis }, ...ghostly, ...lines],
      axes: this.#axes(panel, isLast),
      scales: { x: { time: false, range: (u) => [0, u.whole ?? 1] }, y: scaleOf(panel) },
      hooks: {
        drawClear: [shade],
        draw: [dash],
        setCursor: [(u) => this.#moved(u.cursor.idx ?? null)],
      },
    }, [[], ...[...ghostly, ...lines].map(() => [])], box);
    Object.assign(chart, { whole: this.length, limits });
    figure.chart = chart; // so that what is drawn can be read
    chart.root.querySelector("canvas").setAttribute("role", "img");
    const height = this.height + (panel.lane && isLast ? AXIS_PX : 0);
    return { panel, chart, figure, box, keys, height, behind: ghostly.length + 1 };
  }

  #axes(panel, isLast) {
    const axis = {
      stroke: colour("soft"), font: FONT, labelFont: FONT, ticks: { show: false },
      grid: { stroke: colour("grid"), width: 1 }, labelGap: 0,
    };
    const bare = panel.lane && !isLast;
    return [
      { ...axis, incrs: WHOLE, size: bare ? 4 : 20, gap: 3, labelSize: 15,
        label: bare ? undefined : this.axis, values: bare ? () => [] : undefined },
      { ...axis, size: 46, gap: 4, labelSize: panel.lane ? 0 : 15, label: panel.lane ? undefined : panel.unit,
        splits: panel.log ? (_, __, low, high) => DECADES.filter((d) => d >= low && d <= high) : panel.splits,
        // uPlot leaves out what has no room.
        values: (_, splits) => splits.map((value) => (value === null ? "" : (panel.values ?? short)(value))) },
    ];
  }

  #moved(index) {
    if (index === this.at) return;
    this.at = index;
    this.#say();
    this.onCursor(index);
  }

  // The values under the cursor, or the last ones.
  #say() {
    const count = this.last[0].length;
    const index = Math.min(this.at ?? count - 1, count - 1);
    for (const { panel, chart, keys, behind } of this.charts) {
      const shown = panel.shown ?? short;
      const values = panel.lines.map((_, line) => chart.data[behind + line]?.[index]);
      values.forEach((value, line) => (keys[line].textContent = value == null ? "–" : shown(value)));
      panel.limits.filter((limit) => limit.label)
        .forEach((limit, place) => (keys[values.length + place].textContent = limit.text ?? shown(limit.value)));
      const said = panel.lines.map((line, n) => `${line.label} ${keys[n].textContent}`).join(", ");
      chart.root.querySelector("canvas")
        .setAttribute("aria-label", `${panel.title}, ${panel.unit}; ${this.axis} ${index}: ${said}`);
    }
  }

  #key(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const count = this.last[0].length;
    if (!step || !count || event.target !== this.place) return;
    event.preventDefault();
    const to = Math.min(Math.max((this.at ?? count - 1) + step, 0), count - 1);
    for (const { chart } of this.charts) {
      chart.setCursor({ left: chart.valToPos(to, "x"), top: 4 }, false, false);
    }
    this.#moved(to);
  }

  #resize() {
    for (const { chart, box, height } of this.charts) {
      chart.setSize({ width: Math.max(box.clientWidth, 160), height });
    }
  }
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

// Whether a line has one value only: it is a dot, since no line can be drawn.
function isAlone(u, series) {
  return u.data[series].filter((value) => value != null).length === 1;
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

// Bursts and windows in which a GPU was away as bands, turned knobs as lines.
function shade(u) {
  const { turned = [], bursts = [], away = [] } = u.marks ?? {};
  const { left, top, width, height } = u.bbox;
  const x = (window) => Math.min(Math.max(u.valToPos(window, "x", true), left), left + width);
  const band = (fill) => ([first, last]) => {
    u.ctx.fillStyle = fill;
    u.ctx.fillRect(x(first - 1), top, Math.max(x(last) - x(first - 1), 1), height);
  };
  u.ctx.save();
  bursts.forEach(band(colour("burst")));
  away.forEach(band(colour("away")));
  u.ctx.strokeStyle = colour("turned");
  const many = turned.length > MANY;
  u.ctx.setLineDash(many ? [] : [2 * uPlot.pxRatio, 3 * uPlot.pxRatio]);
  u.ctx.lineWidth = uPlot.pxRatio;
  for (const window of turned) stroke(u.ctx, x(window - 1), top, x(window - 1), top + (many ? TICK_PX * uPlot.pxRatio : height));
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
