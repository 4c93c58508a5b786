"""Which completion's tool call made which window of an episode."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from jaxserve.gateway.sessions.records import CompletionRecord

Key = tuple[int, int]
"""Record and choice."""

_TOLD = re.compile(r'"step(?:_index)?"\s*:\s*([0-9]+)(?![0-9])')
"""A window's number in a result: ``info.step``, or ``step_index`` of the observation."""


@dataclass(frozen=True)
class Call:
    """A tool call that may have made a window."""

    completion: Key
    """that has it."""
    arguments: Mapping[str, Any]
    """what was asked for."""
    told: int | None
    """the window that its result speaks of; None where no result is known."""


def calls_of(records: Sequence[CompletionRecord], tool: str) -> list[Call]:
    """Calls of a tool in the order in which they were made.

    A call whose result is known and speaks of no window has made none, and is left out. The result
    is what a later request brings back under the call's id, first.
    """
    results: dict[str, str] = {}
    for record in records:
        for message in record.messages:
            if isinstance(message, dict) and message.get("role") == "tool":
                content = message.get("content")
                text = content if isinstance(content, str) else orjson.dumps(content).decode()
                results.setdefault(str(message.get("tool_call_id")), text)
    found = []
    for record in records:
        for choice in record.choices:
            for call in choice.message.get("tool_calls") or ():
                function = call.get("function") or {}
                name = function.get("name") or ""
                if name != tool and not name.endswith((f"__{tool}", f".{tool}")):
                    continue
                result = results.get(str(call.get("id")))
                told = None if result is None else _TOLD.findall(result)
                if told is None or told:
                    number = int(told[-1]) if told else None
                    arguments = _arguments(function.get("arguments"))
                    found.append(Call((record.seq, choice.index), arguments, number))
    return found


def credits(calls: Sequence[Call], windows: Sequence[Mapping[str, Any]]) -> list[Key | None]:
    """The completion of each window, None where none can be told.

    A window belongs to the call whose result speaks of it, the first if there are several. Those of
    no result go to the next call, in order, that asked for this window's knobs.

    Args:
      calls: as ``calls_of`` gives them.
      windows: knobs of each window, as the server played it.
    """
    told = {}
    for call in calls:
        if call.told is not None:
            told.setdefault(call.told, call.completion)
    silent = [call for call in calls if call.told is None]
    found: list[Key | None] = []
    for number, knobs in enumerate(windows, 1):
        owner = told.get(number)
        if owner is None and silent and _agree(silent[0].arguments, knobs):
            owner = silent.pop(0).completion
        found.append(owner)
    return found


def _agree(arguments: Mapping[str, Any], knobs: Mapping[str, Any]) -> bool:
    """Whether all knobs that were asked for are what was played."""
    asked = {name: arguments[name] for name in knobs if name in arguments}
    return all(
        isinstance(value, int | float) and math.isclose(value, knobs[name], rel_tol=1e-6)
        for name, value in asked.items()
    )


def _arguments(text: Any) -> Mapping[str, Any]:
    """Of a call; knobs may be inside ``action``."""
    try:
        found = orjson.loads(text) if isinstance(text, str) else text
    except orjson.JSONDecodeError:
        return {}
    if isinstance(found, dict) and isinstance(found.get("action"), dict):
        found = found["action"]
    return found if isinstance(found, dict) else {}
