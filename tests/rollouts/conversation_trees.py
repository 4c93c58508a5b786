"""Random conversation trees: what agents really do to a prompt, recorded as a gateway would.

Links are made by the gateway's own code; what was sampled under which tokens is known without.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import orjson
from hypothesis import strategies as st

from jaxserve.gateway.recording.linking import Linker
from jaxserve.gateway.recording.records import CompletionRecord, RecordedChoice, decode, encode
from tests.gateway.token_engine import prompt_of, sampled, text_of

Message = dict[str, Any]

MOVES = (
    "go_on",
    "go_on",
    "go_on",
    "retry",
    "sibling",
    "sub_agent",
    "compact",
    "later_system",
    "fail",
    "no_ids",
    "several",
    "rewrite",
)


@dataclass
class Tree:
    """A session as it grows."""

    linker: Linker = field(default_factory=Linker)
    records: list[CompletionRecord] = field(default_factory=list)

    def ask(
        self,
        messages: list[Message],
        replies: list[str],
        *,
        outcome: str = "completed",
        ids: bool = True,
    ) -> CompletionRecord:
        """Adds one completion, linked and stored as by the gateway."""
        prompt = np.array(prompt_of(messages), np.int32)
        choices, seq = [], len(self.records) + 1
        for index, reply in enumerate(replies):
            message: Message = {"role": "assistant", "content": reply}
            tokens = np.array(sampled(message), np.int32)
            values = -np.arange(1, len(tokens) + 1, dtype=np.float32) / 8
            texts = tuple(map(text_of, tokens.tolist())) if ids and seq % 2 else None
            known = tokens if ids else None
            choices.append(RecordedChoice(index, message, "stop", known, values, texts))
        usage = {"completion_tokens": sum(len(sampled({**c.message})) for c in choices)}
        draft = CompletionRecord(
            session="s",
            request_id=f"r{seq}",
            dialect="chat",
            arrived_unix_s=1.0,
            received=b"{}",
            sent=orjson.dumps({"messages": messages, "tools": []}),
            response=orjson.dumps({"usage": usage}),
            outcome=outcome,
            reason="" if outcome == "completed" else "client_left",
            prompt_ids=prompt if ids else None,
            choices=tuple(choices),
        )
        link = self.linker.link(prompt, messages) if ids else draft.link
        link = link if draft.usable else replace(link, in_line=False)
        record = decode(encode(replace(draft, seq=seq, link=link)))
        self.linker.add(record, len(messages))
        self.records.append(record)
        return record


def user(text: str) -> Message:
    """A message of a user."""
    return {"role": "user", "content": text}


@st.composite
def trees(draw: st.DrawFn) -> list[CompletionRecord]:
    """Records of a session. Few texts, so that prompts meet by chance as well."""
    text = st.sampled_from(["a", "b", "ab", "~a", "ba"])
    tree = Tree()
    ends: list[list[Message]] = [[user("a")], [{"role": "system", "content": "x"}, user("b")]]
    for _ in range(draw(st.integers(1, 10))):
        messages = list(draw(st.sampled_from(ends)))
        move = draw(st.sampled_from(MOVES))
        if move == "compact":
            messages = [user("sum"), *messages[-1:]]
        elif move == "sub_agent":
            messages = [{"role": "system", "content": "sub"}, user(draw(text))]
        elif move == "later_system":
            messages.append({"role": "system", "content": draw(text)})
        elif move == "rewrite" and len(messages) > 2:
            messages[1] = {**messages[1], "content": draw(text)}
        replies = [draw(text) for _ in range(draw(st.integers(2, 3)) if move == "several" else 1)]
        outcome = "cancelled" if move == "fail" else "completed"
        times = 2 if move in ("retry", "sibling") else 1
        for _ in range(times):
            record = tree.ask(messages, replies, outcome=outcome, ids=move != "no_ids")
            if move == "sibling":
                replies = [draw(text)]
        if outcome == "completed":
            for choice in record.choices:
                ends.append([*messages, {**choice.message}, user(draw(text))])
    return tree.records
