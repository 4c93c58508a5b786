// The sessions that this browser began, newest first: to open again, or to lay over the charts of another.

import * as server from "./api.js";

const find = (id) => document.getElementById(id);
const KEPT = 30;
const STORED = "jaxserve sessions";

// A run: { id, task, title, seed, split, begun, windows, over, mean, score, drivers }.
export class Runs {
  // `onOverlay` is called when another choice of runs is laid over; `say` with what is wrong.
  constructor(onOverlay, say) {
    Object.assign(this, { onOverlay, say, runs: read() ?? [], now: null, laid: new Map() });
  }

  // What is known of the session that is shown.
  note(run) {
    this.runs = read() ?? this.runs; // another tab may have added some
    const isNew = this.now?.id !== run.id;
    const sameTraffic = isTraffic(this.now, run);
    this.now = run;
    const before = this.runs.findIndex((one) => one.id === run.id);
    if (before >= 0) this.runs[before] = { ...run, begun: this.runs[before].begun };
    else this.runs.unshift(run);
    this.runs.length = Math.min(this.runs.length, KEPT);
    write(this.runs);
    this.laid.delete(run.id);
    if (isNew && !sameTraffic) this.laid.clear();
    this.#draw();
    if (isNew) this.onOverlay(this.overlays);
  }

  // A session beside the one that is shown.
  add(run) {
    this.runs.unshift(run);
    write(this.runs);
  }

  // Of the same traffic, as the board draws them.
  get overlays() {
    return [...this.laid].map(([key, windows]) => ({ key, name: nameOf(this.runs.find((run) => run.id === key)), windows }));
  }

  // Lays a run over the charts.
  async lay(id) {
    const { episode_log: windows } = await server.log(id);
    this.laid.set(id, windows);
    this.#draw();
    this.onOverlay(this.overlays);
  }

  async #toggle(id, isLaid) {
    try {
      if (isLaid) return await this.lay(id);
      this.laid.delete(id);
      this.onOverlay(this.overlays);
    } catch (error) {
      if (error.status === 404) {
        this.runs = this.runs.filter((run) => run.id !== id);
        write(this.runs);
      }
      this.say(error.message, true);
    }
    this.#draw();
  }

  #draw() {
    find("runs").replaceChildren(...this.runs.map((run) => this.#row(run)));
  }

  #row(run) {
    const row = document.createElement("li");
    const isNow = run.id === this.now.id;
    const box = Object.assign(document.createElement("input"), {
      type: "checkbox", checked: this.laid.has(run.id), disabled: isNow || !isTraffic(run, this.now),
      title: isNow ? "It is shown." : isTraffic(run, this.now) ? "" : "It has other traffic.",
    });
    box.setAttribute("aria-label", `lay ${run.title}, seed ${run.seed}, ${nameOf(run)} over the charts`);
    box.addEventListener("change", () => this.#toggle(run.id, box.checked));
    const link = Object.assign(document.createElement("a"), { href: `#${run.id}` });
    link.textContent = `${run.title}, seed ${run.seed}${run.split === "test" ? "" : `, ${run.split}`}`;
    if (isNow) link.setAttribute("aria-current", "true");
    const what = document.createElement("span");
    what.className = "soft number";
    const score = run.score === null ? "" : `, score ${run.score.toFixed(3)}`;
    what.textContent = `${nameOf(run)}${score}, ${run.windows} windows, ${new Date(run.begun).toLocaleString()}`;
    row.append(box, link, what);
    return row;
  }
}

const isTraffic = (one, other) =>
  Boolean(one && other) && ["task", "seed", "split"].every((field) => one[field] === other[field]);

// Who played a run.
const nameOf = (run) => run?.drivers.join(", ") || "not played";

function read() {
  try {
    const runs = JSON.parse(localStorage.getItem(STORED));
    return Array.isArray(runs) ? runs.filter((run) => run?.id && Array.isArray(run.drivers)) : null;
  } catch {
    return null; // a browser that keeps nothing
  }
}

function write(runs) {
  try {
    localStorage.setItem(STORED, JSON.stringify(runs));
  } catch {
    // The list lasts as long as the page.
  }
}
