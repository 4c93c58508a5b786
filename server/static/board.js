// Everything that shows an episode, whoever plays it.

import { Charts } from "./charts.js";
import { showClasses } from "./classes.js";
import { happened, marksOf } from "./marks.js";
import { showNumbers } from "./numbers.js";
import { lanes, panels } from "./panels.js";
import { showScore } from "./score.js";

const find = (id) => document.getElementById(id);
const EVENTS = 100; // that are listed
const GHOSTS = { best_static: "best static", heuristic: "heuristic" };

// An episode: { task, name, windows, ghosts, meanRate, byClass }. `task` is what the server says of it, or
// null; window 0 is the reset; `ghosts` are windows by the names of agents; `byClass`, whether it is known
// what each class gets.
export class Board {
  constructor() {
    this.charts = new Charts(find("charts"));
    this.lanes = new Charts(find("lanes"), { height: 64 });
    this.hidden = new Set();
    this.waiting = false;
    for (const charts of [this.charts, this.lanes]) {
      charts.onCursor = (index) =>
        (find("cursor").textContent = index === null ? "the last window" : `window ${index}`);
    }
  }

  // Empty, for a task. `known` is any task: all have the same knobs.
  begin(episode, fields, known) {
    Object.assign(this, { episode, fields });
    const { task, windows, byClass } = episode;
    const isRewarded = windows[1]?.reward !== null; // or it will be
    const length = task?.max_steps ?? 1;
    find("about").textContent = task ? describe(task) : episode.name ? `${episode.name}, a task of your own.` : "";
    const unit = `window (${task?.window_s ?? 1} s each)`;
    for (const charts of [this.charts, this.lanes]) charts.axis = unit;
    this.charts.build(panels(task ?? {}, { byClass, isRewarded }), length);
    this.lanes.build(lanes(task ?? { knob_ranges: known.knob_ranges }, fields), length);
    this.draw();
  }

  // The count at once, the picture soon: many windows may have come before the next one.
  draw() {
    this.#count();
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.#draw();
    });
  }

  #count() {
    showScore(this.episode.windows, this.episode.task, []);
  }

  #draw() {
    const { task, windows, meanRate, byClass } = this.episode;
    const ghosts = Object.entries(GHOSTS).map(([agent, name]) =>
      ({ agent, name, entries: this.episode.ghosts[agent] ?? [] }));
    const shown = ghosts.map((ghost) => (this.hidden.has(ghost.agent) ? { ...ghost, entries: [] } : ghost));
    const marks = marksOf(windows, meanRate);
    this.charts.draw(windows, shown, marks);
    this.lanes.draw(windows, shown, marks);
    showNumbers(find("numbers"), task, windows, ghosts[0].entries);
    showScore(windows, task, ghosts);
    showClasses(find("classes"), task, windows, byClass);
    this.#choices(ghosts);
    const list = happened(windows, this.fields, meanRate).slice(0, EVENTS);
    find("happened").replaceChildren(...(list.length ? list.map(eventOf) : [nothing()]));
  }

  // A box for each ghost that is there.
  #choices(ghosts) {
    const place = find("compare");
    for (const { agent, name, entries } of ghosts) {
      let box = place.querySelector(`[name=${agent}]`);
      if (!box) {
        const label = document.createElement("label");
        box = Object.assign(document.createElement("input"), { type: "checkbox", name: agent, checked: true });
        const swatch = document.createElement("span");
        swatch.className = `swatch ${agent === "heuristic" ? "dotted" : "dashed"}`;
        swatch.style.borderColor = `var(--ghost-${agent === "heuristic" ? 2 : 1})`;
        label.append(box, swatch, name);
        place.append(label);
        box.addEventListener("change", () => {
          if (box.checked) this.hidden.delete(agent);
          else this.hidden.add(agent);
          this.draw();
        });
      }
      box.parentElement.hidden = !entries.length;
    }
  }
}

function describe(task) {
  return `${task.description} ${task.num_gpus} × ${task.hardware}, ${task.model}, `
    + `${task.max_steps} windows of ${task.window_s} s.`;
}

function nothing() {
  const item = document.createElement("li");
  item.className = "nothing soft";
  item.textContent = "Nothing yet: turned knobs, bursts and GPUs away are listed here.";
  return item;
}

function eventOf({ window, until = window, text, reason }) {
  const item = document.createElement("li");
  const when = document.createElement("span");
  when.className = "soft number";
  when.textContent = until === window ? window : `${window}–${until}`;
  const what = document.createElement("span");
  what.textContent = text;
  if (reason) {
    const said = document.createElement("q");
    said.textContent = reason;
    what.append(said);
  }
  item.append(when, what);
  return item;
}
