"""Agents' sessions before a real vLLM: every dialect by its official client, and the whole loop.

The model is the tiny one of ``examples/training``: it thinks in random words, calls a tool, and
says a last word when the tool's result says that all is done.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxserve.gateway.recording.records import EXACT, CompletionRecord
from jaxserve.rollouts.builders import prefix_merging
from server.local import LocalServer
from tests.gateway.gateway_thread import RunningGateway
from tests.gateway.recording.client_conversations import (
    ASKED,
    DIALECTS,
    Talk,
    anthropic_client,
    converse,
    google_client,
    openai_client,
)
from tests.gateway.recording.session_agent import Agent
from tests.integrations.examples import TRAINING, run
from tests.integrations.vllm_environment import vllm_python
from tests.integrations.vllm_server import vllm_server

pytestmark = pytest.mark.deep

CAPS = (8, 24, 48, 96, 192, 384)
"""Values that the model knows."""
TALK = Talk(
    model="tiny",
    tool="step",
    schema={"type": "object", "properties": {"batch_cap": {"type": "integer"}}},
    expected=tuple({"batch_cap": cap} for cap in CAPS),
    told='{"done": true}',
)
OPTIONS = ["--dtype", "float32", "--max-model-len", "4096", "--max-num-seqs", "16"]
OPTIONS += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
OPTIONS += ["--reasoning-parser", "qwen3"]
THOUGHTS = re.compile(r"([a-z]+,)+")
STEPS, WINDOWS = 2, 2


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Its address, and the model that it serves."""
    python, model = vllm_python(), tmp_path_factory.mktemp("sessions") / "tiny"
    subprocess.run([python, TRAINING / "tiny_model.py", model], check=True, capture_output=True)
    # The routes by which it takes new weights.
    with vllm_server(python, model, OPTIONS, {"VLLM_SERVER_DEV_MODE": "1"}) as url:
        yield url, model


@pytest.fixture(scope="module")
def gateway(vllm: tuple[str, Path]) -> Iterator[RunningGateway]:
    """It records."""
    url, model = vllm
    with RunningGateway([f"vllm={url}"], sessions=model.with_name("records")) as running:
        yield running


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_conversation_is_one_trace(gateway: RunningGateway, dialect: str, stream: bool) -> None:
    """A call with reasoning, its result, a last word with reasoning: the second prompt extends the
    first answer token by token, so the model got all that it had said."""
    agent = Agent(gateway)
    assert converse(dialect, agent, stream, TALK) == "Done."
    first, second = agent.records()
    assert {first.outcome, second.outcome} == {"completed"} and first.usable and second.usable
    assert second.link.how == EXACT and second.link.in_line
    for record in (first, second):
        assert THOUGHTS.fullmatch(said(record)["reasoning_content"])
        logprobs = record.choices[0].logprobs
        assert logprobs is not None and np.isfinite(logprobs).all() and (logprobs <= 0).all()
        assert record.logprobs_meaning == "raw"
    assert said(first)["reasoning_content"] in str(second.messages)
    trajectory = prefix_merging([first, second])
    assert not trajectory.cuts and not trajectory.dropped
    (trace,) = trajectory.traces
    assert trace.trainable == first.sampled + second.sampled


def said(record: CompletionRecord) -> dict[str, Any]:
    """The answer."""
    return record.choices[0].message


def test_tokens_are_counted_as_the_engine_does(gateway: RunningGateway) -> None:
    """By three routes, and as many as the prompt then has."""
    agent = Agent(gateway)
    asked: list[Any] = [{"role": "user", "content": ASKED}]
    ours = openai_client(agent)
    ours.chat.completions.create(model="tiny", messages=asked)
    (record,) = agent.records()
    assert record.prompt_ids is not None
    google = google_client(agent)  # which closes when it is forgotten
    counts = [
        ours.responses.input_tokens.count(model="tiny", input=ASKED).input_tokens,
        anthropic_client(agent).messages.count_tokens(model="tiny", messages=asked).input_tokens,
        google.models.count_tokens(model="tiny", contents=ASKED).total_tokens,
    ]
    assert counts == [len(record.prompt_ids)] * 3


@pytest.mark.parametrize("model", ["no-such-model", "tiny"])
def test_errors_of_the_engine(gateway: RunningGateway, model: str) -> None:
    """A model that it has not, and a prompt that is too long, in each client's own classes."""
    import anthropic
    import openai
    from google.genai import errors

    agent, code = Agent(gateway), 404 if model != "tiny" else 400
    text = ASKED if code == 404 else "x" * 8000
    asked: list[Any] = [{"role": "user", "content": text}]
    theirs = {404: openai.NotFoundError, 400: openai.BadRequestError}[code]
    with pytest.raises(theirs):
        openai_client(agent).chat.completions.create(model=model, messages=asked)
    with pytest.raises(theirs):
        list(openai_client(agent).responses.create(model=model, input=text, stream=True))
    with pytest.raises({404: anthropic.NotFoundError, 400: anthropic.BadRequestError}[code]):
        anthropic_client(agent).messages.create(model=model, messages=asked, max_tokens=9)
    google = google_client(agent)
    with pytest.raises(errors.ClientError) as caught:
        google.models.generate_content(model=model, contents=text)
    assert caught.value.code == code
    assert {record.status for record in agent.records()} == {code}


def test_the_whole_loop(
    vllm: tuple[str, Path],
    gateway: RunningGateway,
    start_server: Callable[..., LocalServer],
    tmp_path: Path,
) -> None:
    """Agents play through the gateway, TRL takes a step, and vLLM serves what came of it: each time
    the weights that sampled give the log-probabilities that were recorded."""
    url, model = vllm
    server = start_server()
    printed = run(
        "grpo_gateway",
        *("--model", str(model), "--sessions", str(model.with_name("records"))),
        *("--engine", url, "--gateway", gateway.url, "--control", gateway.control_url),
        *("--environment", server.url, "--steps", str(STEPS), "--windows", str(WINDOWS)),
        folder=tmp_path,
    )
    line = r"^step-(\d+): reward (-?\d\.\d+), weights step-(\d+), (\d+) tokens, ratios within (\S+)"
    lines = re.findall(line, printed, re.MULTILINE)
    assert [(int(step), int(weights)) for step, _, weights, _, _ in lines] == [(0, 0), (1, 1)]
    for _, _, _, tokens, largest in lines:
        assert int(tokens) > 8 * WINDOWS * 5 and float(largest) < 1e-3
    moved = re.search(r"^the last step moved ratios by up to (\S+)", printed, re.MULTILINE)
    assert moved is not None and float(moved[1]) > 1e-2
