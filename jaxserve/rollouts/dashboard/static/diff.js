// A line-by-line diff of two texts.

import { make } from "./dom.js";

const MOST = 1500; // lines; in longer texts the whole middle counts as changed

export function differences(before, after) {
  const a = before.split("\n"), b = after.split("\n");
  let start = 0;
  while (start < Math.min(a.length, b.length) && a[start] === b[start]) start += 1;
  let end = 0;
  while (end < Math.min(a.length, b.length) - start && a.at(-1 - end) === b.at(-1 - end)) end += 1;
  const middle = common(a.slice(start, a.length - end), b.slice(start, b.length - end));
  const same = (lines) => lines.map((line) => [" ", line]);
  return [...same(a.slice(0, start)), ...middle, ...same(end ? a.slice(-end) : [])];
}

// The diff by the longest common subsequence.
function common(a, b) {
  if (a.length > MOST || b.length > MOST) return [...a.map((line) => ["-", line]), ...b.map((line) => ["+", line])];
  const length = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) {
      length[i][j] = a[i] === b[j] ? length[i + 1][j + 1] + 1 : Math.max(length[i + 1][j], length[i][j + 1]);
    }
  }
  const found = [];
  let i = 0, j = 0;
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) { found.push([" ", a[i]]); i += 1; j += 1; }
    else if (j >= b.length || (i < a.length && length[i + 1][j] >= length[i][j + 1])) { found.push(["-", a[i]]); i += 1; }
    else { found.push(["+", b[j]]); j += 1; }
  }
  return found;
}

const TAGS = { " ": "span", "-": "del", "+": "ins" };

export function shown(before, after) {
  return make("pre", {}, ...differences(before, after).map(([mark, line]) => make(TAGS[mark], {}, `${mark} ${line}\n`)));
}
