// A trace, token by token: mask and log-probability.

import { fold, make, number, panel } from "./dom.js";

const AT_ONCE = 3000;

// Opacity of a token: its probability e^logprob, from nearly blank to full.
const sure = (logprob) => `${Math.round(12 + 60 * Math.exp(logprob))}%`;

// Visible signs for spaces, ends of lines and control characters.
const SIGNS = { " ": "␣", "\n": "↵", "\r": "␍", "\t": "⇥" };
const visible = (text) => text.replace(/[\s\p{C}]/gu, (sign) => SIGNS[sign] ?? `\\u{${sign.codePointAt(0).toString(16)}}`);

function token(trace, place) {
  const id = trace.response_ids[place], logprob = trace.response_logprobs[place];
  const text = trace.response_texts?.[place]; // empty for a token that was not sampled; absent in earlier files
  const trained = trace.loss_mask[place] === 1;
  const title = trained ? `token ${place}: id ${id}, mask 1, log-probability ${logprob}` : `token ${place}: id ${id}, mask 0`;
  const options = { className: trained ? "trained" : "between", title, data: { mask: trace.loss_mask[place] } };
  if (trained) Object.assign(options, { style: { "--sure": sure(logprob) } });
  const told = trained ? `${id}·${number(logprob, 3)}` : String(id);
  return make("span", options, ...(text ? [make("b", {}, visible(text)), make("small", {}, told)] : [told]));
}

// The first tokens, with a button for more; a redraw shows as many as before.
const wished = new Map();
function stretch(key, count, one) {
  const box = make("div", { className: "tokens" });
  let done = 0;
  const more = make("button", { type: "button" });
  const fill = () => {
    const next = Math.min(count, wished.get(key) ?? AT_ONCE);
    const made = [];
    for (; done < next; done += 1) made.push(one(done), " ");
    more.remove();
    box.append(...made);
    if (done < count) { more.textContent = `${count - done} more`; box.append(more); }
  };
  more.addEventListener("click", () => { wished.set(key, done + AT_ONCE); fill(); });
  fill();
  return box;
}

export function traceView(trace, index, key) {
  const trained = trace.loss_mask.reduce((sum, one) => sum + one, 0);
  const logprobs = trace.response_logprobs.filter((_, place) => trace.loss_mask[place]);
  const mean = logprobs.length ? logprobs.reduce((sum, one) => sum + one, 0) / logprobs.length : null;
  const said = `prompt ${trace.prompt_ids.length} tokens, then ${trace.response_ids.length}, of which ${trained} are trained on; `
    + `reward ${number(trace.reward)}, mean log-probability ${number(mean)}, ended by ${trace.finish_reason ?? "nothing"}`;
  const legend = make("div", { className: "legend" },
    make("span", {}, "filled: mask 1, text over id·log-probability"), make("span", {}, "grey: mask 0, id"));
  return panel(`Trace ${index + 1}`, make("p", {}, said), legend,
    fold(`${key}-prompt-${index}`, `Prompt, ${trace.prompt_ids.length} tokens`, () =>
      stretch(`${key}-prompt-${index}`, trace.prompt_ids.length, (place) =>
        make("span", { className: "prompt", title: `token ${place} of the prompt` }, String(trace.prompt_ids[place])))),
    fold(`${key}-tokens-${index}`, `Tokens, ${trace.response_ids.length}`, () =>
      stretch(`${key}-tokens-${index}`, trace.response_ids.length, (place) => token(trace, place)), true));
}
