// A table of the traffic classes: what each was promised, and what it got lately.

import { short } from "./charts.js";

const LATELY = 10; // windows

// Shares over the last windows; null where nothing was counted.
export function lately(windows, index) {
  const seen = windows.slice(1).map((window) => window.classes?.[index]).filter(Boolean).slice(-LATELY);
  const total = (field) => seen.reduce((sum, one) => sum + one[field], 0);
  const share = (part, whole) => (total(whole) > 0.01 ? total(part) / total(whole) : null);
  const timed = seen.filter((one) => one.tpot_ms !== null);
  const ended = timed.reduce((sum, one) => sum + one.ended, 0);
  return {
    ttft: share("ttft_met", "first_tokens"),
    good: share("good", "ended"),
    waiting: seen.at(-1)?.waiting ?? null,
    tpot_ms: ended > 0.01 ? timed.reduce((sum, one) => sum + one.tpot_ms * one.ended, 0) / ended : null,
  };
}

const percent = (share) => (share === null ? "–" : `${Math.round(100 * share)} %`);

// `byClass`: whether it is known what each class got.
export function showClasses(place, task, windows, byClass) {
  const [scroll, note] = place.children;
  if (!task?.classes?.length) {
    scroll.replaceChildren();
    note.textContent = "Nothing is known of this task's classes.";
    return;
  }
  const table = document.createElement("table");
  const got = (...cells) => (byClass ? cells : []);
  const head = ["class", "TTFT SLO", ...got("met"), "TPOT SLO", ...got("now", "good", "waiting")];
  table.append(row("th", head.map((text) => [text])));
  task.classes.forEach((one, index) => {
    const now = lately(windows, index);
    const beyond = now.tpot_ms !== null && now.tpot_ms > one.tpot_slo_ms;
    table.append(row("td", [
      [one.value === 1 ? one.name : `${one.name} ×${short(one.value)}`],
      [short(one.ttft_slo_ms)], ...got([percent(now.ttft), stateOf(now.ttft)]),
      [short(one.tpot_slo_ms)], ...got(
        [now.tpot_ms === null ? "–" : short(now.tpot_ms), beyond ? "bad" : ""],
        [percent(now.good), stateOf(now.good)],
        [now.waiting === null ? "–" : short(Math.round(now.waiting))],
      ),
    ]));
  });
  note.textContent = byClass
    ? `×: worth of a request. Times in ms, means of the last ${LATELY} windows. Met: first tokens inside the TTFT SLO. `
      + "Good: requests that met both SLOs, of all that ended."
    : "×: worth of a request. Times in ms. What each class got is not known of a live episode.";
  scroll.replaceChildren(table);
}

function stateOf(share) {
  return share === null ? "" : share >= 0.99 ? "good" : share >= 0.9 ? "near" : "bad";
}

function row(tag, cells) {
  const line = document.createElement("tr");
  cells.forEach(([text, state], place) => {
    const cell = document.createElement(place === 0 ? "th" : tag);
    cell.scope = place === 0 && tag === "td" ? "row" : tag === "th" ? "col" : "";
    const inner = document.createElement("span");
    // A long name may be broken where its words meet.
    inner.append(...text.split(/(?<=_)/).flatMap((part) => [part, document.createElement("wbr")]));
    inner.className = "verdict";
    if (state) cell.dataset.state = state;
    cell.append(inner);
    line.append(cell);
  });
  return line;
}
