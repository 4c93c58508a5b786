// What the charts of an episode show, and the lanes of its knobs.

import { short } from "./charts.js";
import { classShare, figure, judged, LATELY, shareOf } from "./judging.js";
import { itlP99 } from "./numbers.js";

const MOST_NAMED = 3; // different objectives
const OF_CLASS = 5; // windows that a share of a class is taken over

// Before the first window nothing has been measured.
const measured = (name, factor = 1) => (windows, index) => {
  const value = index > 0 ? judged(windows[index], name) : null;
  return value === null ? null : factor * value;
};
const queue = (windows, index) => windows[index].observation?.queue_depth ?? null;
// A figure of arrivals, where there were any.
const ofArrivals = (read) => (windows, index) => (windows[index].observation?.request_arrival_rate > 0.01 ? read(windows[index].observation) : null);
// Nothing is accepted where nothing is proposed.
const acceptance = (windows, index) =>
  (windows[index].action?.speculation_depth > 0 ? measured("spec_acceptance_rate", 100)(windows, index) : null);
const inWorth = (windows, index) => {
  const share = index > 0 ? shareOf(windows, index, "worth_good", "worth_ended") : null;
  return share === null ? null : 100 * share;
};
const ofClass = (place, part, of) => (windows, index) => {
  const share = classShare(windows, index, place, part, of, OF_CLASS);
  return share === null ? null : 100 * share;
};

const sums = new WeakMap(); // of the rewards up to each window, by episode

// The mean reward of all windows up to one.
function meanReward(windows, index) {
  if (!index || windows[index].reward === null) return null;
  if (!sums.has(windows)) sums.set(windows, [0]);
  const sum = sums.get(windows);
  for (let at = sum.length; at <= index; at += 1) sum.push(sum[at - 1] + (windows[at].reward ?? 0));
  return sum[index] / index;
}

// The different objectives of the classes, each once, named by who has it.
function objectives(classes, field) {
  const owners = new Map();
  for (const one of classes) {
    owners.set(one[field], [...(owners.get(one[field]) ?? []), one.name]);
  }
  const sorted = [...owners].sort(([a], [b]) => a - b);
  if (sorted.length > MOST_NAMED) {
    const [least, most] = [sorted[0][0], sorted.at(-1)[0]];
    return sorted.map(([value], place) => (place ? { value } : { label: "SLOs", value, text: `${short(least)} to ${short(most)}` }));
  }
  return sorted.map(([value, names]) => ({
    label: names.length === classes.length ? "SLO" : `SLO ${names.join(", ")}`, value,
  }));
}

const PERCENT = { unit: "%", range: () => [0, 103], splits: () => [0, 25, 50, 75, 100] };

// The charts of an episode; a task of which nothing is known has no classes and no limit. `byClass` and
// `isRewarded` say whether it is known what each class gets, and the rewards.
export function panels(
  { classes = [], memory_limit_gb: memory, mean_reward_anchors: anchors, active_knobs: open = ["speculation_depth"] },
  { byClass, isRewarded },
) {
  const limit = Number.isFinite(memory) ? [{ label: "limit", value: memory }] : [];
  const reachable = anchors
    ? [{ label: "best static", value: anchors.best_static }, { label: "oracle", value: anchors.oracle }] : [];
  const line = (label, read, overlaid = false) => ({ label, read, overlaid });
  const perClass = (read) => (byClass ? classes : []).map((one, place) => line(one.name, read(place)));
  const groups = [...new Set(classes.map((one) => one.priority))].sort();
  const all = [
    { title: "Traffic and queue", unit: "requests", marksTurns: true, lines: [
      line("arrivals /s", measured("request_arrival_rate")),
      line("queue", queue, true),
      line("running", measured("active_requests")),
    ] },
    { title: "Time to first token", unit: "ms", log: true, limits: objectives(classes, "ttft_slo_ms"), lines: [
      line("p50", measured("p50_ttft_ms")),
      line("p99", measured("p99_ttft_ms"), true),
    ] },
    { title: "Inter-token latency", unit: "ms", lines: [
      line("p50", measured("p50_itl_ms")),
      line("mean", measured("mean_itl_ms"), true),
      line("p99", (windows, index) => (index > 0 ? itlP99(windows[index]) : null)),
    ] },
    { title: "Inside all their SLOs", ...PERCENT, lines: [
      line("requests", measured("slo_compliance_rate", 100)),
      line(`by worth, last ${LATELY}`, inWorth, true),
    ] },
    { title: "Reward", unit: "per window", limits: reachable, lines: isRewarded ? [
      line("reward", (windows, index) => (index > 0 ? windows[index].reward : null)),
      line("mean so far", meanReward, true),
    ] : [] },
    { title: "Throughput", unit: "tokens/s", lines: [line("output", measured("throughput_tps"), true)] },
    { title: "KV blocks in use", ...PERCENT, lines: [line("in use", measured("kv_cache_occupancy", 100), true)] },
    { title: "Preemptions", unit: "sequences", lines: [line("preempted", measured("eviction_events"), true)] },
    { title: "Draft acceptance", ...PERCENT, lines: open.includes("speculation_depth") ? [line("accepted", acceptance, true)] : [] },
    { title: "Mean lengths", unit: "tokens", lines: [
      line("prompts", ofArrivals((seen) => seen.mean_prompt_length)),
      line("outputs", (windows, index) => (index > 0 ? figure(windows[index], "mean_output_tokens", "ended") : null)),
    ] },
    { title: "Arrivals by priority, 0 first", ...PERCENT, lines: groups.length > 1 ? groups.map((group) =>
      line(`group ${group}`, ofArrivals((seen) => 100 * seen.priority_distribution[group]))) : [] },
    { title: "First tokens inside SLO, by class", ...PERCENT,
      lines: perClass((place) => ofClass(place, "ttft_met", "first_tokens")) },
    { title: "TPOT by class, its SLO dashed", unit: "ms",
      lines: perClass((place) => (windows, index) => windows[index].classes?.[place]?.tpot_ms ?? null),
      limits: classes.map((one, index) => ({ value: one.tpot_slo_ms, line: index })) },
    { title: "Memory of one GPU, peak", unit: "GiB", limits: limit, lines: [
      line("peak", measured("gpu_memory_used_gb"), true),
    ] },
  ];
  return all.filter((panel) => panel.lines.length).map((panel) => ({ limits: [], ...panel }));
}

// One lane for each knob, in its own unit.
export function lanes({ knob_ranges: ranges, active_knobs: open, num_gpus: gpus }, fields) {
  return Object.entries(ranges).filter(([knob]) => !open || open.includes(knob)).map(([knob, [low, most]]) => {
    const field = fields[knob];
    const high = highest(field, most, gpus);
    const scale = field.octaves ? Math.log2 : Number;
    const back = field.octaves ? (value) => Math.round(2 ** value) : Number;
    const name = (value) => field.names[back(value)] ?? knobValue(field, back(value));
    const room = 0.12 * (scale(high) - scale(low));
    const middle = field.octaves ? [3, 6] : [];
    return {
      title: field.title, unit: "", lane: true, stepped: true, limits: [], values: name, shown: name,
      range: () => [scale(low) - room, scale(high) + room],
      splits: () => (field.names.length ? field.names.map((_, value) => value) : [scale(low), ...middle, scale(high)]),
      lines: [{ label: "", overlaid: true, read: (windows, index) => {
        const { action } = windows[index];
        return action ? scale(action[knob]) : null;
      } }],
    };
  });
}

// The highest value of a knob that acts on a deployment; a slider has two places at least.
export function highest(field, most, gpus) {
  if (field.spared_gpus === null || !gpus) return most;
  return Math.max(Math.min(gpus - field.spared_gpus, most), 1);
}

// A knob's value as it is written everywhere.
export function knobValue(field, value) {
  if (field.names.length) return field.names[value];
  return field.type === "integer" ? String(value) : `${Math.round(100 * value)} %`;
}
