"""Links completions to the ones that they continue, when they are recorded.

A dictionary holds the digest of every prompt with its response, and of every prompt. One pass over
a new prompt gives the digests of all prefixes of known lengths, so the time of a link depends on
the length of the prompt and not on the number of earlier completions.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import orjson

from jaxserve.gateway.http.json_http import object_items
from jaxserve.gateway.recording.records import (
    EXACT,
    RETOKENISED,
    CompletionRecord,
    Link,
)

_DIGEST_BYTES = 16
_FIRST_BATCH = 8
"""Prefixes in the first pass; the parent is nearly always among the longest."""


class Linker:
    """Index of the completions of a session that another one may continue."""

    def __init__(self) -> None:
        """The index is empty at first."""
        self._whole = _Prefixes()
        self._prompts = _Prefixes()
        self._prompt_lengths: dict[tuple[int, int], int] = {}
        self._messages: dict[tuple[int, int], tuple[int, bytes]] = {}
        self._continued: set[tuple[int, int]] = set()

    def link(self, prompt_ids: np.ndarray, messages: Sequence[Any]) -> Link:
        """Finds the completion that a prompt continues.

        Of an exact and a retokenised parent, the one with the longer prompt is the later turn; of
        equal lengths the exact one counts.

        Args:
          prompt_ids: token ids of the prompt, ``[P]``.
          messages: messages of the request to the engine.
        """
        tokens = np.ascontiguousarray(prompt_ids, "<i4")
        exact = self._best(next(self._whole.found(tokens), ()))
        depth = -1 if exact is None else self._prompt_lengths[exact]
        for keys in self._prompts.found(tokens, longer_than=depth):
            carried = [key for key in keys if self._is_carried(key, messages)]
            if (best := self._best(carried)) is not None:
                return Link(best, RETOKENISED, best not in self._continued)
        return Link() if exact is None else Link(exact, EXACT, exact not in self._continued)

    def add(self, record: CompletionRecord, turn: int) -> None:
        """Adds a linked record; a record that is not usable cannot be continued and takes no place
        in line.

        Args:
          record: the record.
          turn: number of messages in its request, the index of its own message in the next one.
        """
        if not record.usable or record.prompt_ids is None:
            return
        if record.link.in_line and record.link.parent is not None:
            self._continued.add(record.link.parent)
        prompt = np.ascontiguousarray(record.prompt_ids, "<i4")
        begun = hashlib.blake2b(prompt.data, digest_size=_DIGEST_BYTES)
        for choice in record.choices:
            key = (record.seq, choice.index)
            self._prompt_lengths[key] = len(prompt)
            self._prompts.add(len(prompt), begun.digest(), key)
            self._messages[key] = (turn, message_digest(choice.message))
            if choice.response_ids is not None and len(choice.response_ids):
                whole = begun.copy()
                whole.update(np.ascontiguousarray(choice.response_ids, "<i4").data)
                self._whole.add(len(prompt) + len(choice.response_ids), whole.digest(), key)

    def _is_carried(self, key: tuple[int, int], messages: Sequence[Any]) -> bool:
        turn, digest = self._messages[key]
        if turn >= len(messages) or not isinstance(messages[turn], dict):
            return False
        return messages[turn].get("role") == "assistant" and (
            message_digest(messages[turn]) == digest
        )

    def _best(self, keys: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
        """The last key without a successor in line, else the last key."""
        free = [key for key in keys if key not in self._continued]
        return (free or list(keys) or [None])[-1]


class _Prefixes:
    """Completions by the digest of their tokens."""

    def __init__(self) -> None:
        self._by_digest: dict[bytes, list[tuple[int, int]]] = {}
        self._lengths: list[int] = []

    def add(self, length: int, digest: bytes, key: tuple[int, int]) -> None:
        self._by_digest.setdefault(digest, []).append(key)
        place = bisect_left(self._lengths, length)
        if place == len(self._lengths) or self._lengths[place] != length:
            insort(self._lengths, length)

    def found(
        self, tokens: np.ndarray, longer_than: int = -1
    ) -> Iterator[Sequence[tuple[int, int]]]:
        """Completions of each strict prefix of the tokens, the longest prefix first."""
        stop, batch = bisect_left(self._lengths, len(tokens)), _FIRST_BATCH
        first = bisect_left(self._lengths, longer_than + 1)
        while stop > first:
            start = max(stop - batch, first)
            yield from reversed(list(self._of_lengths(tokens, self._lengths[start:stop])))
            stop, batch = start, 4 * batch

    def _of_lengths(
        self, tokens: np.ndarray, lengths: Sequence[int]
    ) -> Iterator[Sequence[tuple[int, int]]]:
        rolling, done = hashlib.blake2b(digest_size=_DIGEST_BYTES), 0
        for length in lengths:
            rolling.update(tokens[done:length].data)
            done = length
            if (keys := self._by_digest.get(rolling.digest())) is not None:
                yield keys


def message_digest(message: Mapping[str, Any]) -> bytes:
    """Digest of an assistant message: text, reasoning and calls, independent of their spelling."""
    calls = [
        [call["function"].get("name"), _arguments(call["function"].get("arguments"))]
        for call in object_items(message.get("tool_calls"))
        if isinstance(call.get("function"), dict)
    ]
    reasoning = message.get("reasoning") or message.get("reasoning_content") or ""
    parts = [_text(message.get("content")), reasoning, calls]
    return hashlib.blake2b(orjson.dumps(parts, default=str), digest_size=_DIGEST_BYTES).digest()


def _text(content: Any) -> Any:
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        return "".join(part for part in parts if isinstance(part, str))
    return content or ""


def _arguments(arguments: Any) -> Any:
    """Arguments of a call as canonical JSON."""
    try:
        parsed = orjson.loads(arguments) if isinstance(arguments, str) else arguments
    except orjson.JSONDecodeError:
        return arguments
    return orjson.dumps(parsed, option=orjson.OPT_SORT_KEYS).decode()
