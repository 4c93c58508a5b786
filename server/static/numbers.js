// Tiles with the numbers of one window, each coloured by its own objective.

import { short } from "./charts.js";
import { figure, judged, judgeLimit, judgeShare, LATELY, percent, shareOf } from "./judging.js";

const WORDS = { good: "✓", near: "≈", bad: "✗" };

// A sentence with a number; nothing where it is not known.
const known = (value, say) => (Number.isFinite(value) ? say(short(value)) : "");
const whole = (value) => (Number.isFinite(value) ? value.toFixed(0) : "–");

const worth = (windows, index) => shareOf(windows, index, "worth_good", "worth_ended");
const inside = (windows, index) => shareOf(windows, index, "good", "ended");
const early = (windows, index) => shareOf(windows, index, "ttft_met", "first_tokens", 1);
// A real engine's is not measured: 0.
export const itlP99 = (window) => figure(window, "p99_itl_ms", "decoding") || null;

// US dollars an hour in a window.
function hourly(windows, index, task) {
  const [last, before] = [windows[index], windows[index - 1]].map((window) => window?.observation?.cost_so_far);
  return ((last - (before ?? 0)) * 3600) / (task?.window_s ?? 1);
}

// What the tiles say: { label, value, unit, state, note, beside, large }. `beside(windows)` says the same of others.
function tiles(task, windows, index, best, areMeasured) {
  const now = windows[index];
  const o = now?.observation ?? {};
  const reachable = (of) => (best[index] ? of(best, index) : null);
  const waits_s = o.request_arrival_rate > 0.01 ? o.queue_depth / o.request_arrival_rate : NaN;
  const simulated = areMeasured ? "by the task's hardware" : "";
  const [share, label] = "worth_ended" in (now?.figures ?? { worth_ended: 0 }) ? [worth, "Inside SLOs, by worth"] : [inside, "Inside SLOs"];
  const memory = task?.memory_limit_gb;
  const ms = (name) => (of) => `${short(judged(of[index], name))} ms`;
  return [
    { label, large: true, value: percent(share(windows, index)), unit: "",
      state: judgeShare(share(windows, index), reachable(share)),
      note: `of the requests that ended in the last ${LATELY} windows`, beside: (of) => percent(share(of, index)) },
    { label: "TTFT p99", value: short(judged(now, "p99_ttft_ms")), unit: "ms",
      state: judgeShare(early(windows, index), reachable(early)),
      note: early(windows, index) === null ? "" : `${percent(early(windows, index))} inside their class's SLO`, beside: ms("p99_ttft_ms") },
    { label: "ITL p99", value: short(itlP99(now)), unit: "ms", state: "none",
      note: known(judged(now, "p50_itl_ms"), (p50) => `p50 ${p50}, mean ${short(judged(now, "mean_itl_ms"))} ms`),
      beside: (of) => `${short(itlP99(of[index]))} ms` },
    { label: "Queue", value: whole(o.queue_depth), unit: "requests", state: "none",
      note: known(waits_s, (seconds) => `${seconds} s of arrivals`), beside: (of) => whole(of[index].observation.queue_depth) },
    { label: areMeasured ? "Sent" : "Arrivals", value: short(o.request_arrival_rate), unit: "requests/s", state: "none",
      note: known(o.mean_prompt_length, (tokens) => `prompts of ${tokens} tokens`) },
    { label: "Output", value: short(o.throughput_tps), unit: "tokens/s", state: "none",
      note: known(figure(now, "mean_output_tokens", "ended"), (tokens) => `outputs of ${tokens} tokens`),
      beside: (of) => short(of[index].observation.throughput_tps) },
    { label: "KV blocks in use", value: short(100 * o.kv_cache_occupancy), unit: "%", state: "none",
      note: known(o.eviction_events, (count) => `${count} preempted`),
      beside: (of) => `${short(100 * of[index].observation.kv_cache_occupancy)} %` },
    { label: "Memory of a GPU", value: short(o.gpu_memory_used_gb), unit: "GiB", state: judgeLimit(o.gpu_memory_used_gb, memory),
      note: [memory && `at most ${short(memory)} GiB`, simulated].filter(Boolean).join(", "), beside: (of) => `${short(of[index].observation.gpu_memory_used_gb)} GiB` },
    { label: "Cost", value: short(hourly(windows, index, task)), unit: "US$ an hour", state: "none",
      note: [known(1000 * (judged(now, "estimated_cost_per_1k") ?? NaN), (dollars) => `$${dollars} per million good tokens`),
        simulated].filter(Boolean).join(", "),
      beside: (of) => `$${short(hourly(of, index, task))}` },
  ];
}

// Shows window `index`; `best` are the windows of the best static setting, if they are known, and `areMeasured`
// says whether a real engine played. Before the first window nothing has been measured.
export function showNumbers(place, task, windows, index, best, areMeasured) {
  const shown = index > 0 ? windows : [];
  place.replaceChildren(...tiles(task, shown, index, best, areMeasured).map((tile) =>
    tileOf(tile, index > 0 && best[index] && tile.beside ? `best static ${tile.beside(best)}` : "")));
}

function tileOf({ label, value, unit, state, note, large }, beside) {
  const tile = document.createElement("div");
  tile.className = large ? "tile large" : "tile";
  tile.dataset.state = state;
  const add = (tag, name, text) => {
    const element = document.createElement(tag);
    element.className = name;
    element.textContent = text;
    return element;
  };
  const name = add("dt", "", label);
  if (unit) name.append(add("small", "", ` ${unit}`));
  const below = add("dd", "hint", "");
  if (state !== "none") below.append(add("span", "verdict", `${WORDS[state]} `));
  below.append(note || "");
  tile.append(name, add("dd", "big", value), below, add("dd", "hint", beside));
  return tile;
}
