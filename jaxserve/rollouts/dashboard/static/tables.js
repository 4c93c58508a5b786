// Tables: plain ones, those of JSON, and lists with a filter whose columns sort.

import { fold, make, number } from "./dom.js";

const COMPLETIONS = ["completion", "choice", "reward"]; // entries of env_grade's list

function cell(tag, content, isNumber, attributes = {}) {
  const shown = typeof content === "number" ? number(content) : content ?? "–";
  return make(tag, { className: isNumber ? "number" : "", attributes }, shown);
}

// A column is one of numbers where all its values are numbers, but for missing ones.
function numeric(rows, place) {
  const values = rows.map((row) => row[place]).filter((value) => value !== null && value !== undefined);
  return values.length > 0 && values.every((value) => typeof value === "number");
}

export function table(headings, rows) {
  const isNumber = headings.map((_, place) => numeric(rows, place));
  const head = make("tr", {}, ...headings.map((one, place) => cell("th", one, isNumber[place], { scope: "col" })));
  const body = rows.map((row) => make("tr", {}, ...row.map((one, place) => cell("td", one, isNumber[place]))));
  return make("div", { className: "scroll" }, make("table", {}, make("thead", {}, head), make("tbody", {}, ...body)));
}

// A JSON value for reading: objects as rows of name and value, lists of lists as tables.
export function jsonTable(key, value) {
  const rows = [];
  const add = (name, inner) => {
    if (Array.isArray(inner)) rows.push([name, list(`${key}-${name}`, name, inner)]);
    else if (inner !== null && typeof inner === "object") Object.entries(inner).forEach(([inside, one]) => add(name ? `${name}.${inside}` : inside, one));
    else rows.push([name || "value", typeof inner === "number" ? number(inner) : String(inner ?? "–")]);
  };
  add("", value ?? {});
  if (!rows.length) return make("p", { className: "soft" }, "nothing");
  const made = rows.map(([name, one]) => make("tr", {}, make("th", { attributes: { scope: "row" } }, name), make("td", { className: "words" }, one)));
  return make("div", { className: "scroll" }, make("table", { className: "facts" }, make("tbody", {}, ...made)));
}

function list(key, name, entries) {
  if (!entries.length) return "none";
  if (entries.every((one) => one === null || typeof one !== "object")) return entries.map(String).join(", ");
  const all = entries.map((one) => (Array.isArray(one) ? one : Object.values(one ?? {})));
  const width = Math.max(...all.map((one) => one.length));
  const given = Array.isArray(entries[0]) ? (name === "completions" && width === 3 ? COMPLETIONS : null) : Object.keys(entries[0] ?? {});
  const headings = given ?? Array.from({ length: width }, (_, place) => String(place + 1));
  const plain = (one) => (one !== null && typeof one === "object" ? JSON.stringify(one) : typeof one === "number" ? one : String(one ?? "–"));
  return fold(key, `${entries.length} entries`, () => table(headings, all.map((one) => headings.map((_, place) => plain(one[place])))));
}

// A list whose filter and order stay when the page is redrawn.
//
// A column: { title, value(row), show(row) }; it sorts by `value`, and shows `show` or the value.
// `choices` are the options of a second filter: name to predicate.
const kept = new Map();
export function sortedList(key, columns, rows, { words, choices, sort }) {
  if (!kept.has(key)) kept.set(key, { text: "", choice: Object.keys(choices)[0], ...sort });
  const wish = kept.get(key);
  const sortsDown = columns.map((column) => numeric(rows.map((row) => [column.value(row)]), 0));
  const isNumber = columns.map((column, place) => sortsDown[place] && !column.show); // what is shown instead may be anything
  const body = make("tbody"), count = make("span", { className: "soft", role: "status" });
  const find = make("input", { id: `${key}-find`, type: "search", placeholder: "filter", value: wish.text, ariaLabel: `filter ${key}` });
  const choose = make("select", { id: `${key}-choice`, ariaLabel: `state of ${key}` },
    ...Object.keys(choices).map((name) => make("option", { value: name, selected: name === wish.choice }, name)));
  const heads = columns.map((column, place) => {
    const button = make("button", { type: "button", id: `${key}-by-${place}`, className: "sorter" }, column.title);
    button.addEventListener("click", () => {
      Object.assign(wish, wish.by === place ? { down: !wish.down } : { by: place, down: sortsDown[place] });
      fill();
    });
    return make("th", { className: isNumber[place] ? "number" : "", attributes: { scope: "col" } }, button);
  });
  const fill = () => {
    heads.forEach((head, place) => {
      if (place === wish.by) head.setAttribute("aria-sort", wish.down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    const sought = wish.text.trim().toLowerCase();
    const chosen = rows.filter((row) => choices[wish.choice](row) && words(row).join(" ").toLowerCase().includes(sought));
    chosen.sort((a, b) => compared(columns[wish.by].value(a), columns[wish.by].value(b), wish.down));
    body.replaceChildren(...chosen.map((row) => make("tr", {}, ...columns.map((column, place) =>
      cell("td", (column.show ?? column.value)(row), isNumber[place])))));
    count.textContent = chosen.length === rows.length ? `${rows.length}` : `${chosen.length} of ${rows.length}`;
  };
  find.addEventListener("input", () => { wish.text = find.value; fill(); });
  choose.addEventListener("change", () => { wish.choice = choose.value; fill(); });
  fill();
  const head = make("thead", {}, make("tr", {}, ...heads));
  return make("div", {}, make("div", { className: "row" }, find, choose, count),
    make("div", { className: "scroll" }, make("table", {}, head, body)));
}

// Missing values come last, whatever the order.
function compared(a, b, down) {
  const [noA, noB] = [a, b].map((one) => one === null || one === undefined || one === "");
  if (noA || noB) return noA - noB;
  const order = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true });
  return down ? -order : order;
}
