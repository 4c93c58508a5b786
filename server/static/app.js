// The page: one session, played by hand or by an agent. The address remembers the session.

import * as server from "./api.js";
import { Board } from "./board.js";
import { Choice } from "./choice.js";
import { Knobs } from "./knobs.js";
import { Live } from "./live.js";
import { LANGUAGE_MODEL, Play } from "./play.js";

const find = (id) => document.getElementById(id);
const BUSY = ["reset", "step", "run", "drive", "grade"];
const AGENTS = {
  heuristic: "Rules of thumb of an operator who has load tests of the server.",
  best_static: "The best setting that never changes, found by search.",
  ppo: "A policy trained by reinforcement learning (PPO).",
  default: "Every knob at its default.",
  random: "Random knobs: the 0 of the score.",
  [LANGUAGE_MODEL]: "A language model reads the numbers every few windows and says why it turns a knob.",
};

let known = [];
let mostWindows = 1; // of an episode here
let fields = {}; // what the server says of each knob
let shown = null; // the task whose charts are built
let watched = { task: null, name: "", windows: [], ghosts: {}, byClass: false }; // what the live tab shows
const taskOf = (name) => known.find((one) => one.task_id === name);
const board = new Board();
const knobs = new Knobs(find("knobs"));
const play = new Play((isNew) => (isNew ? begun() : tab() === "play" && board.draw()), taskOf);
const choice = new Choice(() => during("Starting an episode", chosen));
const live = new Live(showLive, (text, failed) => {
  find("live_status").textContent = text;
  find("live_status").classList.toggle("error", Boolean(failed));
});

const tab = () => (find("play").hidden ? "live" : "play");

// Runs what a button asks for; no other button works meanwhile. `work` returns what is to be said.
async function during(what, work) {
  play.stopped = false;
  for (const id of BUSY) find(id).disabled = true;
  find("stop").disabled = false;
  say(`${what} …`);
  try {
    const text = (await work()) ?? "";
    say(play.over ? `${text} The episode is over: grade it, or reset.`.trim() : text);
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

// An episode has begun or was taken up.
function begun() {
  const { task, windows } = play.episode;
  choice.set(play.chosen);
  location.hash = play.session;
  find("download").href = server.logAddress(play.session);
  ungraded();
  knobs.build(task, fields);
  knobs.follow(windows.at(-1).action);
  if (tab() === "play") board.begin(play.episode, fields, known[0]);
}

function ungraded() {
  find("graded").textContent = "–";
  find("feedback").textContent = "";
}

async function reset() {
  const { task, seed, split } = choice.get();
  const drawn = await play.reset(taskOf(task), seed, split);
  return seed === null ? `No seed was given; ${drawn} was drawn.` : "";
}

// Another task, seed or split: an episode of which nothing was played gives way at once.
async function chosen() {
  const wanted = choice.get();
  const now = play.chosen;
  if (now && wanted.task === now.task && wanted.seed === now.seed && wanted.split === now.split) {
    choice.pending("");
  } else if (play.played || play.isLive) {
    const seed = wanted.seed === null ? "a new seed" : `seed ${wanted.seed}`;
    choice.pending(`${taskOf(wanted.task).title}, ${seed}, ${wanted.split} begins with Reset. `
      + (now ? `Until then ${taskOf(now.task).title}, seed ${now.seed}, goes on at window ${play.played}.` : ""));
  } else {
    return reset();
  }
  return "";
}

async function run() {
  const text = find("windows").value.trim();
  const count = Number(text);
  if (!text || !Number.isInteger(count) || count < 1 || count > mostWindows) {
    throw new Error(`windows to run is ${text || "empty"}; it must be a whole number from 1 to ${mostWindows}`);
  }
  return step(count);
}

async function step(count) {
  const over = play.over;
  ungraded();
  const done = await play.run(count, () => knobs.action());
  if (over) return "No window was played.";
  if (done === 1 && count === 1) return "";
  return done < count ? `${done} of ${count} windows were played.` : `${done} windows were played.`;
}

async function drive() {
  const agent = find("agent").value;
  ungraded();
  const done = await play.drive(agent, (action, decision) => {
    knobs.follow(action);
    if (decision) say(`${decision.model}: ${decision.reason ?? "no reason was given"}`);
  });
  if (!done) return "No window was played.";
  return `${find("agent").selectedOptions[0].textContent} played ${done} windows; the knobs are where it left them.`;
}

function measured(found) {
  const inside = found.slo_attainment === null ? "" : `, ${(100 * found.slo_attainment).toFixed(1)} % of requests good`;
  return `: mean reward ${found.mean_reward.toFixed(4)}, ${found.goodput_rps.toFixed(2)} good requests/s${inside}`;
}

async function grade() {
  const found = await play.grade();
  find("graded").textContent = found.score?.toFixed(3) ?? "–"; // a live episode has none
  find("feedback").textContent = found.feedback + (play.isLive ? measured(found) : "");
  return "";
}

// The live tab shows an episode on the same board; the one that is played is drawn again after it.
function showLive(name, windows) {
  if (!known.length) return; // nothing has been loaded yet
  emptyIf(!windows.length);
  const what = `${name} ${windows[1]?.reward === null}`; // there is no chart of rewards that nobody knows
  const isSame = shown === what;
  watched = { ...watched, task: taskOf(name) ? { ...taskOf(name), mean_reward_anchors: null } : null, name, windows };
  if (isSame) {
    board.episode = watched;
    board.draw();
    return;
  }
  shown = what;
  board.begin(watched, fields, known[0]);
}

// In place of charts without lines there is a sentence.
function emptyIf(isEmpty) {
  find("nothing").hidden = !isEmpty;
  find("board").hidden = isEmpty;
}

// Measured rewards have no scale.
function hideScores(areMeasured) {
  for (const one of document.querySelectorAll(".scored")) one.hidden = areMeasured || play.isLive;
}

function turnTo(which) {
  const toLive = which === "live";
  find("play").hidden = toLive;
  find("live").hidden = !toLive;
  find("first_steps").hidden = toLive;
  hideScores(toLive);
  find("tab_play").setAttribute("aria-pressed", String(!toLive));
  find("tab_live").setAttribute("aria-pressed", String(toLive));
  shown = null;
  if (toLive) {
    showLive(watched.name, watched.windows);
    if (play.isLive) live.follow();
    return;
  }
  live.stop();
  emptyIf(false);
  if (play.session) board.begin(play.episode, fields, known[0]);
}

async function start() {
  const { tasks, action_schema: schema } = await server.tasks();
  const runtime = await server.runtime();
  play.isLive = runtime.mode === "live";
  hideScores(play.isLive);
  mostWindows = runtime.max_windows;
  find("windows").max = mostWindows;
  known = tasks;
  fields = schema.properties;
  find("task").replaceChildren(...known.map((one) => new Option(one.title, one.task_id)));
  const offered = (await server.agents()).filter((name) => name in AGENTS);
  if (runtime.language_model) offered.push(LANGUAGE_MODEL);
  find("agent").replaceChildren(...offered.map((name) => new Option(name.replace("_", " "), name)));
  find("agent").value = "heuristic";
  explainAgent();
  const id = location.hash.slice(1);
  let gone = "";
  if (id) {
    try {
      await play.resume(id);
      play.look();
      return "";
    } catch (error) {
      if (error.status !== 404) throw error; // the session may answer later: the address stays
      gone = `${error.message}. `;
    }
  }
  if (!play.isLive) return `${gone}${await reset()}`;
  // A reset is played on the engine: not before somebody asks for it.
  turnTo("live");
  return gone;
}

function explainAgent() {
  find("agent_hint").textContent = AGENTS[find("agent").value] ?? "";
}

// Who has closed the first steps does not see them again.
function rememberFirstSteps() {
  const box = find("first_steps");
  try {
    box.open = localStorage.getItem("first_steps") !== "closed";
    box.addEventListener("toggle", () => localStorage.setItem("first_steps", box.open ? "open" : "closed"));
  } catch {
    // A browser that keeps nothing: they stay open.
  }
}

rememberFirstSteps();
find("agent").addEventListener("change", explainAgent);
find("tab_play").addEventListener("click", () => turnTo("play"));
find("tab_live").addEventListener("click", () => turnTo("live"));
find("episode").noValidate = true; // the page says itself what is wrong
find("episode").addEventListener("submit", (event) => {
  event.preventDefault();
  during("Starting an episode", reset);
});
find("keep").addEventListener("click", () => choice.set(play.chosen));
find("step").addEventListener("click", () => during("Stepping", () => step(1)));
find("run").addEventListener("click", () => during("Running", run));
find("drive").addEventListener("click", () => during("The agent drives", drive));
find("grade").addEventListener("click", () => during("Grading", grade));
find("stop").addEventListener("click", () => (play.stopped = true));
during("Loading", start);
