// The page: one session, played by hand or by an agent. The address remembers the session.

import * as server from "./api.js";
import { Charts } from "./charts.js";
import { Knobs } from "./knobs.js";
import { Live } from "./live.js";
import { showScore } from "./score.js";

const find = (id) => document.getElementById(id);
const knobs = new Knobs(find("knobs"));
const charts = new Charts(find("charts"));
const CHUNK = 10; // windows that an agent plays between two pictures

let known = [];
let fields = {}; // what the server says of each knob
let task = null;
let session = null;
let windows = []; // {observation, reward, action, done}; the first is the reset
let stopped = false;
let isLive = false; // whether steps go to a real engine
let watched = { name: null, episode: [] }; // what the live tab shows
const live = new Live(showLive, (text, failed) => {
  find("live_status").textContent = text;
  find("live_status").classList.toggle("error", Boolean(failed));
});

const BUSY = ["reset", "step", "run", "drive", "grade"];

// Runs what a button asks for; no other button works meanwhile.
async function during(what, work) {
  stopped = false;
  for (const id of BUSY) find(id).disabled = true;
  find("stop").disabled = false;
  say(what);
  try {
    await work();
    say(windows.at(-1)?.done ? "The episode is over: grade it, or reset." : "");
  } catch (error) {
    say(error.message, true);
  }
  for (const id of BUSY) find(id).disabled = false;
  find("stop").disabled = true;
}

function say(text, failed = false) {
  find("status").textContent = text;
  find("status").classList.toggle("error", failed);
}

function show() {
  charts.draw(windows);
  showScore(windows, isLive ? null : task.mean_reward_anchors);
}

function describe(one) {
  find("about").textContent = `${one.description} ${one.num_gpus} × ${one.hardware}, ${one.model}, `
    + `${one.max_steps} windows of ${one.window_s} s.`;
}

// The live tab shows an episode in the same charts; the one that is played is drawn again after it.
function showLive(name, episode) {
  watched = { name, episode };
  const other = known.find((one) => one.task_id === name);
  if (other) describe(other);
  else find("about").textContent = name ? `${name}, a task of your own.` : "";
  // Such a task has no limits that this server knows of.
  charts.build(other ?? { classes: [], knob_ranges: known[0].knob_ranges }, fields);
  charts.draw(episode);
  showScore(episode, null);
}

function turnTo(tab) {
  const toLive = tab === "live";
  find("play").hidden = toLive;
  find("live").hidden = !toLive;
  find("score").hidden = toLive; // measured rewards have no scale
  find("tab_play").setAttribute("aria-pressed", String(!toLive));
  find("tab_live").setAttribute("aria-pressed", String(toLive));
  if (toLive) {
    showLive(watched.name, watched.episode);
    if (isLive) live.follow();
    return;
  }
  live.stop();
  describe(task);
  charts.build(task, fields);
  show();
}

function choose(name) {
  task = known.find((one) => one.task_id === name);
  find("task").value = name;
  describe(task);
  knobs.build(task, fields);
  charts.build(task, fields);
}

function begin(id, first) {
  session = id;
  windows = [first];
  location.hash = id;
  find("download").href = server.logAddress(id);
  find("graded").textContent = "–";
  find("feedback").textContent = "";
}

function add(answer, action) {
  windows.push({ observation: answer.observation, reward: answer.reward, done: answer.done, action });
}

async function reset() {
  choose(find("task").value);
  const answer = await server.reset(task.task_id, Number(find("seed").value), find("split").value);
  begin(answer.session_id, { observation: answer.observation, reward: 0, done: false });
  show();
}

function needSession() {
  if (!session) throw new Error("no episode has been started; reset first");
}

async function run(count) {
  needSession();
  for (let left = count; left > 0 && !stopped && !windows.at(-1).done; left -= 1) {
    const action = knobs.action();
    add(await server.step(session, action), action);
    show();
  }
}

async function drive() {
  needSession();
  while (!stopped && !windows.at(-1).done) {
    for (const answer of await server.drive(session, find("agent").value, CHUNK)) {
      add(answer, answer.info.action);
    }
    show();
  }
}

async function grade() {
  needSession();
  const found = await server.grade(session);
  find("graded").textContent = found.score?.toFixed(3) ?? "–"; // a live episode has none
  find("feedback").textContent = found.feedback;
}

// Takes up the session that the address names.
async function resume(id) {
  const log = await server.log(id);
  choose(log.task_id);
  find("seed").value = log.seed;
  find("split").value = log.split;
  const [first, ...rest] = log.episode_log;
  begin(id, { ...first, reward: 0, done: false });
  windows.push(...rest);
  show();
}

async function start() {
  const { tasks, action_schema: schema } = await server.tasks();
  isLive = (await server.runtime()).mode === "live";
  known = tasks;
  fields = schema.properties;
  find("task").replaceChildren(...known.map((one) => new Option(one.title, one.task_id)));
  const agents = (await server.agents()).filter((name) =>
    ["heuristic", "best_static", "ppo", "default", "random"].includes(name));
  find("agent").replaceChildren(...agents.map((name) => new Option(name.replace("_", " "), name)));
  find("agent").value = "heuristic";
  const id = location.hash.slice(1);
  if (id) {
    try {
      return await resume(id);
    } catch {
      // The session is gone: begin another.
    }
  }
  choose(known[0].task_id);
  if (!isLive) return reset();
  // A reset is played on the engine: not before somebody asks for it.
  turnTo("live");
}

find("tab_play").addEventListener("click", () => turnTo("play"));
find("tab_live").addEventListener("click", () => turnTo("live"));
find("episode").addEventListener("submit", (event) => {
  event.preventDefault();
  during("Starting an episode", reset);
});
find("step").addEventListener("click", () => during("Stepping", () => run(1)));
find("run").addEventListener("click", () => during("Running", () => run(Number(find("windows").value))));
find("drive").addEventListener("click", () => during("The agent drives", drive));
find("grade").addEventListener("click", () => during("Grading", grade));
find("stop").addEventListener("click", () => (stopped = true));
during("Loading", start);
