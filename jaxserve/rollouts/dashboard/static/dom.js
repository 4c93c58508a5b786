// Helpers for elements, numbers and requests. No text of an agent is parsed as HTML.

export function make(tag, options = {}, ...children) {
  const { data = {}, style = {}, attributes = {}, ...rest } = options;
  const made = Object.assign(document.createElement(tag), rest);
  Object.assign(made.dataset, data);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  for (const [name, value] of Object.entries(style)) made.style.setProperty(name, value);
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export const state = (name) => make("span", { className: `state ${name}` }, name);
export const link = (path, text) => make("a", { href: `#/${path.map(encodeURIComponent).join("/")}` }, text ?? path.at(-1));
export const panel = (title, ...children) => make("section", { className: "card" }, make("h2", {}, title), ...children);
export const number = (value, digits = 4) => (value === null || value === undefined ? "–" : Number(value.toPrecision(digits)).toLocaleString());
export const clock = (unix) => new Date(1000 * unix).toLocaleString();

// A duration as a person says it, in at most two units.
export function duration(seconds) {
  if (seconds < 60) return `${number(seconds, 3)} s`;
  const whole = Math.round(seconds);
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  const minutes = Math.round(seconds / 60);
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

// A foldable part, which stays open or closed when the page is redrawn.
const open = new Set();
export function fold(key, title, fill, opened = false) {
  const box = make("details", { open: opened ? !open.has(`-${key}`) : open.has(key) }, make("summary", {}, title));
  const filled = () => { if (box.open && box.childElementCount === 1) box.append(...[fill()].flat()); };
  box.addEventListener("toggle", () => {
    const closedKey = `-${key}`;
    if (box.open) { open.add(key); open.delete(closedKey); } else { open.delete(key); open.add(closedKey); }
    filled();
  });
  filled();
  return box;
}

export async function ask(path, asText = false) {
  let answer;
  try {
    answer = await fetch(`api${path}`);
  } catch {
    throw new Error("the dashboard does not answer; try again in a moment");
  }
  if (answer.status === 404 && asText) return "";
  if (!answer.ok) {
    const told = await answer.json().catch(() => null);
    throw new Error(told?.error?.message ?? `the service answered with status ${answer.status}`);
  }
  return asText ? answer.text() : answer.json();
}
