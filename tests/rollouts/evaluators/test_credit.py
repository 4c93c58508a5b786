"""Windows go to the completions whose tool calls made them."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.gateway.recording.records import CompletionRecord, RecordedChoice
from jaxserve.rollouts.evaluators.credit import find_tool_calls, window_owners

CAPS = st.lists(st.sampled_from([32, 64, 96]), max_size=12)


def record(seq: int, calls: list[dict[str, Any]], results: dict[str, str]) -> CompletionRecord:
    """A completion that makes calls, asked with the results of earlier ones."""
    messages = [
        {"role": "tool", "tool_call_id": id, "content": content} for id, content in results.items()
    ]
    message = {"role": "assistant", "content": "", "tool_calls": calls}
    return CompletionRecord(
        session="s",
        request_id=str(seq),
        dialect="chat",
        arrived_unix_s=0.0,
        received=b"{}",
        seq=seq,
        sent=orjson.dumps({"messages": messages}),
        choices=(RecordedChoice(0, message, "tool_calls"),),
    )


def call(id: str, cap: int, name: str = "step") -> dict[str, Any]:
    """A call of a tool."""
    return {"id": id, "function": {"name": name, "arguments": json.dumps({"batch_cap": cap})}}


@given(CAPS, st.sets(st.integers(0, 11)), st.booleans())
def test_every_window_has_its_completion(caps: list[int], failed: set[int], known: bool) -> None:
    """Whether results are brought back or not; a call that was refused gets none."""
    records, results, owners, windows = [], {}, [], []
    for turn, cap in enumerate(caps):
        records.append(record(turn + 1, [call(f"c{turn}", cap)], dict(results)))
        if turn in failed:
            results[f"c{turn}"] = "Error: no such knob"
            continue
        owners.append((turn + 1, 0))
        windows.append({"batch_cap": float(cap)})
        if known:
            results[f"c{turn}"] = json.dumps({"observation": {"step_index": float(len(owners))}})
    records.append(record(len(caps) + 1, [], results))
    assert window_owners(find_tool_calls(records, "step"), windows) == owners


@pytest.mark.parametrize(
    "name", ["step", "mcp__jaxserve__step", "jaxserve_step", "mcp_jaxserve_step", "jaxserve.step"]
)
def test_other_tools_make_none(name: str) -> None:
    """Names of MCP's servers in front are taken off, however an agent joins them; a window without
    a call has no completion."""
    others = [call("a", 96, "look"), call("c", 96, "step_many"), call("d", 96, "stepper")]
    records = [record(1, [*others, call("b", 64, name)], {})]
    windows = [{"batch_cap": 64.0}, {"batch_cap": 64.0}]
    assert window_owners(find_tool_calls(records, "step"), windows) == [(1, 0), None]


@pytest.mark.parametrize(("name", "inside"), [("name", "arguments"), ("id", "args")])
def test_a_tool_may_be_called_through_another(name: str, inside: str) -> None:
    """Agents with many tools, as Qwen Code and OpenClaw, have the model search for one and call it
    by its name; a call of another tool makes no window."""
    step = {"session_id": "s", "action": {"batch_cap": 64}}
    calls = [
        {"id": id, "function": {"name": "tool_call", "arguments": json.dumps(arguments)}}
        for id, arguments in (
            ("a", {name: "mcp__env__look", inside: step}),
            ("c", {name: "mcp__env__step", inside: step}),
        )
    ]
    said = {"command": "echo 1", "tool": "env_step", "x": step}
    calls.insert(0, {"id": "b", "function": {"name": "shell", "arguments": json.dumps(said)}})
    found = find_tool_calls([record(1, calls[:2], {}), record(2, calls[2:], {})], "step")
    assert [call.completion for call in found] == [(2, 0)]
    assert window_owners(found, [{"batch_cap": 64.0}]) == [(2, 0)]
    told = {"c": json.dumps({"step": 1})}
    known = find_tool_calls([record(1, calls[2:], {}), record(2, [], told)], "step")
    assert [call.window for call in known] == [1]


def test_results_may_be_wrapped_in_json() -> None:
    """Hermes and others put what a command printed into a text of their own, quotes escaped."""
    told = {
        name: json.dumps({"output": json.dumps({"step": number}), "exit_code": 0})
        for name, number in (("a", 1), ("b", 2))
    }
    records = [record(1, [call("a", 96), call("b", 64)], {}), record(2, [], told)]
    windows = [{"batch_cap": 1.0}, {"batch_cap": 2.0}]
    assert window_owners(find_tool_calls(records, "step"), windows) == [(1, 0), (1, 0)]


def test_an_id_that_several_calls_have_says_nothing() -> None:
    """Some engines begin anew with each answer; knobs and order tell then."""
    told = {"a": json.dumps({"step": 1})}
    records = [
        record(1, [call("a", 96)], {}),
        record(2, [call("a", 64)], told),
        record(3, [], told),
    ]
    windows = [{"batch_cap": 96.0}, {"batch_cap": 64.0}]
    assert window_owners(find_tool_calls(records, "step"), windows) == [(1, 0), (2, 0)]
