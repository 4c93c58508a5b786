// Charts of rewards, tokens and sessions over time, on uPlot.

import { colour } from "./colours.js";
import { make, number } from "./dom.js";

const HEIGHT_PX = 165;
const FONT = "11px system-ui, sans-serif";
const CHARTS = [
  { name: "reward", title: "Reward", unit: "mean of the sessions that ended", line: "line-1", points: true },
  { name: "tokens_per_s", title: "Tokens per second", unit: "sampled, of ended sessions", line: "line-2" },
  { name: "running", title: "Agents at work", unit: "mean number", line: "line-3" },
];
const drawn = new Map();
// Canvases keep the colours that they were drawn with.
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const figures of drawn.values()) figures.forEach((figure) => { figure.build(); });
});

// The charts of a history of the service; a chart stays the same element when the page is redrawn.
export function charts(key, history) {
  if (!drawn.has(key)) drawn.set(key, CHARTS.map(figureOf));
  const figures = drawn.get(key);
  figures.forEach((figure) => figure.show(history));
  return make("div", { className: "charts" }, ...figures);
}

function figureOf({ name, title, unit, line, points }) {
  const said = make("span", { className: "value" });
  const box = make("div");
  const figure = make("figure", { className: "chart card", data: { chart: name } },
    make("figcaption", {}, make("h2", {}, title, said), make("span", { className: "hint" }, unit)), box);
  let data = [[], []];
  const say = () => {
    const at = figure.chart.cursor.idx ?? data[1].findLastIndex((value) => value !== null);
    const value = data[1][at] ?? null;
    said.textContent = number(value, 3);
    const when = data[0].length ? `, ${new Date(1000 * data[0][Math.max(at, 0)]).toLocaleTimeString()}` : "";
    figure.chart.root.querySelector("canvas").setAttribute("aria-label", `${title}, ${unit}${when}: ${said.textContent}`);
  };
  figure.build = () => {
    figure.chart?.destroy();
    const stroke = colour(line);
    const axis = { stroke: colour("soft"), font: FONT, ticks: { show: false }, grid: { stroke: colour("grid"), width: 1 } };
    figure.chart = new uPlot({
      width: Math.max(box.clientWidth, 220), height: HEIGHT_PX, legend: { show: false }, padding: [8, 10, 0, 0],
      cursor: { drag: { x: false, y: false }, points: { size: 5 } },
      series: [{}, { label: title, stroke, width: 1.75, spanGaps: true, points: { show: points ?? false, size: 4, fill: stroke } }],
      axes: [{ ...axis, size: 36, gap: 3 }, { ...axis, size: 48, gap: 4, values: (_, splits) => splits.map((one) => number(one, 3)) }],
      scales: { y: { range: (_, low, high) => uPlot.rangeNum(Math.min(low ?? 0, 0), Math.max(high ?? 1, low < 0 ? 0 : 1e-9), 0.08, true) } },
      hooks: { setCursor: [() => { if (figure.chart) say(); }] },
    }, data, box);
    figure.chart.root.querySelector("canvas").setAttribute("role", "img");
    say();
  };
  figure.show = (history) => {
    const times = history[name].map((_, place) => history.start_unix_s + (place + 0.5) * history.width_s);
    data = [times, history[name]];
    if (figure.chart) { figure.chart.setData(data); say(); } else figure.build();
  };
  new ResizeObserver(() => figure.chart?.setSize({ width: Math.max(box.clientWidth, 220), height: HEIGHT_PX })).observe(box);
  return figure;
}
