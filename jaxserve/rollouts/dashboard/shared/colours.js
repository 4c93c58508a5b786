// The colours of style.css, as a canvas takes them: those of the theme in force.

export const LINES = ["line-1", "line-2", "line-3", "line-4", "line-5", "line-6"];

const known = new Map();
const probe = document.createElement("span");
probe.hidden = true;
document.body.append(probe);
// Before any chart hears of it: listeners are called in the order in which they were added.
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => known.clear());

export function colour(name) {
  if (!known.has(name)) {
    probe.style.color = `var(--${name})`;
    known.set(name, getComputedStyle(probe).color);
  }
  return known.get(name);
}

// A colour that lets others through.
export const faded = (rgb) => rgb.replace(/^rgb\((.*)\)$/, "rgba($1, 0.2)");
