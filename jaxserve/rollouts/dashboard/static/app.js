// Shows the page of the address, and redraws it after changes of state.

import { make } from "./dom.js";
import * as pages from "./pages.js";

const page = document.getElementById("page");
const status = document.getElementById("status");
const AFTER_MS = 250; // one redraw for changes within this time
const AGAIN_MS = 5000; // interval of redraws: nodes' loads and completions have no events
let drawing = 0;
let due = null;

const noPage = (name) => [make("p", { role: "alert" }, `There is no page ${name}.`)];

async function draw() {
  const [name = "nodes", ...rest] = location.hash.replace(/^#\/?/, "").split("/").filter(Boolean).map(decodeURIComponent);
  const mine = (drawing += 1);
  for (const one of document.querySelectorAll("nav a")) {
    const here = one.hash === `#/${{ task: "tasks", session: "tasks" }[name] ?? name}`;
    if (here) one.setAttribute("aria-current", "page");
    else one.removeAttribute("aria-current");
  }
  try {
    const made = Object.hasOwn(pages, name) ? await pages[name](...rest) : noPage(name);
    if (mine === drawing) replace(made);
  } catch (error) {
    if (mine === drawing) page.replaceChildren(make("p", { role: "alert" }, error.message));
  }
  if (mine === drawing) page.dataset.drawn = String(mine);
}

// Shows elements in place of the old ones. The focused filter keeps its focus and its cursor.
function replace(made) {
  const { id, selectionStart, selectionEnd } = document.activeElement ?? {};
  page.replaceChildren(...made);
  const same = id ? document.getElementById(id) : null;
  same?.focus({ preventScroll: true });
  if (typeof selectionStart === "number") same?.setSelectionRange(selectionStart, selectionEnd);
}

function soon() {
  due ??= setTimeout(() => { due = null; draw(); }, AFTER_MS);
}

function about(event) {
  const [name, id] = location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  if (name === "session") return event.session_id === id;
  if (name === "task") return event.task_id === id;
  return name !== "compare"; // keeps a half-filled form
}

function listen() {
  const stream = new EventSource("api/events/stream");
  stream.addEventListener("open", () => { status.textContent = "live"; });
  stream.addEventListener("error", () => { status.textContent = "the service does not answer; trying again"; });
  stream.addEventListener("state", (told) => { if (about(JSON.parse(told.data))) soon(); });
}

addEventListener("hashchange", draw);
setInterval(() => { if (/^#?\/?(nodes)?$/.test(location.hash) || page.querySelector("[data-going=true]")) soon(); }, AGAIN_MS);
draw();
listen();
