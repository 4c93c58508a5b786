// The six sliders and toggles.

const NAMES = {
  batch_cap: "Batch cap",
  kv_budget_fraction: "KV budget",
  speculation_depth: "Speculation depth",
  quantization_tier: "Quantisation",
  prefill_decode_split: "Prefill GPUs",
  priority_routing: "Priority routing",
};
const TIERS = ["FP16", "INT8", "INT4"];

// Batch caps are chosen in octaves: the difference between 1 and 2 matters, that of 511 and 512 not.
const scales = {
  batch_cap: {
    min: 0, max: 36, step: 1,
    value: (position) => Math.round(2 ** (position / 4)),
    position: (value) => 4 * Math.log2(value),
  },
  kv_budget_fraction: { min: 0.1, max: 1, step: 0.05, value: Number, position: Number },
};

const shown = {
  quantization_tier: (value) => TIERS[value],
  priority_routing: (value) => (value ? "on" : "off"),
  kv_budget_fraction: (value) => `${Math.round(100 * value)} %`,
};

export class Knobs {
  constructor(fieldset) {
    this.fieldset = fieldset;
    this.inputs = {};
  }

  // Sliders for a task; those that the task locks cannot be moved.
  build(task) {
    for (const old of this.fieldset.querySelectorAll(".knob")) old.remove();
    for (const [knob, name] of Object.entries(NAMES)) {
      const [low, most] = task.knob_ranges[knob];
      const high = knob === "prefill_decode_split" ? Math.max(task.num_gpus - 1, 0) : most;
      const scale = scales[knob] ?? { min: low, max: high, step: 1, value: Number, position: Number };
      const toggle = knob === "priority_routing";
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
        output.textContent = (shown[knob] ?? String)(read());
      };
      input.addEventListener("input", () => write(read()));
      label.append(name, output, input);
      this.fieldset.append(label);
      this.inputs[knob] = { read, write };
      write(task.default_action[knob]);
    }
  }

  action() {
    return Object.fromEntries(Object.entries(this.inputs).map(([knob, { read }]) => [knob, read()]));
  }
}
