// The page: one session, played by hand or by an agent. The address names the session that is shown.

import * as server from "./api.js";
import { Board } from "./board.js";
import { Choice } from "./choice.js";
import { learn } from "./judging.js";
import { Knobs } from "./knobs.js";
import { Live } from "./live.js";
import { LANGUAGE_MODEL, Play } from "./play.js";
import { Runs } from "./runs.js";
import { meanReward, scoreOf } from "./score.js";

const find = (id) => document.getElementById(id);
const BUSY = ["reset", "step", "run", "drive", "overlay", "grade"];
const BETWEEN_MS = 10_000; // two looks at what others play
const AGENTS = {
  heuristic: "Rules of thumb of an operator who has load tests of the server.",
  best_static: "The best setting that never changes, found by search.",
  ppo: "A policy trained by reinforcement learning (PPO).",
  default: "Every knob at its default.",
  random: "Random knobs: the 0 of the score.",
  [LANGUAGE_MODEL]: "A language model reads the numbers every few windows and says why it turns a knob.",
};

let known = [];
let runtime = {}; // what the server says of itself
let fields = {}; // what the server says of each knob
let busy = false;
let knobsOf = null; // the episode whose knobs are set
let shown = null; // the task whose charts are built
let watched = { // what the live tab shows
  task: null, name: "", windows: [], ghosts: {}, runs: [], byClass: false, areMeasured: true,
};
const taskOf = (name) => known.find((one) => one.task_id === name);
const board = new Board();
const knobs = new Knobs(find("knobs"));
const play = new Play((isNew) => (isNew ? begun() : tab() === "play" && board.draw()), taskOf);
const choice = new Choice(() => during("Starting an episode", chosen));
const runs = new Runs((overlays) => {
  play.episode.runs = overlays;
  if (tab() === "play") board.draw();
}, say);
const live = new Live(showLive, (text, failed) => {
  find("live_status").textContent = text;
  find("live_status").classList.toggle("error", Boolean(failed));
});

const tab = () => (find("play").hidden ? "live" : "play");
const address = () => location.hash.slice(1);

// Runs what a button asks for; no other button works meanwhile. `work` returns what is to be said.
async function during(what, work) {
  busy = true;
  play.stopped = false;
  for (const id of BUSY) find(id).disabled = true;
  find("stop").disabled = false;
  say(`${what} …`);
  try {
    const text = (await work()) ?? "";
    say(play.over ? `${text} The episode is over: grade it, or reset.`.trim() : text);
    asOf();
  } catch (error) {
    say(error.message, true);
  }
  for (const id of BUSY) find(id).disabled = false;
  find("stop").disabled = true;
  find("step").classList.toggle("main", !play.over);
  find("grade").classList.toggle("main", play.over);
  busy = false;
  if (!play.session) return;
  knobs.tell(play.echo);
  note();
  if (address() !== play.session) await during("Opening the session", open); // changed meanwhile
}

function say(text, failed = false) {
  find("status").textContent = text;
  find("status").classList.toggle("error", failed);
}

// When the server last said what the page shows.
function asOf() {
  find("as_of").textContent = `as of ${new Date().toLocaleTimeString()}`;
  find("as_of").classList.remove("error");
}

// An episode has begun or was taken up.
function begun() {
  const { task, windows, id } = play.episode;
  if (address() && address() !== play.session) location.hash = play.session;
  else history.replaceState(null, "", `#${play.session}`);
  find("download").href = server.logAddress(play.session);
  ungraded();
  if (knobsOf !== id) {
    // What a person has set stays while the episode is the same.
    knobsOf = id;
    choice.set(play.chosen);
    knobs.build(task, fields);
    knobs.follow(windows.at(-1).action);
  }
  if (tab() === "play") board.begin(play.episode, fields, known[0]);
  note();
}

// What is known of the session, for the list of sessions and for those who go on elsewhere.
function note() {
  const { task, windows } = play.episode;
  runs.note({
    id: play.session, ...play.chosen, title: task.title, begun: Date.now(), windows: play.played, over: play.over,
    score: play.played ? scoreOf(meanReward(windows), task.mean_reward_anchors) : null,
    drivers: [...new Set(windows.slice(1).map(({ driver }) => driver?.replace("_", " ") ?? "by hand"))],
  });
  const action = JSON.stringify(windows.at(-1).action ?? task.default_action);
  const url = new URL("..", location.href).href.replace(/\/$/, "");
  const [token, header] = runtime.default_session ? ["", ""] : [', token="…"', " -H 'Authorization: Bearer …'"];
  find("python").textContent = `from jaxserve.client import ServeClient

with ServeClient.from_url("${url}"${token}) as env:
    seen = env.attach("${play.session}").observation
    seen, reward, done, info = env.step(${action})`;
  find("curl").textContent = `curl -X POST ${url}/step -H 'Content-Type: application/json'${header} \\
    -d '{"session_id": "${play.session}", "action": ${action}}'`;
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
  if (!text || !Number.isInteger(count) || count < 1 || count > runtime.max_windows) {
    throw new Error(`windows to run is ${text || "empty"}; it must be a whole number from 1 to ${runtime.max_windows}`);
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
  return done ? `${named(agent)} played ${done} windows; the knobs are where it left them.` : "No window was played.";
}

// The agent plays the same traffic in a session of its own, which is drawn over this one.
async function overlay() {
  const agent = find("agent").value;
  const { id, windows } = await play.elsewhere(agent);
  runs.add({ ...runs.now, id, begun: Date.now(), windows: windows.length - 1, drivers: [named(agent)],
    score: scoreOf(meanReward(windows), play.episode.task.mean_reward_anchors) });
  await runs.lay(id);
  return `${named(agent)} played the same traffic in a session of its own, which is drawn over this one.`;
}

const named = (agent) => agent.replace("_", " ");

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

// The session that the address names. Where it cannot be shown, the address names the one that is, again.
async function open() {
  const id = address();
  if (id === play.session) return "";
  if (tab() === "live") turnTo("play");
  try {
    if (!id) return "";
    await play.resume(id);
    play.look();
    return "";
  } catch (error) {
    throw play.session ? new Error(`${error.message}. The page shows the session as before.`) : error;
  } finally {
    if (play.session) history.replaceState(null, "", `#${play.session}`);
  }
}

// Others may play the session: what they did is shown, or it is said that it is not known.
async function lookAround() {
  if (busy || document.hidden || tab() === "live" || !play.session) return;
  try {
    const text = await play.check(() => !busy);
    if (busy) return;
    if (text) say(text);
    asOf();
  } catch (error) {
    find("as_of").textContent = `${error.message}; what is shown is ${find("as_of").textContent.match(/as of .*$/)?.[0] ?? "old"}`;
    find("as_of").classList.add("error");
  }
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
  for (const id of ["play", "first_steps", "sessions", "elsewhere", "as_of"]) find(id).hidden = toLive;
  find("live").hidden = !toLive;
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
  runtime = await server.runtime();
  const { agents, observation_schema: observations } = await server.info();
  learn(observations);
  play.isLive = runtime.mode === "live";
  hideScores(play.isLive);
  find("overlay").hidden = play.isLive;
  find("windows").max = runtime.max_windows;
  known = tasks;
  fields = schema.properties;
  find("task").replaceChildren(...known.map((one) => new Option(one.title, one.task_id)));
  const offered = agents.filter((name) => name in AGENTS);
  if (runtime.language_model) offered.push(LANGUAGE_MODEL);
  find("agent").replaceChildren(...offered.map((name) => new Option(named(name), name)));
  find("agent").value = "heuristic";
  explainAgent();
  let gone = "";
  if (address()) {
    try {
      await play.resume(address());
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
find("overlay").addEventListener("click", () => during("The agent plays in a session of its own", overlay));
find("grade").addEventListener("click", () => during("Grading", grade));
find("stop").addEventListener("click", () => (play.stopped = true));
addEventListener("hashchange", () => {
  if (address() === play.session) return;
  if (busy) play.stopped = true; // the address is looked at again when the button has done
  else during("Opening the session", open);
});
document.addEventListener("visibilitychange", lookAround);
setInterval(lookAround, BETWEEN_MS);
during("Loading", start);
