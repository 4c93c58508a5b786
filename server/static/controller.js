// A controller of real engines: its log, followed at the address of `jaxserve operate --metrics-port`; who is in
// control and why; and the good requests of each window beside the simulator's expectations.

import { colour, LINES } from "./colours.js";

const find = (id) => document.getElementById(id);
const LATELY = 30; // windows that are summed up
const WHOLE = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4]; // windows between two ticks
const SETTINGS = { in_force: "the knobs in force", policy: "the policy's", static: "the best static ones" };
const SOURCES = {
  policy: "The policy turns the knobs.",
  best_static: "The best static setting is in force.",
  engines: "The engines' own static values are in force.",
};

// Lines of the log behind the bytes that are known, and their size; null if the log has become shorter.
export async function moreLines(address, known) {
  let answer;
  try {
    answer = await fetch(`${address.replace(/\/+(metrics)?$/, "")}/log?from=${known}`);
  } catch {
    throw new Error(`nothing at ${address} answers this page; jaxserve operate needs --metrics-port`);
  }
  if (answer.status === 416) return null;
  if (!answer.ok) throw new Error(await answer.text());
  const bytes = await answer.arrayBuffer();
  const lines = new TextDecoder().decode(bytes).split("\n").filter(Boolean).flatMap((line) => {
    try {
      return [JSON.parse(line)];
    } catch {
      return []; // torn by a kill
    }
  });
  return { size: bytes.byteLength, lines };
}

const measured = (window) => window.metrics.good.reduce((sum, count) => sum + count, 0);
const judged = ({ ended, unjudged }) => (ended ? 1 - unjudged / ended : 1);
const expected = (setting) => (window) => window.expected[setting].good * judged(window);

// Shows what lines of a log say of control; nothing of lines without expectations.
export class ControlView {
  constructor() {
    this.chart = null;
    new ResizeObserver(() => this.chart?.setSize(size())).observe(find("expected"));
  }

  show(lines) {
    const windows = lines.filter((line) => line.kind === "window" && line.expected);
    find("controller").hidden = !windows.length;
    if (!windows.length) return;
    find("in_control").textContent = source(windows, lines);
    find("sums").textContent = sums(windows.slice(-LATELY));
    this.#draw(windows);
  }

  #draw(windows) {
    const read = [measured, ...Object.keys(SETTINGS).map(expected)];
    const data = [windows.map((_, index) => index + 1), ...read.map((one) => windows.map(one))];
    if (this.chart) return this.chart.setData(data);
    const names = ["measured", ...Object.values(SETTINGS).map((name) => `expected, ${name}`)];
    const axis = { stroke: () => colour("soft"), grid: { stroke: () => colour("grid"), width: 1 } };
    this.chart = new uPlot({
      ...size(), axes: [{ ...axis, incrs: WHOLE }, axis],
      scales: { x: { time: false }, y: { range: (_, low, high) => uPlot.rangeNum(0, high || 1, 0.1, true) } },
      series: [{ label: "window" }, ...names.map((label, index) =>
        ({ label, stroke: () => colour(LINES[index]), width: index ? 1.25 : 2, dash: index ? [5, 3] : undefined,
          points: { show: (u) => u.data[0].length < 2 } }))],
    }, data, find("expected"));
  }
}

const size = () => ({ width: Math.max(find("expected").clientWidth, 160), height: 160 });

// A sentence on the source of the knobs' values, and the reason.
function source(windows, lines) {
  const [last, event] = [windows.at(-1), lines.at(-1)];
  if (event.kind === "event" && event.window > last.window) {
    return `Window ${event.window} was not measured, and static values are in force: ${event.reason}.`;
  }
  const steers = ["guarded", "free"].includes(last.mode);
  const by = last.in_control ?? (!steers ? "engines" : last.reason ? "best_static" : "policy");
  return `${SOURCES[by]} Mode ${last.mode}${last.reason ? `: ${last.reason}` : ""}.`;
}

// What was measured and expected in some windows, in one sentence.
function sums(windows) {
  const total = (read) => windows.reduce((sum, window) => sum + read(window), 0);
  const [ended, unjudged] = ["ended", "unjudged"].map((name) => total((window) => window[name] ?? 0));
  const others = Object.entries(SETTINGS)
    .map(([setting, name]) => `${total(expected(setting)).toFixed(1)} under ${name}`);
  const share = unjudged ? `; ${Math.round((100 * unjudged) / ended)} % of the requests cannot be judged` : "";
  return `Last ${windows.length} windows: ${Math.round(total(measured))} good requests; expected by the simulator `
    + `${others.join(", ")}${share}.`;
}
