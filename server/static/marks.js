// What happened in an episode: knobs that were turned, bursts, GPUs away, reasons.

import { knobValue } from "./panels.js";

const BURST = 1.5; // times the mean rate, over three windows
const AWAY = 0.001; // share of the capacity

// Runs of windows, [first, last], for which `holds(index)`.
function runs(count, holds) {
  const found = [];
  for (let index = 1; index < count; index += 1) {
    if (!holds(index)) continue;
    const last = found.at(-1);
    if (last?.[1] === index - 1) last[1] = index;
    else found.push([index, index]);
  }
  return found;
}

function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.floor(sorted.length / 2)] ?? 0;
}

// Where arrivals are well above the mean rate: the task's, or the median so far where that is unknown.
// They are so over three windows; the burst reaches from the first to the last of them that is so by itself.
export function bursts(windows, meanRate) {
  const rates = windows.map((window) => window.observation?.request_arrival_rate ?? 0);
  const usual = meanRate ?? median(rates.slice(1));
  const busy = (index) => rates[index] > BURST * usual;
  const around = (index) => {
    const [first, last] = [Math.max(index - 1, 1), Math.min(index + 1, rates.length - 1)];
    let sum = 0;
    for (let at = first; at <= last; at += 1) sum += rates[at];
    return sum / (last - first + 1);
  };
  if (!(usual > 0)) return [];
  const found = [];
  for (let [first, last] of runs(windows.length, (index) => around(index) > BURST * usual)) {
    for (first = Math.max(first - 1, 1); !busy(first); first += 1);
    for (last = Math.min(last + 1, rates.length - 1); !busy(last); last -= 1);
    const before = found.at(-1);
    if (before && first <= before[1] + 1) before[1] = Math.max(before[1], last);
    else found.push([first, last]);
  }
  return found;
}

export function away(windows) {
  return runs(windows.length, (index) => (windows[index].observation?.reconfiguring ?? 0) > AWAY);
}

// The windows that began with other knobs: { window, knobs, before, now }.
export function turned(windows) {
  const found = [];
  for (let index = 2; index < windows.length; index += 1) {
    const [before, now] = [windows[index - 1].action, windows[index].action];
    if (!before || !now) continue;
    const knobs = Object.keys(now).filter((knob) => now[knob] !== before[knob]);
    if (knobs.length) found.push({ window: index, knobs, before, now });
  }
  return found;
}

// Args: `turns`: see `turned`.
export function marksOf(windows, meanRate, turns) {
  return { turned: turns.map((one) => one.window), bursts: bursts(windows, meanRate), away: away(windows) };
}

// Turns of one driver in windows one after the other, as one; each reason begins another.
function merged(windows, turns) {
  const found = [];
  for (const { window, knobs, before, now } of turns) {
    const { driver, reason } = windows[window];
    const last = found.at(-1);
    if (last && !reason && last.driver === driver && last.until === window - 1) {
      knobs.forEach((knob) => last.knobs.add(knob));
      Object.assign(last, { until: window, now });
    } else {
      found.push({ window, until: window, driver, reason, knobs: new Set(knobs), before, now });
    }
  }
  return found;
}

// Who chose the knobs of a window.
const who = (driver) => driver?.replace("_", " ") ?? "by hand";

function sentence({ driver, knobs, before, now }, fields) {
  const each = [...knobs].map((knob) => {
    const [from, to] = [knobValue(fields[knob], before[knob]), knobValue(fields[knob], now[knob])];
    return `${fields[knob].title} ${from === to ? `back at ${to}` : `${from} → ${to}`}`;
  });
  return `${who(driver)}: ${each.join(", ")}`;
}

// Sentences for a list, the newest first: { window, until, text, reason }.
export function happened(windows, fields, turns, marks) {
  const events = merged(windows, turns).map((one) =>
    ({ window: one.window, until: one.until, reason: one.reason, text: sentence(one, fields) }));
  const said = new Set(events.map((event) => event.window));
  windows.forEach(({ reason, driver }, window) => {
    if (reason && !said.has(window)) events.push({ window, text: `${who(driver)}: ${window === 1 ? "first knobs" : "knobs stay"}`, reason });
  });
  for (const [first, last] of marks.bursts) {
    const most = Math.max(...windows.slice(first, last + 1).map((w) => w.observation.request_arrival_rate));
    events.push({ window: first, until: last, text: `a burst: up to ${most.toFixed(0)} arrivals a second` });
  }
  for (const [first, last] of marks.away) {
    const most = Math.max(...windows.slice(first, last + 1).map((w) => w.observation.reconfiguring));
    events.push({ window: first, until: last, text: `${Math.round(100 * most)} % of the capacity away` });
  }
  return events.sort((a, b) => b.window - a.window);
}
