// A trace: what the model was shown as text, and what it sampled token by token.

import { fold, make, number, panel } from "./dom.js";

const AT_ONCE = 3000; // tokens

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
// A part: { size, make }, in tokens.
const wished = new Map();
function stretch(key, parts) {
  const box = make("div", { className: "tokens" });
  const count = parts.reduce((sum, part) => sum + part.size, 0);
  let next = 0, done = 0;
  const more = make("button", { type: "button" });
  const fill = () => {
    const wish = wished.get(key) ?? AT_ONCE;
    const made = [];
    for (; next < parts.length && done < wish; next += 1) { made.push(parts[next].make(), " "); done += parts[next].size; }
    more.remove();
    box.append(...made);
    if (done < count) { more.textContent = `${count - done} more`; box.append(more); }
  };
  more.addEventListener("click", () => { wished.set(key, done + AT_ONCE); fill(); });
  fill();
  return box;
}

const each = (ids, title) => ids.map((id, place) => ({ size: 1, make: () => make("span", { className: "prompt", title: title(place) }, String(id)) }));

// Messages as text: who speaks, then what.
function textOf(message) {
  const parts = Array.isArray(message.content) ? message.content : [{ text: message.content ?? "" }];
  const said = parts.map((part) => part.text ?? JSON.stringify(part)).join("\n");
  const calls = (message.tool_calls ?? []).map((call) => `${call.function?.name}(${call.function?.arguments})`);
  return [message.reasoning_content, said, ...calls].filter(Boolean).join("\n");
}

const block = (messages) => messages.flatMap((message) => [make("small", {}, message.role), make("p", {}, textOf(message))]);

const sentBody = (records, seq) => {
  try { return JSON.parse(records.find((one) => one.seq === seq).sent); } catch { return null; }
};

// The messages that a request added to those of the trace's request before, and that one's answer.
function addedMessages(records, seq, before) {
  const messages = sentBody(records, seq)?.messages, earlier = sentBody(records, before)?.messages;
  return messages && earlier ? messages.slice(earlier.length + 1) : null;
}

// All messages of a request, after the names of the tools that it offers.
function firstMessages(records, seq) {
  const body = sentBody(records, seq);
  const tools = (body?.tools ?? []).map((tool) => tool.function?.name).filter(Boolean);
  return body?.messages ? [...(tools.length ? [{ role: "tools", content: tools.join(", ") }] : []), ...body.messages] : null;
}

// What the model was shown: text of the messages where the records are there, and the ids.
function shownPart(key, size, messages, ids) {
  return { size, make: () => make("div", { className: "shown" },
    ...(messages?.length ? block(messages) : [make("p", { className: "soft" }, "no record says what these tokens are")]),
    fold(key, `${size} tokens with mask 0`, () => stretch(key, ids()))) };
}

// Runs of tokens: what was sampled token by token, and what was shown between as one part.
function parts(trace, key, records) {
  const spans = trace.metadata.completions ?? [];
  const found = [];
  const sampled = (place) => trace.loss_mask[place] === 1 || Boolean(trace.response_texts?.[place]);
  for (let place = 0; place < trace.response_ids.length;) {
    if (sampled(place)) {
      const here = place;
      found.push({ size: 1, make: () => token(trace, here) });
      place += 1;
      continue;
    }
    const start = place;
    while (place < trace.response_ids.length && !sampled(place)) place += 1;
    const stop = place;
    const after = spans.findIndex(([, , begin]) => begin === stop);
    const messages = after < 1 ? null : addedMessages(records, spans[after][0], spans[after - 1][0]);
    found.push(shownPart(`${key}-${start}`, stop - start, messages,
      () => Array.from({ length: stop - start }, (_, one) => ({ size: 1, make: () => token(trace, start + one) }))));
  }
  return found;
}

export function traceView(trace, index, key, records) {
  const trained = trace.loss_mask.reduce((sum, one) => sum + one, 0);
  const logprobs = trace.response_logprobs.filter((_, place) => trace.loss_mask[place]);
  const mean = logprobs.length ? logprobs.reduce((sum, one) => sum + one, 0) / logprobs.length : null;
  const said = `prompt ${trace.prompt_ids.length} tokens, then ${trace.response_ids.length}, of which ${trained} are trained on; `
    + `reward ${number(trace.reward)}, mean log-probability ${number(mean)}, ended by ${trace.finish_reason ?? "nothing"}`;
  const legend = make("div", { className: "legend" },
    make("span", {}, "filled: sampled, mask 1, text over id·log-probability"),
    make("span", {}, "framed: shown to the model, mask 0, the messages without the signs of the chat template"));
  const first = trace.metadata.completions?.[0]?.[0];
  const prompt = shownPart(`${key}-prompt-${index}`, trace.prompt_ids.length, firstMessages(records, first),
    () => each(trace.prompt_ids, (place) => `token ${place} of the prompt`));
  return panel(`Trace ${index + 1}`, make("p", {}, said), legend,
    fold(`${key}-shown-${index}`, `Prompt, ${trace.prompt_ids.length} tokens`, () => prompt.make()),
    fold(`${key}-tokens-${index}`, `Tokens, ${trace.response_ids.length}`, () =>
      stretch(`${key}-tokens-${index}`, parts(trace, `${key}-between-${index}`, records)), true));
}
