"""``python -m benchmarks.rollout_builders``: records of a long session, written, linked and built,
and read as the rollout service reads them, from a gateway.

An agent's session of many completions whose prompts are as long as given, in several conversations
that take turns, each completion 120 tokens longer than the one before.
"""

from __future__ import annotations

import asyncio
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import orjson

from benchmarks.gateway import running_gateway
from benchmarks.page import page_parser, publish
from jaxserve.gateway.recording.linking import Linker
from jaxserve.gateway.recording.records import (
    CompletionRecord,
    RecordedChoice,
    RecordFile,
    encode,
    read_records,
)
from jaxserve.gateway.recording.session import SessionInfo
from jaxserve.rollouts.builders import per_request, prefix_merging
from jaxserve.rollouts.export import exported
from jaxserve.rollouts.service.control_client import ControlClient
from server.local import LocalServer, free_port

_T = TypeVar("_T")
_COMPLETIONS, _TOKENS = 1000, 20_000
_CONVERSATIONS = (1, 64)
_RESPONSE = 100
_BETWEEN = 20
_LETTERS = 4
"""Characters of text per token."""
ROUNDS = 5


def main() -> int:
    """Measures every step and prints one page; exit code 2 after bad input."""
    return publish(page, page_parser("benchmarks.rollout_builders", __doc__).parse_args().markdown)


def page() -> str:
    """Measures everything; Markdown."""
    lines = [
        "# Builders of traces",
        "",
        "Printed by `python -m benchmarks.rollout_builders`.",
        "",
        f"{_COMPLETIONS:,} completions whose prompts begin with {_TOKENS:,} tokens, the best of "
        f"{ROUNDS} rounds; Python {platform.python_version()}, {os.cpu_count()} cores, "
        f"{platform.machine()}. Wanted: read and merged in under 2 s where prompts stay about as "
        "long.",
        "",
        "| step | " + " | ".join(_column(conversations) for conversations in _CONVERSATIONS) + " |",
        "|---" * (1 + len(_CONVERSATIONS)) + "|",
    ]
    found = [measured(_COMPLETIONS, _TOKENS, conversations) for conversations in _CONVERSATIONS]
    for step in found[0]:
        lines.append(f"| {step} | " + " | ".join(f"{one[step]:.3f} s" for one in found) + " |")
    return "\n".join(lines) + "\n"


def _column(conversations: int) -> str:
    turns = -(-_COMPLETIONS // conversations)
    longest = _TOKENS + (turns - 1) * (_RESPONSE + _BETWEEN)
    return f"conversations: {conversations}, prompts up to {longest:,} tokens"


def measured(completions: int, tokens: int, conversations: int) -> dict[str, float]:
    """Seconds of each step.

    Args:
      completions: completions of the session.
      tokens: least tokens of a prompt.
      conversations: conversations in turn.
    """
    drafts = session(completions, tokens, conversations)
    records: list[CompletionRecord] = []

    def link() -> list[CompletionRecord]:
        linker, found = Linker(), []
        for seq, draft in enumerate(drafts, 1):
            messages = draft.messages
            assert draft.prompt_ids is not None
            record = replace(draft, seq=seq, link=linker.link(draft.prompt_ids, messages))
            linker.add(record, len(messages))
            found.append(record)
        return found

    seconds = {}
    records, seconds["link, all completions"] = _best(link)
    assert sum(record.link.how == "root" for record in records) == conversations
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "s"
        folder.mkdir()
        path = folder / "records.jsonl"

        def write() -> None:
            path.unlink(missing_ok=True)
            file = RecordFile(path)
            for record in records:
                file.add(encode(record))

        _, seconds["write"] = _best(write)
        records, seconds["read"] = _best(lambda: read_records(path))
        _, seconds["read over the control door"] = _over_the_door(folder)
    merged, seconds["prefix_merging"] = _best(lambda: prefix_merging(records))
    seconds["read and prefix_merging"] = seconds["read"] + seconds["prefix_merging"]
    single, seconds["per_request"] = _best(lambda: per_request(records))
    _, seconds["export of the merged traces"] = _best(lambda: exported(merged))
    assert len(merged.traces) == conversations and not merged.dropped
    assert merged.trainable == single.trainable == completions * _RESPONSE
    return seconds


def _over_the_door(folder: Path) -> tuple[list[CompletionRecord], float]:
    """Records of a closed session that a gateway has, as the service gets them, and the shortest
    time, s.

    Args:
      folder: of the session.
    """
    info = SessionInfo(folder.name, 0.0, "0" * 64, closed=True)
    (folder / "session.json").write_bytes(orjson.dumps(vars(info)))
    port = free_port()

    async def ask() -> list[CompletionRecord]:
        async with ControlClient(f"http://127.0.0.1:{port}", None) as control:
            return await control.records(folder.name)

    engine = LocalServer(folder.parent, app="benchmarks.chat_engine:app")
    with engine, running_gateway(engine.url, ("--sessions", str(folder.parent)), port):
        return _best(lambda: asyncio.run(ask()))


def session(completions: int, tokens: int, conversations: int) -> list[CompletionRecord]:
    """Records without numbers and links."""
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 150_000, tokens, np.int32) for _ in range(conversations)]
    texts = [[{"role": "user", "content": "x" * tokens * _LETTERS}] for _ in prompts]
    found = []
    for number in range(completions):
        place = number % conversations
        response = rng.integers(0, 150_000, _RESPONSE, np.int32)
        message = {"role": "assistant", "content": "y" * _RESPONSE * _LETTERS}
        logprobs = -rng.random(_RESPONSE, np.float32)
        sent = orjson.dumps({"model": "m", "messages": texts[place]})
        found.append(
            CompletionRecord(
                session="s",
                request_id=f"r{number}",
                dialect="chat",
                arrived_unix_s=0.0,
                received=sent,
                sent=sent,
                response=b"{}",
                prompt_ids=prompts[place],
                choices=(RecordedChoice(0, message, "stop", response, logprobs),),
            )
        )
        between = rng.integers(0, 150_000, _BETWEEN, np.int32)
        prompts[place] = np.concatenate([prompts[place], response, between])
        asks = {"role": "user", "content": "z" * _BETWEEN * _LETTERS}
        texts[place] = [*texts[place], message, asks]
    return found


def _best(step: Callable[[], _T]) -> tuple[_T, float]:
    """Result of a step and its shortest time, s."""
    result, best = _timed(step)
    for _ in range(ROUNDS - 1):
        result, seconds = _timed(step)
        best = min(best, seconds)
    return result, best


def _timed(step: Callable[[], _T]) -> tuple[_T, float]:
    start = time.perf_counter()
    result = step()
    return result, time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(main())
