// The knobs: a slider and an exact number, a list or a switch for each.

import { highest, knobValue } from "./panels.js";

// How a slider moves: its ends, and from its position to the value and back. In octaves the difference
// between 1 and 2 matters, that of 511 and 512 does not.
function scaleOf(field, low, high) {
  if (field.octaves) {
    return {
      min: 4 * Math.log2(low), max: 4 * Math.log2(high), step: 1,
      value: (position) => Math.round(2 ** (position / 4)),
      position: (value) => 4 * Math.log2(value),
    };
  }
  const step = field.type === "integer" ? 1 : 0.05;
  return { min: low, max: high, step, value: (position) => Number(Number(position).toFixed(4)), position: Number };
}

function input(type, attributes) {
  return Object.assign(document.createElement("input"), { type, ...attributes });
}

export class Knobs {
  constructor(fieldset) {
    this.fieldset = fieldset;
    this.knobs = {};
  }

  // Controls for a task; those that the task locks cannot be moved.
  build(task, fields) {
    for (const old of this.fieldset.querySelectorAll(".knob")) old.remove();
    this.knobs = {};
    for (const [knob, [low, most]] of Object.entries(task.knob_ranges)) {
      const field = fields[knob];
      const high = highest(field, most, task.num_gpus);
      const locked = !task.active_knobs.includes(knob);
      this.knobs[knob] = this.#knob(knob, field, low, high, locked);
      this.knobs[knob].write(task.default_action[knob]);
    }
  }

  action() {
    return Object.fromEntries(Object.entries(this.knobs).map(([knob, { read }]) => [knob, read()]));
  }

  // What a real engine made of the knobs.
  tell(echo) {
    for (const [knob, { how, reason }] of Object.entries(echo ?? {})) {
      this.knobs[knob]?.tell(how === "unsupported" ? `. Not turned: ${reason ?? "the engine does not know it"}.` : "");
    }
  }

  // What an agent chose.
  follow(action) {
    for (const [knob, value] of Object.entries(action ?? {})) this.knobs[knob]?.write(value);
  }

  #knob(knob, field, low, high, locked) {
    const row = document.createElement("div");
    row.className = "knob";
    row.classList.toggle("locked", locked);
    const label = document.createElement("label");
    label.htmlFor = knob;
    label.textContent = field.title + (field.type === "integer" ? "" : " (%)");
    const hint = document.createElement("span");
    hint.className = "hint";
    hint.id = `${knob}_hint`;
    hint.textContent = field.description;
    let value = low;
    const controls = field.names.length === 2 ? toggle(knob)
      : sliderAndNumber(knob, field, scaleOf(field, low, high), low, high);
    let wrong = null; // what a person wrote that no knob can have
    const write = (to) => {
      [value, wrong] = [to, null];
      controls.show(to);
    };
    controls.changed(write, (text) => (wrong = text));
    for (const element of controls.elements) {
      element.disabled = locked;
      element.setAttribute("aria-describedby", hint.id);
    }
    const state = document.createElement("output");
    state.className = "number";
    state.hidden = !locked && field.names.length === 0;
    const shown = controls.show;
    controls.show = (to) => {
      shown(to);
      state.textContent = knobValue(field, to) + (locked ? " · locked" : "");
    };
    row.append(label, state, ...controls.elements, hint);
    this.fieldset.append(row);
    const read = () => {
      if (wrong === null) return value;
      const [least, most] = shares(field, low, high);
      const what = field.type === "integer" ? "a whole number" : "a share in %";
      throw new Error(`${field.title} is ${wrong || "empty"}; it must be ${what} from ${least} to ${most}`);
    };
    const tell = (text) => (hint.textContent = `${field.description}${text}`);
    return { read, write, tell };
  }
}

function toggle(knob) {
  const box = input("checkbox", { id: knob });
  return {
    elements: [box],
    show: (value) => (box.checked = Boolean(value)),
    changed: (write) => box.addEventListener("input", () => write(Number(box.checked))),
  };
}

// Values as a person writes them: a share in per cent.
function shares(field, ...values) {
  return values.map((value) => Number(((field.type === "integer" ? 1 : 100) * value).toFixed(2)));
}

// The slider comes near a value, the number is exact.
function sliderAndNumber(knob, field, scale, low, high) {
  const factor = field.type === "integer" ? 1 : 100;
  const slider = input("range", { id: knob, min: scale.min, max: scale.max, step: scale.step });
  const elements = [slider];
  const exact = input("number", { id: `${knob}_exact`, min: factor * low, max: factor * high, step: 1 });
  exact.setAttribute("aria-label", `${field.title}, exact${factor === 100 ? ", per cent" : ""}`);
  if (!field.names.length) elements.unshift(exact);
  return {
    elements,
    show: (value) => {
      slider.value = scale.position(value);
      slider.setAttribute("aria-valuetext", knobValue(field, value));
      [exact.value] = shares(field, value);
    },
    changed: (write, refuse) => {
      slider.addEventListener("input", () => write(scale.value(Number(slider.value))));
      exact.addEventListener("change", () => {
        const asked = exact.value === "" ? NaN : Number(exact.value);
        const [least, most] = shares(field, low, high);
        const fits = asked >= least && asked <= most && (factor === 100 || Number.isInteger(asked));
        if (fits) write(Math.min(Math.max(asked / factor, low), high));
        else refuse(exact.value);
      });
    },
  };
}
