"""Every dialect through a session of a running gateway, spoken by the official clients."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from jaxserve.gateway.recording.records import CompletionRecord
from jaxserve.rollouts.builders import prefix_merging
from tests.gateway.conftest import Start
from tests.gateway.recording.client_conversations import (
    ASKED,
    CALL,
    DIALECTS,
    LAST,
)
from tests.gateway.recording.session_agent import Agent, started
from tests.gateway.token_engine import TokenEngine, message_of, prompt_of, sampled


@pytest.fixture
def agents(start: Start, tmp_path: Path) -> Iterator[dict[str, Agent]]:
    """A session before each engine."""
    with TokenEngine("vllm") as vllm, TokenEngine("sglang") as sglang:
        yield {
            engine.kind: Agent(started(start, engine, tmp_path / engine.kind))
            for engine in (vllm, sglang)
        }


@pytest.fixture
def agent(agents: dict[str, Agent]) -> Agent:
    """One before vLLM."""
    return agents["vllm"]


def checked(records: list[CompletionRecord], path: str) -> None:
    """Both turns are recorded as they came, and as they were sent."""
    stubs = [message_of({"stub": stub}, 0) for stub in _STUBS]
    for record, message in zip(records, stubs, strict=True):
        (choice,) = record.choices
        assert record.usable and record.sent is not None and record.prompt_ids is not None
        assert choice.response_ids is not None and choice.response_ids.tolist() == sampled(message)
        assert record.prompt_ids.tolist() == prompt_of(record.messages)
        assert json.loads(record.received) != json.loads(record.sent)
    assert ASKED in records[0].received.decode()
    # What the model thought has come back to it, although the engine keeps nothing.
    assert records[1].messages[1]["reasoning_content"] == "which one?", path


_STUBS = (CALL, LAST)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_conversation_is_one_trace(agents: dict[str, Agent], dialect: str, stream: bool) -> None:
    """With a tool and reasoning, in every dialect; the same trace from both engines."""
    traces = []
    for found in agents.values():
        assert DIALECTS[dialect](found, stream) == LAST["reply"]
        records = found.records()
        checked(records, dialect)
        assert {record.dialect for record in records} == {dialect.removesuffix("_v1")}
        trajectory = prefix_merging(records)
        assert not trajectory.cuts and not trajectory.dropped
        (trace,) = trajectory.traces
        traces.append(trace)
    ours, theirs = traces
    for name in ("prompt_ids", "response_ids", "loss_mask", "response_logprobs"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
    assert ours.trainable == sum(len(sampled(message_of({"stub": one}, 0))) for one in _STUBS)
