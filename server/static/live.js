// Live episodes: a log that was opened or is followed, or the session that plays on this server's engine.

import * as server from "./api.js";
import { ControlView, moreLines } from "./controller.js";

const find = (id) => document.getElementById(id);
const BETWEEN_MS = 1000;
const BEGINNING = { observation: null, reward: null, done: false };

// The task and the windows of a log: what GET /episode_log gives, or lines of `jaxserve operate`.
function readLog(text) {
  let data = null;
  try {
    data = JSON.parse(text);
  } catch {
    // Lines.
  }
  if (Array.isArray(data?.episode_log) && data.episode_log.length && data.episode_log.every((one) => one?.observation)) {
    return { task: data.task_id, windows: [...data.episode_log], lines: [] };
  }
  const lines = text.split("\n").filter(Boolean).flatMap((line, index, all) => {
    try {
      return [JSON.parse(line)];
    } catch {
      if (index < all.length - 1) throw new Error("the file is no log of an episode");
      return []; // torn
    }
  });
  return ofLines(lines);
}

// The task and the windows of the lines of `jaxserve operate`.
function ofLines(lines) {
  const windows = lines.filter((line) => line?.kind === "window" && line.observation);
  if (lines[0]?.kind !== "header" || !windows.length) throw new Error("the file is no log of an episode");
  // Its rewards are computed by `jaxserve live-log`.
  const driver = lines[0].agent ?? "controller";
  const shown = windows.map(({ observation, metrics, action, reason, unix_s: time }, index) =>
    ({ observation, action, driver, reason: reason === windows[index - 1]?.reason ? null : reason, time, reward: null,
      figures: metrics && figuresOf(metrics) }));
  return { task: lines[0].task, windows: [BEGINNING, ...shown], lines };
}

// The requests that a window's figures rest on, of its metrics by class.
function figuresOf(metrics) {
  const total = (...names) => names.flatMap((name) => metrics[name] ?? []).reduce((sum, count) => sum + count, 0);
  return {
    first_tokens: total("first_tokens"), ttft_met: total("ttft_met"), good: total("good"),
    decoding: total("completed", "running"), ended: total("completed", "rejected", "lost"),
  };
}

export class Live {
  // `draw(task, windows)` shows an episode, `say(text, failed)` a sentence.
  constructor(draw, say) {
    this.draw = draw;
    this.say = say;
    this.following = null; // what tells one run from another
    this.control = new ControlView();
    find("log").addEventListener("change", () => this.#open());
    find("follow").addEventListener("click", () => this.follow());
    find("follow_controller").addEventListener("submit", (event) => {
      event.preventDefault();
      this.followController(find("controller_address").value.trim());
    });
  }

  // Shows the session on the engine again and again, until `stop`.
  follow() {
    let last = "";
    this.control.show([]);
    return this.#again(async (goesOn) => {
      const { live } = await server.runtime();
      const id = live?.watch_id;
      const log = id ? await server.log(id) : null;
      if (!goesOn()) return;
      const state = log ? `${id} ${log.episode_id} ${log.episode_log.length}` : "";
      if (log && state !== last) this.draw(log.task_id, log.episode_log);
      last = state;
      this.say(spending(live));
    });
  }

  // Shows the log of `jaxserve operate` at an address again and again, until `stop`.
  followController(address) {
    let [lines, known] = [[], 0];
    return this.#again(async (goesOn) => {
      const had = known;
      for (let more = { size: 1 }; more?.size; ) {
        more = await moreLines(address, known);
        if (!goesOn()) return;
        if (more === null) [lines, known] = [[], 0];
        else if (more.size) [lines, known] = [[...lines, ...more.lines], known + more.size];
      }
      const last = lines.findLast((line) => line.kind === "window");
      if (last && known !== had) this.#show(ofLines(lines));
      this.say(last ? `${address}: window ${last.window}, ${age(last)}` : `${address}: no window yet`);
    });
  }

  stop() {
    this.following = null;
  }

  async #again(look) {
    const run = (this.following = {});
    const goesOn = () => this.following === run;
    while (goesOn()) {
      try {
        await look(goesOn);
      } catch (error) {
        if (goesOn()) this.say(error.message, true);
      }
      await new Promise((resume) => setTimeout(resume, BETWEEN_MS));
    }
  }

  #show({ task, windows, lines }) {
    this.draw(task, windows);
    this.control.show(lines);
  }

  async #open() {
    this.stop();
    const [file] = find("log").files;
    if (!file) return;
    try {
      const episode = readLog(await file.text());
      this.#show(episode);
      this.say(`${file.name}: ${episode.windows.length - 1} windows of ${episode.task}`);
    } catch (error) {
      this.say(error.message, true);
    }
  }
}

function age({ unix_s: endedAt }) {
  return `${Math.max(Math.round(Date.now() / 1000 - endedAt), 0)} s ago`;
}

function spending(live) {
  if (!live) return "This server simulates: open a log.";
  const playing = live.watch_id ? `${live.requests_in_flight} requests in flight` : "no session plays";
  return `${playing}; ${live.tokens_spent.toLocaleString()} of ${live.token_limit.toLocaleString()} tokens spent`;
}
