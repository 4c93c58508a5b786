// Requests to the server; every error is the server's own sentence.

async function ask(method, path, body) {
  const options = { method, headers: {} };
  if (body !== undefined) {
    options.headers["Content-Type"] = "application/json";
    options.body = JSON.stringify(body);
  }
  let answer;
  try {
    answer = await fetch(at(path), options);
  } catch {
    throw new Error("the server does not answer; try again in a moment");
  }
  const data = await answer.json().catch(() => null);
  if (!answer.ok) {
    const said = data?.error ?? `the server answered with status ${answer.status}`;
    throw Object.assign(new Error(said), { status: answer.status });
  }
  return data;
}

// The page is at dashboard/ below the server, which a proxy may have put below a path of its own.
const at = (path) => `..${path}`;
const named = (path, session) => `${path}?session_id=${encodeURIComponent(session)}`;

export const tasks = () => ask("GET", "/tasks");
export const runtime = () => ask("GET", "/runtime");
export const info = () => ask("GET", "/info");
export const reset = (task, seed, split, session) =>
  ask("POST", "/reset", {
    task_id: task,
    split,
    ...(seed === null ? {} : { seed }),
    ...(session ? { session_id: session } : {}),
  });
// `number` is how many windows were played before, so that none is played where others played.
export const step = (session, action, number) =>
  ask("POST", "/step", { session_id: session, action: { ...action, metadata: { step: number } } });
export const drive = (session, agent, windows) =>
  ask("POST", "/agent", { session_id: session, agent, windows });
export const operate = (session) => ask("POST", "/operator", { session_id: session });
export const observation = (session) => ask("GET", named("/observation", session));
export const yardsticks = (session) => ask("GET", named("/yardsticks", session));
export const classes = (session) => ask("GET", named("/classes", session));
export const grade = (session) => ask("POST", "/grader", { session_id: session });
const logPath = (session) => named("/episode_log", session);
export const logAddress = (session) => at(logPath(session));
export const log = (session) => ask("GET", logPath(session));
