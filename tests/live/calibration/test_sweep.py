"""A sweep of an engine over HTTP; no test looks at how long anything took."""

from __future__ import annotations

import asyncio
from collections import Counter

import numpy as np
import pytest

from jaxserve.engine_control.step_log import StepLoad
from jaxserve.errors import InputError
from jaxserve.live.calibration.fit import fit, of_steps
from jaxserve.live.calibration.plan import CalibrationPlan
from jaxserve.live.calibration.sweep import EngineMeasurements, measure
from jaxserve.live.engine_client import EngineClient, Target
from tests.gateway.gateway_thread import RunningGateway
from tests.mock_engine.conftest import Running, running
from tests.mock_engine.engine_in_virtual_time import machine
from tests.patience import wait_until

PLAN = CalibrationPlan((1, 2, 4), (16, 64, 256), (8, 16), minutes=3.0)
LOAD = {"decode_seqs": 4, "kv_tokens": 1000.0, "chunks": ((64, 0),)}


def sweep(
    url: str, plan: CalibrationPlan = PLAN
) -> tuple[EngineMeasurements, list[tuple[str, int, int]]]:
    """What is measured, and the progress that was told."""
    told: list[tuple[str, int, int]] = []

    async def run() -> EngineMeasurements:
        async with EngineClient(Target(url)) as client:
            return await measure(client, plan, lambda *progress: told.append(progress))

    return asyncio.run(run()), told


def wait_for_rest(engine: Running) -> None:
    """Returns when no request is left at the engine."""
    wait_until(lambda: engine.loop.state()["running"] + engine.loop.state()["waiting"] == 0)


def test_every_point_is_measured() -> None:
    """Prompts are of the wanted length, outputs vary around theirs, progress is told, and what was
    under way is given up. Behind a gateway an engine has no plug-in."""
    with running() as engine, RunningGateway([f"vllm={engine.url}"]) as gateway:
        measured, told = sweep(gateway.url)
        wait_for_rest(engine)
        records = gateway.records(measured.requests)
    table = measured.load_test
    assert len(table) == len(PLAN.points) == 18
    assert table.concurrency.tolist() == [point[0] for point in PLAN.points]
    assert table.prompt_tokens.tolist() == [point[1] for point in PLAN.points]
    assert (table.tpot_s > 0).all() and table.ttft_s is not None and (table.ttft_s > 0).all()
    assert (measured.latency_s > table.ttft_s).all()
    assert measured.steps is None and measured.kv_pool_tokens is None
    assert measured.requests >= 18 * 6
    assert len(Counter(one["output_tokens"] for one in records if one["prompt_tokens"] == 64)) > 6
    assert told[0] == ("measuring", 0, 18) and told[-1] == ("measuring", 18, 18)


def test_the_steps_of_a_sweep_give_the_engine_back() -> None:
    """With what the plug-in tells: the engine's times are found, without steps before the sweep."""
    with running(token_budget=2048) as engine:
        engine.loop.log.add(99.0, StepLoad(1, 1, 1.0, 0, 0, 0.0, 0), 1, 0)  # before the sweep
        measured, _ = sweep(engine.url)
        rows = engine.loop.log.after(0)["rows"]
    assert measured.steps is not None and measured.steps.seconds.max() < 1.0
    assert (measured.kv_pool_tokens, measured.batch_cap, measured.token_budget) == (3200, 8, 2048)
    # All but those of the warm-up before it.
    assert 0.9 * len(rows) < len(measured.steps) < len(rows)
    found = fit(of_steps(measured.steps))
    assert found.held_out_error < 0.02
    seconds = found.cost_model("gpu", "model", 1).iteration_s(**LOAD)
    assert seconds == pytest.approx(machine().cost.iteration_s(**LOAD), rel=0.05)
    assert np.unique(measured.steps.depth).tolist() == [0]


def test_an_engine_that_fails_ends_the_sweep() -> None:
    """With its own words, and no request is left behind."""
    with (
        running() as engine,
        RunningGateway([f"vllm={engine.url},cap=1"], queue=0, look_ahead=0) as gateway,
    ):
        with pytest.raises(InputError, match=r"an error: 429 .*full"):
            sweep(gateway.url)
        wait_for_rest(engine)


def test_time_that_does_not_suffice() -> None:
    """Is said where it runs out."""
    refused = pytest.raises(InputError, match=r"no request in .* s with 1 in flight, prompts of 16")
    with running(speed=0.2) as engine, refused:
        sweep(engine.url, CalibrationPlan((1,), (16,), (8,), minutes=0.001))


def test_prompts_beyond_the_engine() -> None:
    """Are refused before anything is asked."""
    with running() as engine, pytest.raises(InputError, match="the engine takes 512"):
        sweep(engine.url, CalibrationPlan(prompt_tokens=(5000,)))
    assert engine.loop.log.after(0)["rows"] == []
