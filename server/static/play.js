// One session: an episode that a person or an agent plays through the server.

import * as server from "./api.js";

export const LANGUAGE_MODEL = "language_model";
const CHUNK = 10; // windows that an agent plays between two pictures
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
    this.lookAgain = 0; // not before
    this.looking = false;
    this.episode = { task: null, windows: [], ghosts: {} };
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
    const chosen = { task: task.task_id, seed: answer.info.seed, split: answer.info.split };
    this.#begin(answer.session_id, task, chosen, [{ observation: answer.observation, reward: 0, done: false }]);
    return answer.info.seed;
  }

  // Takes up a session.
  async resume(id) {
    const log = await server.log(id);
    const [first, ...rest] = log.episode_log;
    const windows = [{ ...first, reward: 0, done: false }, ...rest];
    const chosen = { task: log.task_id, seed: log.seed, split: log.split };
    this.#begin(id, this.taskOf(log.task_id), chosen, windows);
  }

  // `action` gives the knobs of the next window. Returns how many were played.
  async run(count, action) {
    return this.#playing(async (left) => {
      for (let done = 0; done < count && left(); done += 1) {
        const chosen = action();
        this.#add(await server.step(this.session, chosen, this.played), chosen, "you");
      }
    });
  }

  async drive(agent, onAction) {
    return this.#playing(async (left) => {
      while (left()) {
        const { results, decision } = agent === LANGUAGE_MODEL
          ? await server.operate(this.session)
          : await server.drive(this.session, agent, CHUNK);
        results.forEach((answer, index) =>
          this.#add(answer, answer.info.action, agent.replace("_", " "), index === 0 ? decision?.reason : undefined));
        onAction(this.windows.at(-1).action, decision);
      }
    });
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
        ["arrivals", "waiting", "ended", "good", "first_tokens", "ttft_met", "tpot_ms", "itl_p99_ms"]
          .map((field) => [field, one[field][index]])));
    });
    this.onChange();
  }

  #begin(session, task, chosen, windows) {
    this.session = session;
    this.chosen = chosen;
    const shown = this.isLive ? { ...task, mean_reward_anchors: null } : task; // of simulated rewards
    this.episode = { task: shown, windows, ghosts: {}, meanRate: null, byClass: !this.isLive };
    this.onChange(true);
    if (!this.isLive) this.#compare().catch(() => {}); // without it the episode is as good
  }

  // The same traffic in the hands of others: computed once, drawn behind.
  async #compare() {
    const { session, episode } = this;
    const found = await server.yardsticks(session);
    if (session !== this.session) return;
    episode.meanRate = found.mean_arrival_rate_rps;
    for (const [agent, columns] of Object.entries(found.agents)) {
      const names = Object.keys(columns.observation);
      episode.ghosts[agent] = columns.reward.map((reward, index) => ({
        reward,
        action: columns.action[index - 1],
        observation: Object.fromEntries(names.map((name) => [name, columns.observation[name][index]])),
      }));
    }
    this.onChange();
  }

  #add(answer, action, driver, reason) {
    const window = this.played + 1;
    if (answer.info.step !== window) {
      const said = `others play this episode: window ${answer.info.step} came in place of ${window}`;
      throw Object.assign(new Error(said), { status: CONFLICT });
    }
    this.windows.push({ observation: answer.observation, reward: answer.reward, done: answer.done, action, driver, reason });
    this.onChange();
    if (performance.now() > this.lookAgain) this.look();
  }

  #needSession() {
    if (!this.session) throw new Error("no episode has been started; reset first");
  }
}
