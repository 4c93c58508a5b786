"""Traffic of a task, sent to a real server at its times."""

from __future__ import annotations

import asyncio

import pytest

from jaxserve.agents.reference_rollout import episode_traffic
from jaxserve.agents.task_setup import TaskSetup
from jaxserve.errors import InputError
from jaxserve.live.engine_client import EngineClient, Target
from jaxserve.live.figures import summarise
from jaxserve.live.player import RequestOutcome, play, stream_of_class
from jaxserve.live.prompts import RandomPrompts
from jaxserve.seeds import episode_key
from tests.gateway.gateway_thread import RunningGateway
from tests.mock_engine.conftest import running


def send(url: str, setup: TaskSetup, windows: int = 1) -> list[RequestOutcome]:
    """Sends the first windows of an episode."""
    requests = episode_traffic(setup.env, episode_key(0, "test"), windows)

    async def run() -> list[RequestOutcome]:
        async with EngineClient(Target(url)) as client:
            streams = stream_of_class(setup.spec)
            return await play(client, streams, setup.env.slo, requests, RandomPrompts(0))

    return asyncio.run(run())


def test_through_a_gateway(setup: TaskSetup) -> None:
    """Every request arrives in its class, with its lengths, and both ends agree on what it was."""
    slo = ("chat:ttft=0.5,tpot=0.05",)
    with (
        running(batch_cap=64, kv_blocks=2000, token_budget=2048) as engine,
        RunningGateway([f"vllm={engine.url}"], slo=slo) as gateway,
    ):
        outcomes = send(gateway.url, setup)
        assert outcomes and all(one.error is None for one in outcomes), outcomes
        records = gateway.records(len(outcomes))
    assert {one["class_name"] for one in records} == {"chat"}
    sent = sorted((one.prompt_tokens, one.output_tokens) for one in outcomes)
    assert sorted((one["prompt_tokens"], one["output_tokens"]) for one in records) == sent
    summary = summarise(outcomes, 1.0)
    assert summary.requests == len(outcomes) and summary.errors == 0
    assert summary.ttft_mean_s > 0.0 and summary.itl_mean_s > 0.0


def test_storms_of_429(setup: TaskSetup) -> None:
    """Requests that are turned away are errors with a sentence, and end nothing else."""
    with (
        running(batch_cap=8, speed=1.0) as engine,
        RunningGateway([f"vllm={engine.url},cap=1"], queue=0, look_ahead=0) as gateway,
    ):
        outcomes = send(gateway.url, setup)
    turned_away = [one for one in outcomes if one.error is not None]
    assert turned_away and len(turned_away) < len(outcomes)
    assert all("429" in str(one.error) and not one.good for one in turned_away)
    summary = summarise(outcomes, 1.0)
    assert summary.errors == len(turned_away)


def test_requests_longer_than_the_engine_serves(setup: TaskSetup) -> None:
    """Are refused before anything is sent."""
    with running(max_model_len=64) as engine, pytest.raises(InputError, match="--max-model-len"):
        send(engine.url, setup)
