// A table of the traffic classes: what each was promised, and what it got lately.

import { short } from "./charts.js";
import { classShare, judgeShare, LATELY, percent } from "./judging.js";

// The mean time per output token of a class over the last windows, ms; null where nothing ended.
function tpotMs(windows, index, place) {
  let [sum, ended] = [0, 0];
  for (const window of windows.slice(Math.max(index - LATELY + 1, 1), index + 1)) {
    const one = window.classes?.[place];
    if (!one || one.tpot_ms === null) continue;
    sum += one.tpot_ms * one.ended;
    ended += one.ended;
  }
  return ended > 0.5 ? sum / ended : null;
}

// `byClass`: whether it is known what each class got.
export function showClasses(place, task, windows, byClass) {
  const [scroll, note] = place.children;
  if (!task?.classes?.length) {
    scroll.replaceChildren();
    note.textContent = "Nothing is known of this task's classes.";
    return;
  }
  const until = windows.findLastIndex((window) => window.classes);
  const table = document.createElement("table");
  const got = (...cells) => (byClass ? cells : []);
  const head = ["class", "worth", "TTFT SLO", ...got("met"), "TPOT SLO", ...got("now", "good", "waiting")];
  table.append(row("th", head.map((text) => [text])));
  task.classes.forEach((one, index) => {
    const early = classShare(windows, until, index, "ttft_met", "first_tokens");
    const good = classShare(windows, until, index, "good", "ended");
    const tpot = tpotMs(windows, until, index);
    const waiting = windows[until]?.classes[index].waiting ?? null;
    table.append(row("td", [
      [one.name, "", lengthsOf(one)], [short(one.value)],
      [short(one.ttft_slo_ms)], ...got([percent(early, 0), judgeShare(early)]),
      [short(one.tpot_slo_ms)], ...got(
        [tpot === null ? "–" : short(tpot), tpot > one.tpot_slo_ms ? "bad" : ""],
        [percent(good, 0), judgeShare(good)],
        [waiting === null ? "–" : short(Math.round(waiting))],
      ),
    ]));
  });
  note.textContent = byClass
    ? `Times in ms, means of the ${LATELY} windows up to ${Math.max(until, 0)}. Met: first tokens inside the class's TTFT SLO. `
      + "Good: requests that met both SLOs, of all that ended. Amber: fewer than 99 % are inside; red: not even half."
    : "Times in ms. What each class got is not known of a live episode.";
  scroll.replaceChildren(table);
}

// What a class is: its lengths.
function lengthsOf({ prompt_tokens: prompts, output_tokens: outputs }) {
  const span = ([low, high]) => `${short(low)}–${short(high)}`;
  return prompts ? `prompts ${span(prompts)}, outputs ${span(outputs)} tokens` : "lengths as recorded";
}

function row(tag, cells) {
  const line = document.createElement("tr");
  cells.forEach(([text, state, about], place) => {
    const cell = document.createElement(place === 0 ? "th" : tag);
    cell.scope = place === 0 && tag === "td" ? "row" : tag === "th" ? "col" : "";
    const inner = document.createElement("span");
    // A long name may be broken where its words meet.
    inner.append(...text.split(/(?<=_)/).flatMap((part) => [part, document.createElement("wbr")]));
    inner.className = "verdict";
    if (state) cell.dataset.state = state;
    cell.append(inner);
    if (about) cell.append(Object.assign(document.createElement("small"), { textContent: about, className: "about" }));
    line.append(cell);
  });
  return line;
}
