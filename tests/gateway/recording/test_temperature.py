"""Log-probabilities of two engines: vLLM's are raw, SGLang's after the temperature; at 1 they are
one thing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxserve.gateway.recording.records import CompletionRecord
from jaxserve.rollouts.builders import per_request, prefix_merging
from jaxserve.rollouts.export import exported
from tests.gateway.conftest import Start
from tests.gateway.recording.session_agent import Agent, started, user
from tests.gateway.token_engine import TokenEngine, scaled

KINDS = {"vllm": "raw", "sglang": "scaled"}
ARRAYS = ("prompt_ids", "response_ids", "loss_mask", "response_logprobs")


def played(start: Start, folder: Path, kind: str, **sampling: Any) -> list[CompletionRecord]:
    """A conversation of three turns, one of them streamed, with a call and two answers to one
    question."""
    with TokenEngine(kind) as running:
        agent = Agent(started(start, running, folder / kind))
        said = [user("list")]
        stub = {"reply": "I look.", "calls": ["ls"], "reasoning": "where?"}
        call = agent.say(*said, **sampling, stub=stub).json()["choices"][0]["message"]
        result = {"role": "tool", "tool_call_id": call["tool_calls"][0]["id"], "content": "a b"}
        said += [call, result]
        agent.say(*said, **sampling, stream=True, stub={"reply": "two files"})
        said += [{"role": "assistant", "content": "two files"}, user("sure?")]
        agent.say(*said, **sampling, n=2, stub={"reply": ["yes", "~no"]})
        assert all("temperature" in seen.json for seen in running.seen)
        return agent.records()


@pytest.mark.parametrize("build", [per_request, prefix_merging])
def test_equal_traces_at_temperature_1(start: Start, tmp_path: Path, build: Any) -> None:
    """Token by token, also what a trainer gets; the records say what was asked, and of which kind
    each engine's log-probabilities are."""
    sampling = {"temperature": 1.0, "top_p": 1.0, "seed": 7}
    traces = {}
    for kind, meaning in KINDS.items():
        records = played(start, tmp_path, kind, **sampling)
        for record, more in zip(records, ({}, {}, {"n": 2}), strict=True):
            assert record.sampling == sampling | more
            assert (record.engine_kind, record.logprobs_meaning) == (kind, meaning)
        trajectory = build(records)
        assert not trajectory.dropped
        traces[kind] = exported(trajectory).traces
        for trace in traces[kind]:
            assert set(trace.metadata["logprobs_meaning"]) == {meaning}
            assert all(one["temperature"] == 1.0 for one in trace.metadata["sampling"])
    assert len(traces["vllm"]) == (2 if build is prefix_merging else 4)
    for ours, theirs in zip(*traces.values(), strict=True):
        for name in ARRAYS:
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
        assert ours.finish_reason == theirs.finish_reason and ours.messages == theirs.messages


def test_other_temperatures_are_told_apart(start: Start, tmp_path: Path) -> None:
    """The tokens are the same, and only the meaning says why the values are not."""
    ours, theirs = (played(start, tmp_path, kind, temperature=0.5) for kind in KINDS)
    for raw, after in zip(ours, theirs, strict=True):
        assert (raw.logprobs_meaning, after.logprobs_meaning) == ("raw", "scaled")
        for mine, other in zip(raw.choices, after.choices, strict=True):
            assert mine.logprobs is not None and other.logprobs is not None
            np.testing.assert_array_equal(mine.response_ids, other.response_ids)
            assert not np.array_equal(mine.logprobs, other.logprobs)
            values = [scaled(float(one), 0.5) for one in mine.logprobs]
            np.testing.assert_allclose(other.logprobs, values, rtol=1e-4, atol=1e-6)
