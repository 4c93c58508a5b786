// Everything that shows an episode, whoever plays it.

import { Charts } from "./charts.js";
import { showClasses } from "./classes.js";
import { happened, marksOf, turned } from "./marks.js";
import { showNumbers } from "./numbers.js";
import { lanes, panels } from "./panels.js";
import { showScore } from "./score.js";

const find = (id) => document.getElementById(id);
const EVENTS = 100; // that are listed
const GHOSTS = [
  { key: "best_static", name: "best static", colour: "ghost-1", dash: [5, 3] },
  { key: "heuristic", name: "heuristic", colour: "ghost-2", dash: [2, 2] },
];
const RUN_COLOURS = 4;

// An episode: { task, name, windows, ghosts, runs, meanRate, byClass, areMeasured }. `task` is what the server says
// of it, or null; window 0 is the reset; `ghosts` are windows by the names of agents, `runs` other sessions of the
// same traffic: { key, name, windows }; `byClass`, whether it is known what each class gets; `areMeasured`, whether a
// real engine played.
export class Board {
  constructor() {
    this.charts = new Charts(find("charts"));
    this.lanes = new Charts(find("lanes"), { height: 56 });
    this.hidden = new Set();
    this.waiting = false;
    this.zoom = null;
    for (const charts of [this.charts, this.lanes]) {
      charts.onCursor = (windows) => (find("cursor").textContent = windows ? this.#when(windows) : "the last window");
      charts.onRange = (range) => this.#show(range);
      charts.tick = (window) => this.#clock(window) ?? String(window);
    }
    find("range").addEventListener("change", () => this.#show(null, find("range").value));
  }

  // Empty, for a task. `known` is any task: all have the same knobs.
  begin(episode, fields, known) {
    Object.assign(this, { episode, fields, known, built: null });
    const { task } = episode;
    find("about").textContent = task ? describe(task) : episode.name ? `${episode.name}, a task of your own.` : "";
    this.#show(null, "all");
  }

  // The count at once, the picture soon: many windows may have come before the next one.
  draw() {
    showScore(this.episode.windows, this.episode.task, []);
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.#draw();
    });
  }

  // A range that was dragged over, or as many of the last windows as the list says.
  #show(zoom, last = zoom ? "zoom" : "all") {
    this.zoom = zoom;
    find("zoomed").hidden = !zoom;
    find("range").value = last;
    this.draw();
  }

  #range() {
    const { task, windows } = this.episode;
    if (this.zoom) return this.zoom;
    const last = Math.max(windows.length - 1, 1);
    const count = Number(find("range").value);
    return count ? [Math.max(last - count, 0), last] : [0, Math.max(task?.max_steps ?? 1, last)];
  }

  #draw() {
    const { task, windows, meanRate, byClass, areMeasured, ghosts, runs } = this.episode;
    const known = [
      ...GHOSTS.map((ghost) => ({ ...ghost, windows: ghosts[ghost.key] ?? [] })),
      ...runs.map((run, place) => ({ ...run, colour: `run-${1 + (place % RUN_COLOURS)}`, dash: [] })),
    ].filter((overlay) => overlay.windows.length);
    this.#choices(known);
    const overlays = known.filter((overlay) => !this.hidden.has(overlay.key));
    this.#build(overlays);
    const turns = turned(windows);
    const marks = marksOf(windows, meanRate, turns);
    const others = overlays.map((overlay) => overlay.windows);
    for (const charts of [this.charts, this.lanes]) charts.draw(windows, others, marks, this.#range());
    showNumbers(find("numbers"), task, windows, windows.length - 1, ghosts.best_static ?? [], areMeasured);
    showScore(windows, task, known);
    showClasses(find("classes"), task, windows, byClass);
    const list = happened(windows, this.fields, turns, marks).slice(0, EVENTS);
    find("happened").replaceChildren(...(list.length ? list.map(eventOf) : [nothing()]));
  }

  // Charts have a line for each overlay: new ones where others are shown.
  #build(overlays) {
    const { task, name, windows, byClass } = this.episode;
    const isRewarded = windows[1]?.reward !== null; // or it will be
    const wanted = [isRewarded, name, ...overlays.map((overlay) => overlay.key + overlay.name)].join();
    if (this.built === wanted) return;
    this.built = wanted;
    const styles = overlays.map(({ name: label, colour, dash }) => ({ name: label, colour, dash }));
    this.charts.build(panels(task ?? {}, { byClass, isRewarded }), styles);
    this.lanes.build(lanes(task ?? { knob_ranges: this.known.knob_ranges }, this.fields), styles);
  }

  // A box for each overlay; boxes that stay keep the focus.
  #choices(known) {
    const offered = known.map(({ key, name }) => `${key} ${name}`).join();
    if (offered === this.offered) return;
    this.offered = offered;
    find("compare").replaceChildren(...known.map(({ key, name, colour, dash }) => {
      const label = document.createElement("label");
      const box = Object.assign(document.createElement("input"), { type: "checkbox", name: key, checked: !this.hidden.has(key) });
      const swatch = document.createElement("span");
      swatch.className = `swatch ${dash.length ? (dash[0] > 2 ? "dashed" : "dotted") : ""}`;
      swatch.style.borderColor = `var(--${colour})`;
      label.append(box, swatch, name);
      box.addEventListener("change", () => {
        if (box.checked) this.hidden.delete(key);
        else this.hidden.add(key);
        this.draw();
      });
      return label;
    }));
  }

  // The time of day of a window, where it is known.
  #clock(window) {
    const time = this.episode.windows[Math.max(Math.round(window), 1)]?.time;
    return time && new Date(1000 * time).toLocaleTimeString([], { hourCycle: "h23" });
  }

  // Windows with their time of day, or their time since the reset.
  #when([first, last]) {
    const { task } = this.episode;
    const since = (window) => new Date(1000 * window * (task?.window_s ?? 1)).toISOString().slice(11, 19);
    const at = (window) => this.#clock(window) ?? `${since(window)} after the reset`;
    return first === last ? `window ${last}, ${at(last)}` : `windows ${first} to ${last}, means; until ${at(last)}`;
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
