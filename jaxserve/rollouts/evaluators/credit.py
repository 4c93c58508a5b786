"""Assigns the windows of an episode to the completions whose tool calls played them."""

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
"""Record and choice of a completion."""

_WINDOW = re.compile(r'"step(?:_index)?\\*"\s*:\s*([0-9]+)(?![0-9])')
"""Number of a window in a tool's result: ``info.step``, or ``step_index`` of the observation.
Quotes are escaped where an agent wraps results in its own JSON."""
_CALLERS = ("tool_call", "call_tool")
"""Tools of agents that call another tool, found by search."""
_NAME_KEYS = ("name", "id", "tool", "tool_name")
_ARGUMENT_KEYS = ("arguments", "args", "input", "parameters")


@dataclass(frozen=True)
class WindowCall:
    """A tool call that may have played a window."""

    completion: Key
    """completion that has the call."""
    arguments: Mapping[str, Any]
    """arguments of the call."""
    window: int | None
    """number of the window in the call's result; None where no result is known."""


def find_tool_calls(records: Sequence[CompletionRecord], tool: str) -> list[WindowCall]:
    """Calls of a tool, in order.

    A call whose result names no window played none, and is left out. The result is the tool message
    of a later request with the call's id, where exactly one call and one result have that id.
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
        arguments = _arguments(tool, function)
        if arguments is None:
            continue
        texts = results.get(id, set()) if ids[id] == 1 else set()
        windows = _WINDOW.findall(next(iter(texts))) if len(texts) == 1 else None
        if windows != []:
            number = int(windows[-1]) if windows else None
            found.append(WindowCall(completion, arguments, number))
    return found


def _results(records: Sequence[CompletionRecord]) -> dict[Any, set[str]]:
    """Results of tools in the requests, by the id of the call."""
    found: defaultdict[Any, set[str]] = defaultdict(set)
    for record in records:
        for message in record.messages:
            if isinstance(message, dict) and message.get("role") == "tool":
                content = message.get("content")
                text = content if isinstance(content, str) else orjson.dumps(content).decode()
                found[message.get("tool_call_id")].add(text)
    return found


def window_owners(
    calls: Sequence[WindowCall], windows: Sequence[Mapping[str, Any]]
) -> list[Key | None]:
    """The completion that played each window; None where it cannot be determined.

    A window belongs to the first call whose result names it. A window that no result names belongs
    to the next call without a result, in order, that asked for the window's knobs.

    Args:
      calls: from ``find_tool_calls``.
      windows: knobs of each window, as played by the server.
    """
    named = {}
    for call in calls:
        if call.window is not None:
            named.setdefault(call.window, call.completion)
    silent = [call for call in calls if call.window is None]
    found: list[Key | None] = []
    for number, knobs in enumerate(windows, 1):
        owner = named.get(number)
        if owner is None and silent and _agree(silent[0].arguments, knobs):
            owner = silent.pop(0).completion
        found.append(owner)
    return found


def _agree(arguments: Mapping[str, Any], knobs: Mapping[str, Any]) -> bool:
    """Whether all requested knobs equal the played ones."""
    asked = {name: arguments[name] for name in knobs if name in arguments}
    return all(
        isinstance(value, int | float) and math.isclose(value, knobs[name], rel_tol=1e-6)
        for name, value in asked.items()
    )


def _arguments(tool: str, function: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Arguments of a call, from inside ``action`` if there; None where it calls another tool."""
    name, asked = function.get("name"), _object(function.get("arguments"))
    if any(_names(name, caller) for caller in _CALLERS):
        name = next((asked[key] for key in _NAME_KEYS if key in asked), None)
        asked = _object(next((asked[key] for key in _ARGUMENT_KEYS if key in asked), None))
    if not _names(name, tool):
        return None
    action = asked.get("action")
    return action if isinstance(action, dict) else asked


def _names(name: Any, tool: str) -> bool:
    """Whether a name is the tool's, with or without its server's name as a prefix."""
    return (
        isinstance(name, str)
        and re.fullmatch(rf"([\w.:-]*[_.:])?{re.escape(tool)}", name) is not None
    )


def _object(arguments: Any) -> Mapping[str, Any]:
    """Arguments of a call as an object; most clients write them as JSON text."""
    try:
        found = orjson.loads(arguments) if isinstance(arguments, str) else arguments
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}
