// What can be said of a window: figures that rest on enough requests, and shares against what is reachable.

const FEWEST = 0.5; // requests, below which a figure says nothing
export const LATELY = 10; // windows that a share is taken over
const P99 = 0.99; // of the requests are inside their SLOs: so is the 99th percentile
const MEDIAN = 0.5;
const NEAR = 0.9; // of what is reachable, or of a limit
const LEVEL = 0.005; // shares that are so close are the same

const basis = new Map(); // of the observation's figures: the requests of the window that each rests on

// Args: the server's schema of observations.
export function learn({ properties }) {
  for (const [name, { rests_on: requests }] of Object.entries(properties)) if (requests) basis.set(name, requests);
}

// A figure of a window's observation; null if it is not known, or if there is nothing to judge.
export function judged(window, name) {
  const value = window?.observation?.[name];
  return value === undefined || window.figures?.[basis.get(name)] < FEWEST ? null : value;
}

// A further figure of a window, of at least half of the requests that it rests on.
export function figure(window, name, requests) {
  const value = window?.figures?.[name];
  return value === undefined || window.figures[requests] < FEWEST ? null : value;
}

// A share of requests over the last `count` windows up to `index`; null where there were too few.
export function shareOf(windows, index, part, whole, count = LATELY) {
  let [sum, all, requests] = [0, 0, 0];
  for (let at = Math.max(index - count + 1, 1); at <= index; at += 1) {
    const of = windows[at]?.figures;
    if (of?.[part] === undefined) continue;
    sum += of[part];
    all += of[whole];
    requests += whole === "worth_ended" ? of.ended : of[whole];
  }
  return requests >= FEWEST && all > 0 ? sum / all : null;
}

// Shares of a class's requests over the last windows.
export function classShare(windows, index, place, part, whole, count = LATELY) {
  let [sum, all] = [0, 0];
  for (let at = Math.max(index - count + 1, 1); at <= index; at += 1) {
    const one = windows[at]?.classes?.[place];
    sum += one?.[part] ?? 0;
    all += one?.[whole] ?? 0;
  }
  return all >= FEWEST ? sum / all : null;
}

// A share of requests inside their SLOs. Good: so is their 99th percentile, or their median where the best static
// setting does no better in the same windows. Near: not much worse than that setting or, where it is not known, the
// median is inside.
export function judgeShare(share, reachable = null) {
  if (share === null) return "none";
  if (share >= P99 || (reachable !== null && share >= Math.max(reachable - LEVEL, MEDIAN))) return "good";
  return share >= (reachable === null ? MEDIAN : NEAR * reachable) ? "near" : "bad";
}

// A value that must stay below a limit.
export function judgeLimit(value, limit) {
  if (!Number.isFinite(value) || !Number.isFinite(limit)) return "none";
  return value > limit ? "bad" : value > NEAR * limit ? "near" : "good";
}

// A score between the anchors: 0.5 is that of the best static setting.
export function judgeScore(score) {
  if (score === null) return "none";
  return score >= 0.5 ? "good" : score >= NEAR * 0.5 ? "near" : "bad";
}

export const percent = (share, digits = 1) =>
  (share === null ? "–" : `${(100 * share).toFixed(share > 0.9995 ? 0 : digits)} %`);
