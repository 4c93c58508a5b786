// Big numbers: the last window, coloured by its objective.

import { short } from "./charts.js";

const NEAR = 0.9; // of a limit
const SHARE_GOOD = 0.99;
const SHARE_BAD = 0.9;
const WORDS = { good: "✓", near: "≈", bad: "✗" };

export const least = (task, field) => {
  const values = (task?.classes ?? []).map((one) => one[field]);
  return values.length ? Math.min(...values) : null;
};

// The 99th percentile of the inter-token latency in a window; null until what classes got is known. They
// share the engine's iterations: it is that of any class that decoded.
export const itlP99 = (window) => window?.classes?.find((one) => one.itl_p99_ms !== null)?.itl_p99_ms ?? null;

// A value that must stay below a limit.
export function judge(value, limit) {
  if (!Number.isFinite(value) || !Number.isFinite(limit)) return "none";
  return value > limit ? "bad" : value > NEAR * limit ? "near" : "good";
}

function judgeShare(share) {
  if (!Number.isFinite(share)) return "none";
  return share >= SHARE_GOOD ? "good" : share >= SHARE_BAD ? "near" : "bad";
}

// A sentence with a number; nothing where it is not known.
const known = (value, say) => (Number.isFinite(value) ? say(short(value)) : "");

const fixed = (value, digits) => (Number.isFinite(value) ? value.toFixed(digits) : "–");

// What the tiles say of an observation and the one before, and of a percentile that comes later:
// { label, value, unit, state, objective, read }.
export function tiles(task, o, before, itl_p99_ms) {
  const ttft = least(task, "ttft_slo_ms");
  const waits_s = o.request_arrival_rate > 0 ? o.queue_depth / o.request_arrival_rate : NaN;
  const memory = task?.memory_limit_gb;
  const cost = (of, last) => ((of.cost_so_far - (last?.cost_so_far ?? 0)) * 3600) / (task?.window_s ?? 1);
  const percent = (of) => fixed(100 * of.slo_compliance_rate, of.slo_compliance_rate > 0.9995 ? 0 : 1);
  return [
    { label: "TTFT p99", value: short(o.p99_ttft_ms), unit: "ms", state: judge(o.p99_ttft_ms, ttft),
      objective: ttft && `at most ${short(ttft)} ms`, read: (of) => `${short(of.p99_ttft_ms)} ms` },
    { label: "Inside SLO", value: percent(o), unit: "%", state: judgeShare(o.slo_compliance_rate),
      objective: `at least ${100 * SHARE_GOOD} %`, read: (of) => `${percent(of)} %` },
    { label: "Queue", value: fixed(o.queue_depth, 0), unit: "requests", state: judge(waits_s, ttft / 1000),
      objective: Number.isFinite(waits_s) ? `${fixed(waits_s, 1)} s of arrivals` : "that wait for a token",
      read: (of) => fixed(of.queue_depth, 0) },
    { label: "ITL p99", value: itl_p99_ms === null ? "–" : short(itl_p99_ms), unit: "ms", state: "none",
      objective: o.p50_itl_ms === undefined ? "" : `p50 ${short(o.p50_itl_ms)}, mean ${short(o.mean_itl_ms)} ms`,
      read: (of) => `p50 ${short(of.p50_itl_ms)} ms` },
    { label: "Output", value: short(o.throughput_tps), unit: "tokens/s", state: "none",
      objective: known(o.request_arrival_rate, (rate) => `${rate} requests/s arrive`), read: (of) => short(of.throughput_tps) },
    { label: "Memory of a GPU", value: fixed(o.gpu_memory_used_gb, 1), unit: "GiB",
      state: judge(o.gpu_memory_used_gb, memory),
      objective: memory && `at most ${short(memory)} GiB`, read: (of) => `${fixed(of.gpu_memory_used_gb, 1)} GiB` },
    { label: "Cost", value: short(cost(o, before)), unit: "US$ an hour", state: "none",
      objective: known(1000 * o.estimated_cost_per_1k, (dollars) => `$${dollars} per million good tokens`),
      read: (of, last) => `$${short(cost(of, last))}` },
  ];
}

// Shows the last window; `static_` are the windows of the best static setting, if they are known.
export function showNumbers(place, task, windows, static_) {
  const index = windows.length - 1;
  // Before the first window nothing has been measured.
  const now = (index > 0 && windows[index].observation) || {};
  const itl = itlP99(windows.findLast((window) => window.classes));
  place.replaceChildren(...tiles(task, now, windows[index - 1]?.observation, itl).map((tile) => {
    const [their, last] = [static_[index]?.observation, static_[index - 1]?.observation];
    return tileOf(tile, index > 0 && their ? `best static ${tile.read(their, last)}` : "");
  }));
}

function tileOf({ label, value, unit, state, objective }, beside) {
  const tile = document.createElement("div");
  tile.className = "tile";
  tile.dataset.state = state;
  const add = (tag, name, text) => {
    const element = document.createElement(tag);
    element.className = name;
    element.textContent = text;
    return element;
  };
  const big = add("dd", "big", `${value} `);
  big.append(add("small", "", unit));
  const below = add("dd", "hint", "");
  if (state !== "none") below.append(add("span", "verdict", `${WORDS[state]} `));
  below.append(objective || "");
  tile.append(add("dt", "", label), big, below);
  tile.append(add("dd", "hint", beside));
  return tile;
}
