// The form that says which episode comes next, and what is said of a choice that waits for Reset.

const find = (id) => document.getElementById(id);
const MAX_SEED = 2 ** 31 - 1;
const SPLITS = {
  test: "Split test: nobody was trained on it; scores are compared here.",
  validation: "Split validation: trained policies were chosen by it.",
  train: "Split train: agents are trained on it.",
};

export class Choice {
  // `onChange` is called when a person has chosen something else.
  constructor(onChange) {
    for (const id of ["task", "seed", "split"]) {
      find(id).addEventListener("change", () => {
        this.explain();
        onChange();
      });
    }
    this.explain();
  }

  // What is chosen; an empty seed is null.
  get() {
    const text = find("seed").value.trim();
    const seed = Number(text);
    if (find("seed").validity.badInput) throw new Error("the seed is no number; it must be a whole number from 0");
    if (text && !(Number.isInteger(seed) && seed >= 0 && seed <= MAX_SEED)) {
      throw new Error(`seed is ${text}; it must be a whole number from 0 to ${MAX_SEED}`);
    }
    return { task: find("task").value, seed: text ? seed : null, split: find("split").value };
  }

  set({ task, seed, split }) {
    find("task").value = task;
    find("seed").value = seed;
    find("split").value = split;
    this.explain();
    this.pending("");
  }

  explain() {
    find("split_hint").textContent = SPLITS[find("split").value];
  }

  // Says what waits for Reset; nothing if the text is empty.
  pending(text) {
    find("pending").hidden = !text;
    find("pending_text").textContent = text;
    find("reset").classList.toggle("main", Boolean(text));
  }
}
