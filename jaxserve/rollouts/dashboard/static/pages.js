// The pages: each function returns the elements of a page.

import { ask, clock, fold, link, make, number, panel, state, table } from "./dom.js";
import { shown } from "./diff.js";
import { traceView } from "./tokens.js";

const ENDED = ["COMPLETED", "ERROR", "TIMEOUT"];
const MOST_RECORDS = 1000;
const POOL_STATES = { init: ["INITIALIZING"], run: ["RUNNING"], post_run: ["POST_RUN", "BUILDING"], eval: ["EVALUATING"], prewarm: [] };
const total = (counts) => Object.values(counts).reduce((sum, one) => sum + one, 0);

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

const taskRow = (task) => [
  link(["task", task.task_id]), task.agent, task.model, clock(task.submitted_unix_s),
  progress(task.states), `${ENDED.reduce((sum, one) => sum + (task.states[one] ?? 0), 0)} of ${total(task.states)}`,
  task.mean_reward, task.traces, task.completions, task.callback,
];

export async function tasks() {
  const { tasks: found } = await ask("/tasks");
  if (!found.length) return [make("p", {}, "No task was submitted yet.")];
  const headings = ["task", "agent", "model", "submitted", "progress", "ended", "mean reward", "traces", "completions", "callback"];
  return [panel("Tasks", table(headings, found.reverse().map(taskRow)))];
}

export async function task(id) {
  const found = await ask(`/tasks/${encodeURIComponent(id)}/sessions`);
  const headings = ["session", "state", "node", "reward", "traces", "completions", "trained tokens", "attempts", "reason"];
  const rows = found.sessions.map((one) => [
    link(["session", one.session_id]), state(one.state), one.node, one.reward ?? null, one.traces, one.completions, one.trainable, one.attempt, one.reason,
  ]);
  const said = `${found.completed} of ${found.sessions.length} completed; mean reward ${number(found.mean_reward)}`;
  return [panel(`Task ${id}`, make("p", {}, said), table(headings, rows), fold(`${id}-metadata`, "Metadata", () => json(found.metadata)))];
}

const json = (value) => make("pre", {}, JSON.stringify(value, null, 2) ?? "nothing");
const pretty = (text) => {
  try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return text ?? ""; }
};

function timeline(events) {
  const first = events[0].at_unix_s, last = events.at(-1).at_unix_s;
  const spans = events.slice(0, -1).map((event, place) => {
    const seconds = events[place + 1].at_unix_s - event.at_unix_s;
    const title = `${event.state}: ${number(seconds, 3)} s`;
    return make("span", { title, style: { flex: `${Math.max(seconds, (last - first) / 200)} 0 0` } }, event.state);
  });
  return make("div", { className: "timeline" }, ...spans);
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
  const events = going ? [...found.events, { ...last, at_unix_s: Date.now() / 1000 }] : found.events;
  const some = records.length < MOST_RECORDS ? records.length : `the first ${MOST_RECORDS}`;
  return [
    panel(`Session ${id}`, about, timeline(events), fold(`${id}-task`, "Task as submitted", () => json(found.task))),
    panel("Evaluation", make("p", {}, `reward ${number(found.reward ?? null)}`), json({ evaluation: found.evaluation, dropped: found.dropped, cuts: found.cuts, failures: found.failures })),
    panel(`Completions (${some})`, ...records.map((record) => completion(record, id))),
    ...traces.map((trace, index) => traceView(trace, index, id)),
  ];
}

export async function compare(left, right) {
  const { tasks: all } = await ask("/tasks");
  const choose = (name, value) => make("select", { name, ariaLabel: name },
    ...all.map((one) => make("option", { value: one.task_id, selected: one.task_id === value }, one.task_id)));
  const form = make("form", { className: "row" }, choose("left", left), choose("right", right), make("button", { type: "submit" }, "Compare"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    location.hash = `#/compare/${encodeURIComponent(form.left.value)}/${encodeURIComponent(form.right.value)}`;
  });
  if (!left || !right) return [panel("Compare two tasks", form)];
  const [a, b] = await Promise.all([left, right].map((id) => ask(`/tasks/${encodeURIComponent(id)}/sessions`)));
  const mean = (found, name) => {
    const values = found.sessions.map((one) => one[name]).filter((value) => typeof value === "number");
    return values.length ? values.reduce((sum, one) => sum + one, 0) / values.length : null;
  };
  const rows = [
    ["completed", a.completed, b.completed], ["sessions", a.sessions.length, b.sessions.length],
    ...["reward", "traces", "completions", "trainable", "attempt"].map((name) => [`mean ${name}`, mean(a, name), mean(b, name)]),
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
