"""A sweep of an engine over HTTP; no test looks at how long anything took."""

from __future__ import annotations

import asyncio
from collections import Counter

import numpy as np
import pytest

from jaxserve.errors import InputError
from jaxserve.live.calibration.fit import TERMS, fit, of_steps
from jaxserve.live.calibration.plan import CalibrationPlan
from jaxserve.live.calibration.sweep import EngineMeasurements, measure
from jaxserve.live.engine_client import EngineClient, Target
from tests.live.calibration.batching import HttpEngine
from tests.live.calibration.test_fit import linear

TIMES = (1e-3, 2e-5, 1e-4, 1e-7, 1e-8)
ENGINE = linear(**dict(zip("abcde", TIMES, strict=True)))
PLAN = CalibrationPlan((1, 2, 4), (16, 64, 256), (8, 16), minutes=3.0)


def sweep(
    engine: HttpEngine, plan: CalibrationPlan = PLAN
) -> tuple[EngineMeasurements, list[tuple[str, int, int]]]:
    """What is measured, and the progress that was told."""
    told: list[tuple[str, int, int]] = []

    async def run() -> EngineMeasurements:
        async with EngineClient(Target(engine.url)) as client:
            return await measure(client, plan, lambda *progress: told.append(progress))

    return asyncio.run(run()), told


def test_every_point_is_measured() -> None:
    """Prompts are of the wanted length, outputs vary around theirs, and progress is told."""
    with HttpEngine(ENGINE) as engine:
        measured, told = sweep(engine)
    table = measured.load_test
    assert len(table) == len(PLAN.points) == 18
    assert table.concurrency.tolist() == [point[0] for point in PLAN.points]
    assert table.prompt_tokens.tolist() == [point[1] for point in PLAN.points]
    assert (table.tpot_s > 0).all() and table.ttft_s is not None and (table.ttft_s > 0).all()
    assert (measured.latency_s > table.ttft_s).all()
    assert measured.steps is None and measured.kv_pool_tokens is None
    assert measured.requests >= 18 * 6
    lengths = Counter(body["max_tokens"] for body in engine.asked if len(body["prompt"]) == 64)
    assert len(lengths) > 6
    assert told[0] == ("measuring", 0, 18) and told[-1] == ("measuring", 18, 18)
    assert not engine.batch.sequences  # what was under way has been given up


def test_the_steps_of_a_sweep_give_the_engine_back() -> None:
    """Over HTTP, with what the plug-in tells; the engine's times are found within a percent."""
    with HttpEngine(ENGINE, plug_in=True) as engine:
        engine.batch.rows.append((99.0, 1, 1, 1, 0, 0.0, 0))  # from before the sweep
        measured, _ = sweep(engine)
    assert measured.steps is not None
    assert (measured.kv_pool_tokens, measured.batch_cap, measured.token_budget) == (8000, 4, None)
    assert measured.steps.seconds.max() < 1.0
    # All but those of the warm-up before it.
    assert 0.9 * len(engine.batch.rows) < len(measured.steps) < len(engine.batch.rows)
    found = fit(of_steps(measured.steps))
    assert found.held_out_error < 1e-3
    assert [found.factors[name] for name in TERMS] == pytest.approx(TIMES, rel=0.01)
    assert np.unique(measured.steps.depth).tolist() == [0]


def test_an_engine_that_fails_ends_the_sweep() -> None:
    """With its own words, and no request is left behind."""
    refused = pytest.raises(InputError, match=r"an error: 400 .*out of order")
    with HttpEngine(ENGINE, fails_after=40) as engine, refused:
        sweep(engine)
    assert len(engine.asked) > 40


def test_time_that_does_not_suffice() -> None:
    """Is said where it runs out."""
    slow = linear(a=1.0, b=1e-6, c=0.0, d=0.0, e=0.0)
    refused = pytest.raises(InputError, match=r"no request in .* s with 1 in flight, prompts of 16")
    with HttpEngine(slow) as engine, refused:
        sweep(engine, CalibrationPlan((1,), (16,), (8,), minutes=0.01))


def test_prompts_beyond_the_engine() -> None:
    """Are refused before anything is asked."""
    with HttpEngine(ENGINE) as engine, pytest.raises(InputError, match="the engine takes 4096"):
        sweep(engine, CalibrationPlan(prompt_tokens=(5000,)))
    assert not engine.asked
