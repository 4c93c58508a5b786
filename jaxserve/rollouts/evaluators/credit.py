"""Which completion's tool call made which window of an episode."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from jaxserve.gateway.recording.records import CompletionRecord

Key = tuple[int, int]
"""Record and choice."""

_TOLD = re.compile(r'"step(?:_index)?\\*"\s*:\s*([0-9]+)(?![0-9])')
"""A window's number in a result: ``info.step``, or ``step_index`` of the observation. Agents that
wrap results in JSON of their own escape the quotes."""


_CALLERS = ("tool_call", "call_tool")
"""Tools by which agents with many of them call one that the model has searched for."""
_NAME_KEYS = ("name", "id", "tool", "tool_name")
_ARGUMENT_KEYS = ("arguments", "args", "input", "parameters")


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
    is what a later request brings back under the call's id, where only one call has the id and only
    one result.
    """
    results = _results(records)
    made = [
        ((record.seq, choice.index), call.get("id"), call.get("function") or {})
        for record in records
        for choice in record.choices
        for call in choice.message.get("tool_calls") or ()
    ]
    ids = Counter(id for _, id, _ in made)
    found = []
    for completion, id, function in made:
        asked = _asked_of(tool, function)
        if asked is None:
            continue
        brought = results.get(id, set()) if ids[id] == 1 else set()
        told = _TOLD.findall(next(iter(brought))) if len(brought) == 1 else None
        if told != []:
            number = int(told[-1]) if told else None
            found.append(Call(completion, asked, number))
    return found


def _results(records: Sequence[CompletionRecord]) -> dict[Any, set[str]]:
    """What requests brought back under the ids of calls."""
    found: defaultdict[Any, set[str]] = defaultdict(set)
    for record in records:
        for message in record.messages:
            if isinstance(message, dict) and message.get("role") == "tool":
                content = message.get("content")
                text = content if isinstance(content, str) else orjson.dumps(content).decode()
                found[message.get("tool_call_id")].add(text)
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


def _asked_of(tool: str, function: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What a call asks of a tool, None where it calls another; knobs may be inside ``action``."""
    name, asked = function.get("name"), _object(function.get("arguments"))
    if any(_names(name, caller) for caller in _CALLERS):
        name = next((asked[key] for key in _NAME_KEYS if key in asked), None)
        asked = _object(next((asked[key] for key in _ARGUMENT_KEYS if key in asked), None))
    if not _names(name, tool):
        return None
    action = asked.get("action")
    return action if isinstance(action, dict) else asked


def _names(name: Any, tool: str) -> bool:
    """Whether a name is the tool's, perhaps with its server's before it."""
    return (
        isinstance(name, str)
        and re.fullmatch(rf"([\w.:-]*[_.:])?{re.escape(tool)}", name) is not None
    )


def _object(arguments: Any) -> Mapping[str, Any]:
    """The arguments of a call, which most clients write as text."""
    try:
        found = orjson.loads(arguments) if isinstance(arguments, str) else arguments
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}
