// What the charts of an episode show, and the lanes of its knobs.

import { short } from "./charts.js";
import { itlP99 } from "./numbers.js";

const MOST_NAMED = 3; // different objectives
const FEW = 0.5; // requests, below which a share of them says nothing
const LATELY = 5; // windows that a share of a class is taken over

const seen = (name, factor = 1) => (windows, index) => {
  const value = windows[index].observation?.[name];
  return value === undefined ? null : factor * value;
};
// Before the first window nothing has been measured.
const measured = (name, factor) => (windows, index) => (index > 0 ? seen(name, factor)(windows, index) : null);

// Of a class's requests in the last windows.
function share(place, part, whole) {
  return (windows, index) => {
    const near = windows.slice(Math.max(index - LATELY + 1, 1), index + 1).map((window) => window.classes?.[place]);
    const total = (field) => near.reduce((sum, one) => sum + (one?.[field] ?? 0), 0);
    return total(whole) > FEW ? (100 * total(part)) / total(whole) : null;
  };
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

function tightest(classes, field) {
  return classes.length ? [{ label: "tightest SLO", value: Math.min(...classes.map((one) => one[field])) }] : [];
}

const PERCENT = { unit: "%", range: () => [0, 103], splits: () => [0, 25, 50, 75, 100] };

// The charts of an episode; a task of which nothing is known has no classes and no limit. `byClass` and
// `isRewarded` say whether it is known what each class gets, and the rewards.
export function panels({ classes = [], memory_limit_gb: memory }, { byClass, isRewarded }) {
  const limit = Number.isFinite(memory) ? [{ label: "limit", value: memory }] : [];
  const line = (label, read, ghosts = false) => ({ label, read, ghosts });
  const perClass = (read) => (byClass ? classes : []).map((one, place) => line(one.name, read(place)));
  const all = [
    { title: "Traffic and queue", unit: "requests", lines: [
      line("arrivals /s", measured("request_arrival_rate")),
      line("queue", seen("queue_depth"), true),
      line("running", seen("active_requests")),
    ] },
    { title: "Time to first token", unit: "ms", log: true, limits: objectives(classes, "ttft_slo_ms"), lines: [
      line("p50", measured("p50_ttft_ms")),
      line("p99", measured("p99_ttft_ms"), true),
    ] },
    { title: "Inter-token latency", unit: "ms", limits: tightest(classes, "tpot_slo_ms"), lines: [
      line("p50", measured("p50_itl_ms")),
      line("mean", measured("mean_itl_ms"), true),
      ...(byClass ? [line("p99", (windows, index) => itlP99(windows[index]))] : []),
    ] },
    { title: "Requests inside all their SLOs", ...PERCENT, lines: [
      line("inside", measured("slo_compliance_rate", 100), true),
    ] },
    { title: "Throughput", unit: "tokens/s", lines: [line("output", measured("throughput_tps"), true)] },
    { title: "Reward", unit: "per window", lines: isRewarded ? [
      line("reward", (windows, index) => (index > 0 ? windows[index].reward : null), true),
    ] : [] },
    { title: "First tokens inside SLO, by class", ...PERCENT,
      lines: perClass((place) => share(place, "ttft_met", "first_tokens")) },
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
    const high = field.below_gpus && gpus ? Math.max(Math.min(gpus - 1, most), 1) : most;
    const scale = field.octaves ? Math.log2 : Number;
    const back = field.octaves ? (value) => Math.round(2 ** value) : Number;
    const name = (value) => field.names[back(value)] ?? knobValue(field, back(value));
    const room = 0.12 * (scale(high) - scale(low));
    const middle = field.octaves ? [3, 6] : [];
    return {
      title: field.title, unit: "", lane: true, stepped: true, limits: [], values: name, shown: name,
      range: () => [scale(low) - room, scale(high) + room],
      splits: () => (field.names.length ? field.names.map((_, value) => value) : [scale(low), ...middle, scale(high)]),
      lines: [{ label: "", ghosts: true, read: (windows, index) => {
        const { action } = windows[index];
        return action ? scale(action[knob]) : null;
      } }],
    };
  });
}

// A knob's value as it is written everywhere.
export function knobValue(field, value) {
  if (field.names.length) return field.names[value];
  return field.type === "integer" ? String(value) : `${Math.round(100 * value)} %`;
}
