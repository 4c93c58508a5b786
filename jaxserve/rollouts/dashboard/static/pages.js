// The pages: each function returns the elements of a page.

import { charts } from "./charts.js";
import { shown } from "./diff.js";
import { ask, clock, duration, fold, link, make, number, panel, state } from "./dom.js";
import { jsonTable, sortedList, table } from "./tables.js";
import { traceView } from "./tokens.js";

const ENDED = ["COMPLETED", "ERROR", "TIMEOUT"];
const MOST_RECORDS = 1000;
const POINTS = 60; // of a chart
const HISTORY_MS = 5000; // interval of requests for charts
const POOL_STATES = { init: ["INITIALIZING"], run: ["RUNNING"], post_run: ["POST_RUN", "BUILDING"], eval: ["EVALUATING"], prewarm: [] };
const total = (counts) => Object.values(counts).reduce((sum, one) => sum + one, 0);
const ended = (task) => ENDED.reduce((sum, one) => sum + (task.states[one] ?? 0), 0);

function progress(states) {
  const all = Math.max(1, total(states));
  const part = (name) => make("i", { className: name, title: `${name}: ${states[name] ?? 0}`, style: { width: `${(100 * (states[name] ?? 0)) / all}%` } });
  return make("div", { className: "bar" }, ...ENDED.map(part));
}

export async function nodes() {
  const { nodes: found } = await ask("/nodes");
  if (!found.length) return [make("p", {}, "No node has registered yet.")];
  return [make("div", { className: "cards" }, ...found.map(nodeCard))];
}

function nodeCard(node) {
  const pool = ([name, workers]) => {
    const states = POOL_STATES[name] ?? [];
    const busy = states.reduce((sum, one) => sum + (node.states[one] ?? 0), 0);
    const share = states.length ? `${busy} of ${workers}` : `${workers}`;
    return make("div", { className: "pool" }, make("span", {}, name),
      make("div", { className: "bar" }, make("i", { style: { width: `${Math.min(100, (100 * busy) / workers)}%` } })), make("span", {}, share));
  };
  const engines = Object.entries(node.load ?? {}).flatMap(([name, found]) => found.engines.map((one) =>
    make("p", {}, state(one.up ? "up" : "silent"), ` ${one.kind} ${one.name} (${name}): ${one.running} running, ${found.waiting} waiting`)));
  return make("article", { className: "card", data: { node: node.id } },
    make("h2", {}, node.id, state(node.health)),
    make("p", {}, `${node.held} of ${node.slots} places are taken · ${node.gateway}`),
    make("p", {}, node.models.length ? `serves ${node.models.join(", ")}` : "serves any model"),
    ...Object.entries(node.pools).map(pool),
    ...(engines.length ? engines : [make("p", {}, "Its gateway has not said how its engines are.")]));
}

// Charts of one task or of all; requested again after some seconds only.
const histories = new Map();
async function historyOf(task) {
  const held = histories.get(task);
  if (held && Date.now() - held.at < HISTORY_MS) return held.found;
  const of = task === undefined ? "" : `&task=${encodeURIComponent(task)}`;
  const found = await ask(`/history?points=${POINTS}${of}`);
  histories.set(task, { at: Date.now(), found });
  return found;
}

const TASKS = [
  { title: "task", value: (task) => task.task_id, show: (task) => link(["task", task.task_id]) },
  { title: "agent", value: (task) => task.agent },
  { title: "model", value: (task) => task.model },
  { title: "submitted", value: (task) => task.submitted_unix_s, show: (task) => clock(task.submitted_unix_s) },
  { title: "progress", value: (task) => ended(task) / total(task.states), show: (task) => progress(task.states) },
  { title: "ended", value: ended, show: (task) => `${ended(task)} of ${total(task.states)}` },
  { title: "mean reward", value: (task) => task.mean_reward },
  { title: "traces", value: (task) => task.traces },
  { title: "completions", value: (task) => task.completions },
  { title: "callback", value: (task) => task.callback },
];
const TASK_CHOICES = {
  "all tasks": () => true,
  "open": (task) => ended(task) < total(task.states),
  "ended": (task) => ended(task) === total(task.states),
  "with errors": (task) => (task.states.ERROR ?? 0) + (task.states.TIMEOUT ?? 0) > 0,
};

export async function tasks() {
  const [{ tasks: found }, history] = await Promise.all([ask("/tasks"), historyOf()]);
  if (!found.length) return [make("p", {}, "No task was submitted yet.")];
  const options = { words: (task) => [task.task_id, task.agent, task.model], choices: TASK_CHOICES, sort: { by: 3, down: true } };
  return [charts("tasks", history), panel("Tasks", sortedList("tasks", TASKS, found, options))];
}

const SESSIONS = [
  { title: "session", value: (one) => one.sample, show: (one) => link(["session", one.session_id]) },
  { title: "state", value: (one) => one.state, show: (one) => state(one.state) },
  { title: "node", value: (one) => one.node },
  ...["reward", "traces", "completions"].map((name) => ({ title: name, value: (one) => one[name] })),
  { title: "trained tokens", value: (one) => one.trainable },
  { title: "attempts", value: (one) => one.attempt },
  { title: "reason", value: (one) => one.reason },
];
const SESSION_CHOICES = {
  "all states": () => true,
  "open": (one) => !ENDED.includes(one.state),
  ...Object.fromEntries(ENDED.map((name) => [name, (one) => one.state === name])),
};

export async function task(id) {
  const [found, history] = await Promise.all([ask(`/tasks/${encodeURIComponent(id)}/sessions`), historyOf(id)]);
  const said = `${found.completed} of ${found.sessions.length} completed; mean reward ${number(found.mean_reward)}`;
  const options = { words: (one) => [one.session_id, one.node, one.reason], choices: SESSION_CHOICES, sort: { by: 0, down: false } };
  return [
    charts(`task ${id}`, history),
    panel(`Task ${id}`, make("p", {}, said), sortedList(`task-${id}`, SESSIONS, found.sessions, options),
      fold(`${id}-metadata`, "Metadata", () => json(found.metadata))),
  ];
}

const json = (value) => make("pre", {}, JSON.stringify(value, null, 2) ?? "nothing");
const pretty = (text) => {
  try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return text ?? ""; }
};

// A row for each state: its name, when in the session it was, and how long it lasted.
function timeline(events) {
  const first = events[0].at_unix_s, whole = Math.max(events.at(-1).at_unix_s - first, 1e-9);
  const percent = (seconds) => `${(100 * seconds) / whole}%`;
  const rows = events.map((event, place) => {
    const next = events[place + 1];
    const seconds = next ? next.at_unix_s - event.at_unix_s : null;
    const bar = make("i", { style: { "margin-left": percent(event.at_unix_s - first), width: percent(seconds ?? 0) } });
    return make("div", { className: "span", title: event.reason }, state(event.state),
      make("span", { className: "track" }, bar), make("span", { className: "number" }, seconds === null ? `after ${duration(whole)}` : duration(seconds)));
  });
  return make("div", { className: "timeline" }, ...rows);
}

function completion(record, key) {
  const sampled = record.choices.reduce((sum, one) => sum + (one.response_ids ? (3 * one.response_ids.length) / 16 : 0), 0);
  const title = `${record.seq} · ${record.dialect} · ${record.outcome}${record.reason ? ` (${record.reason})` : ""} · `
    + `${Math.floor(sampled)} tokens · ${number(record.ended_unix_s - record.arrived_unix_s, 3)} s · ${record.link.how}`;
  const part = (name) => fold(`${key}-${record.seq}-${name}`, name, () => make("pre", {}, pretty(record[name])));
  return fold(`${key}-${record.seq}`, title, () => [
    ...["received", "sent", "response"].map(part),
    fold(`${key}-${record.seq}-diff`, "received and sent, as a diff", () => shown(pretty(record.received), pretty(record.sent))),
  ]);
}

// Records do not change: of a running session only new records of its attempt are requested.
// Redraws request records one after the other, so that none is requested twice.
let kept = { recorded: null };
function recordsOf(id, attempt) {
  const recorded = `${id}.${attempt}`;
  if (kept.recorded !== recorded) kept = { recorded, records: [], last: Promise.resolve() };
  const mine = kept;
  mine.last = mine.last.catch(() => null).then(() => more(id, mine));
  return mine.last;
}

async function more(id, { recorded, records }) {
  const room = MOST_RECORDS - records.length;
  if (!room) return records;
  const lines = await ask(`/sessions/${encodeURIComponent(id)}/completions?after=${records.length}&limit=${room}`, true);
  const found = lines.split("\n").filter(Boolean).map((line) => JSON.parse(line));
  records.push(...found.filter((record) => record.session === recorded)); // another attempt may have begun
  return records;
}

export async function session(id) {
  const name = encodeURIComponent(id);
  const found = await ask(`/sessions/${name}`);
  const [records, row] = await Promise.all([recordsOf(id, found.attempt), ask(`/sessions/${name}/trajectory`, true)]);
  const traces = row ? JSON.parse(row).traces : [];
  const going = !ENDED.includes(found.state);
  const about = make("p", { data: { going } }, state(found.state), ` ${found.reason || ""} `, link(["task", found.task.task_id]), ` · node ${found.node ?? "none yet"} · attempt ${found.attempt}`);
  const last = found.events.at(-1);
  const events = going ? [...found.events, { ...last, state: "now", at_unix_s: Math.max(Date.now() / 1000, last.at_unix_s) }] : found.events;
  const some = records.length < MOST_RECORDS ? records.length : `the first ${MOST_RECORDS}`;
  const { dropped = {}, cuts = {}, failures = {} } = found;
  return [
    panel(`Session ${id}`, about, timeline(events), fold(`${id}-task`, "Task as submitted", () => json(found.task))),
    panel("Evaluation", jsonTable(`${id}-evaluation`, { reward: found.reward ?? null, ...found.evaluation, dropped, cuts, failures })),
    panel(`Completions (${some})`, ...records.map((record) => completion(record, id))),
    ...traces.map((trace, index) => traceView(trace, index, id, records)),
  ];
}

const MEANS = { reward: "reward", traces: "traces", completions: "completions", trainable: "trained tokens", attempt: "attempts" };

export async function compare(left, right) {
  const { tasks: all } = await ask("/tasks");
  const names = all.map((one) => one.task_id).reverse(); // the newest first
  if (!left && names.length < 2) return [panel("Compare two tasks", make("p", {}, `Two tasks are needed; the service has ${names.length}.`))];
  const choose = (name, value) => make("select", { name, ariaLabel: name },
    ...names.map((one) => make("option", { value: one, selected: one === value }, one)));
  const form = make("form", { className: "row" }, choose("left", left ?? names[1]), choose("right", right ?? names[0]), make("button", { type: "submit" }, "Compare"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    location.hash = `#/compare/${encodeURIComponent(form.left.value)}/${encodeURIComponent(form.right.value)}`;
  });
  const unknown = [left, right].filter((name) => name !== undefined && !names.includes(name));
  if (unknown.length) return [panel("Compare two tasks", form, make("p", { role: "alert" }, `There is no task ${unknown.join(" or ")}.`))];
  if (!left || !right) return [panel("Compare two tasks", form)];
  const [a, b] = await Promise.all([left, right].map((id) => ask(`/tasks/${encodeURIComponent(id)}/sessions`)));
  const mean = (found, name) => {
    const values = found.sessions.map((one) => one[name]).filter((value) => typeof value === "number");
    return values.length ? values.reduce((sum, one) => sum + one, 0) / values.length : null;
  };
  const rows = [
    ["completed", a.completed, b.completed], ["sessions", a.sessions.length, b.sessions.length],
    ...Object.entries(MEANS).map(([name, title]) => [`mean ${title}`, mean(a, name), mean(b, name)]),
  ].map(([name, x, y]) => [name, x, y, x === null || y === null ? null : y - x]);
  const count = Math.max(a.sessions.length, b.sessions.length);
  const one = (found, sample) => {
    const told = found.sessions[sample];
    return told ? [link(["session", told.session_id]), state(told.state), told.reward ?? null] : ["–", "–", null];
  };
  const samples = Array.from({ length: count }, (_, sample) => [sample, ...one(a, sample), ...one(b, sample)]);
  return [
    panel("Compare two tasks", form),
    panel("Means", table(["figure", left, right, "difference"], rows)),
    panel("Samples", table(["sample", left, "state", "reward", right, "state", "reward"], samples)),
  ];
}
