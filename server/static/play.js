// One session: an episode that a person or an agent plays through the server.

import * as server from "./api.js";

export const LANGUAGE_MODEL = "language_model";
const CHUNK = 10; // windows that an agent plays between two pictures
const MOST = 200; // windows of one request
const BETWEEN_MS = 1500; // two looks at the classes, while windows come
const CONFLICT = 409;
const SHARE = 5; // at least so many times as long as a look takes is between two

export class Play {
  // `onChange` is called when there is something new to show; `taskOf` gives what is known of a
  // task by its name.
  constructor(onChange, taskOf) {
    this.onChange = onChange;
    this.taskOf = taskOf;
    this.stopped = false;
    this.session = null;
    this.echo = null;
    this.lookAgain = 0; // not before
    this.looking = false;
    this.episode = { task: null, windows: [], ghosts: {}, runs: [] };
  }

  get windows() {
    return this.episode.windows;
  }

  get over() {
    return Boolean(this.windows.at(-1)?.done);
  }

  get played() {
    return Math.max(this.windows.length - 1, 0);
  }

  async reset(task, seed, split) {
    // An engine plays one session: an episode under way is begun anew by its id only.
    const answer = await server.reset(task.task_id, seed, split, this.isLive ? this.session : null);
    const { seed: drawn, split: own, episode_number: id } = answer.info;
    const chosen = { task: task.task_id, seed: drawn, split: own };
    this.#begin(answer.session_id, id, task, chosen, [{ observation: answer.observation, reward: 0, done: false }]);
    return drawn;
  }

  // Takes up a session.
  async resume(id) {
    const log = await server.log(id);
    const [first, ...rest] = log.episode_log;
    const windows = [{ ...first, reward: 0, done: false }, ...rest];
    const chosen = { task: log.task_id, seed: log.seed, split: log.split };
    this.#begin(id, log.episode_number, this.taskOf(log.task_id), chosen, windows);
  }

  // Whether others have played since; then the session is taken up again if `mayChange()`. Returns what is to be said.
  async check(mayChange) {
    const { session } = this;
    const { info } = await server.observation(session);
    const isAsShown = info.step === this.played && info.episode_number === this.episode.id;
    if (isAsShown || session !== this.session || !mayChange()) return "";
    await this.resume(session);
    this.look();
    return "Others play this session: the page shows the episode as it is now.";
  }

  // `action` gives the knobs of the next window. Returns how many were played.
  async run(count, action) {
    return this.#playing(async (left) => {
      for (let done = 0; done < count && left(); done += 1) {
        const chosen = action();
        this.#add(await server.step(this.session, chosen, this.played), chosen);
      }
    });
  }

  async drive(agent, onAction) {
    return this.#playing(async (left) => {
      while (left()) {
        const { results, decision } = await driven(this.session, agent, CHUNK);
        results.forEach((answer, index) =>
          this.#add(answer, answer.info.action, agent, index === 0 ? decision?.reason : undefined));
        onAction(this.windows.at(-1).action, decision);
      }
    });
  }

  // The same traffic from its beginning, played by an agent in a session of its own.
  async elsewhere(agent) {
    const { task, seed, split } = this.chosen;
    const begun = await server.reset(task, seed, split, null);
    const windows = [begun];
    while (!windows.at(-1).done && !this.stopped) {
      windows.push(...(await driven(begun.session_id, agent, MOST)).results);
    }
    return { id: begun.session_id, windows };
  }

  // The windows that `work` plays; it goes on while `left()`.
  async #playing(work) {
    this.#needSession();
    const begun = this.played;
    try {
      await work(() => !this.stopped && !this.over);
    } catch (error) {
      if (error.status !== CONFLICT) throw error;
      await this.resume(this.session);
      throw new Error(`${error.message}. The page shows the episode as it is now.`);
    } finally {
      this.look();
    }
    return this.played - begun;
  }

  async grade() {
    this.#needSession();
    return server.grade(this.session);
  }

  // What each traffic class got; asked for now and then, since the server computes the episode again.
  // Nobody waits for it, and without it the episode is as good.
  async look() {
    if (!this.played || this.isLive || this.looking) return;
    this.looking = true;
    const [session, seen, begun] = [this.session, this.played, performance.now()];
    try {
      this.#note(session, (await server.classes(session)).classes);
    } catch {
      // The next look may see more.
    }
    this.looking = false;
    const pause = Math.max(BETWEEN_MS, SHARE * (performance.now() - begun));
    this.lookAgain = performance.now() + pause;
    // Windows came meanwhile, and perhaps no more will.
    if (this.played !== seen || this.session !== session) setTimeout(() => this.look(), pause);
  }

  #note(session, classes) {
    if (session !== this.session) return;
    this.windows.slice(1).forEach((window, index) => {
      if (index >= (classes[0]?.arrivals.length ?? 0)) return;
      window.classes = classes.map((one) => Object.fromEntries(
        ["arrivals", "waiting", "ended", "good", "first_tokens", "ttft_met", "tpot_ms"]
          .map((field) => [field, one[field][index]])));
    });
    this.onChange();
  }

  #begin(session, id, task, chosen, windows) {
    this.session = session;
    this.chosen = chosen;
    const { isLive: areMeasured } = this;
    const shown = areMeasured ? { ...task, mean_reward_anchors: null } : task; // of simulated rewards
    const runs = this.episode.runs.filter((run) => run.key !== session);
    this.episode = { id, task: shown, windows, ghosts: {}, runs, meanRate: null, byClass: !areMeasured, areMeasured };
    this.onChange(true);
    if (!areMeasured) this.#compare().catch(() => {}); // without it the episode is as good
  }

  // The same traffic in the hands of others: computed once, drawn behind.
  async #compare() {
    const { session, episode } = this;
    const found = await server.yardsticks(session);
    if (session !== this.session) return;
    episode.meanRate = found.mean_arrival_rate_rps;
    for (const [agent, columns] of Object.entries(found.agents)) {
      const row = (of, index) => Object.fromEntries(Object.entries(of).map(([name, column]) => [name, column[index]]));
      episode.ghosts[agent] = columns.reward.map((reward, index) => ({
        reward,
        action: columns.action[index - 1],
        observation: row(columns.observation, index),
        figures: row(columns.figures, index),
      }));
    }
    this.onChange();
  }

  #add(answer, action, driver, reason) {
    const window = this.played + 1;
    const { step, figures } = answer.info;
    if (step !== window) {
      const said = `others play this episode: window ${step} came in place of ${window}`;
      throw Object.assign(new Error(said), { status: CONFLICT });
    }
    const { observation, reward, done } = answer;
    this.echo = answer.info.live?.knobs; // of an engine: what became of each knob
    this.windows.push({ observation, figures, reward, done, action, driver, reason });
    this.onChange();
    if (performance.now() > this.lookAgain) this.look();
  }

  #needSession() {
    if (!this.session) throw new Error("no episode has been started; reset first");
  }
}

// The next windows of a session, chosen by an agent of the server.
const driven = (session, agent, windows) =>
  (agent === LANGUAGE_MODEL ? server.operate(session) : server.drive(session, agent, windows));
