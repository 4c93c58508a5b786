// The six sliders and toggles.

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
  return { min: low, max: high, step, value: Number, position: Number };
}

function shown(field, value) {
  if (field.names.length) return field.names[value];
  return field.type === "integer" ? String(value) : `${Math.round(100 * value)} %`;
}

export class Knobs {
  constructor(fieldset) {
    this.fieldset = fieldset;
    this.inputs = {};
  }

  // Sliders for a task; those that the task locks cannot be moved.
  build(task, fields) {
    for (const old of this.fieldset.querySelectorAll(".knob")) old.remove();
    for (const [knob, [low, most]] of Object.entries(task.knob_ranges)) {
      const field = fields[knob];
      const scale = scaleOf(field, low, field.below_gpus ? Math.min(task.num_gpus - 1, most) : most);
      const toggle = field.names.length === 2;
      const label = document.createElement("label");
      label.className = "knob";
      const input = document.createElement("input");
      const output = document.createElement("output");
      input.id = knob;
      if (toggle) input.type = "checkbox";
      else Object.assign(input, { type: "range", min: scale.min, max: scale.max, step: scale.step });
      input.disabled = !task.active_knobs.includes(knob);
      label.classList.toggle("locked", input.disabled);
      const read = () => (toggle ? Number(input.checked) : scale.value(Number(input.value)));
      const write = (value) => {
        if (toggle) input.checked = Boolean(value);
        else input.value = scale.position(value);
        output.textContent = shown(field, read());
      };
      input.addEventListener("input", () => write(read()));
      label.append(field.title, output, input);
      this.fieldset.append(label);
      this.inputs[knob] = { read, write };
      write(task.default_action[knob]);
    }
  }

  action() {
    return Object.fromEntries(Object.entries(this.inputs).map(([knob, { read }]) => [knob, read()]));
  }
}
