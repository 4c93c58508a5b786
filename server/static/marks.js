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
  const around = (index) => {
    const near = rates.slice(Math.max(index - 1, 1), index + 2);
    return near.reduce((sum, rate) => sum + rate, 0) / near.length;
  };
  if (!(usual > 0)) return [];
  const within = new Set();
  for (const [first, last] of runs(windows.length, (index) => around(index) > BURST * usual)) {
    const busy = [...rates.keys()].slice(Math.max(first - 1, 1), last + 2).filter((index) => rates[index] > BURST * usual);
    for (let index = busy[0]; index <= busy.at(-1); index += 1) within.add(index);
  }
  return runs(windows.length, (index) => within.has(index));
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

export function marksOf(windows, meanRate) {
  return {
    turned: turned(windows).map((one) => one.window),
    bursts: bursts(windows, meanRate),
    away: away(windows),
  };
}

// Turns of one driver in windows one after the other, as one; each reason begins another.
function merged(windows) {
  const found = [];
  for (const { window, knobs, before, now } of turned(windows)) {
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

function sentence({ driver, knobs, before, now }, fields) {
  const each = [...knobs].map((knob) => {
    const [from, to] = [knobValue(fields[knob], before[knob]), knobValue(fields[knob], now[knob])];
    return `${fields[knob].title} ${from === to ? `back at ${to}` : `${from} → ${to}`}`;
  });
  // Of a session that was taken up again nobody knows who drove.
  return `${driver ? `${driver}: ` : ""}${each.join(", ")}`;
}

// Sentences for a list, the newest first: { window, until, text, reason }.
export function happened(windows, fields, meanRate) {
  const events = merged(windows).map((one) =>
    ({ window: one.window, until: one.until, reason: one.reason, text: sentence(one, fields) }));
  const said = new Set(events.map((event) => event.window));
  windows.forEach(({ reason, driver }, window) => {
    if (reason && !said.has(window)) events.push({ window, text: `${driver}: ${window === 1 ? "first knobs" : "knobs stay"}`, reason });
  });
  for (const [first, last] of bursts(windows, meanRate)) {
    const most = Math.max(...windows.slice(first, last + 1).map((w) => w.observation.request_arrival_rate));
    events.push({ window: first, until: last, text: `a burst: up to ${most.toFixed(0)} arrivals a second` });
  }
  for (const [first, last] of away(windows)) {
    const most = Math.max(...windows.slice(first, last + 1).map((w) => w.observation.reconfiguring));
    events.push({ window: first, until: last, text: `${Math.round(100 * most)} % of the capacity away` });
  }
  return events.sort((a, b) => b.window - a.window);
}
