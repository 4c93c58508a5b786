"""A sweep of an engine over HTTP; no test looks at how long anything took."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from jaxserve.engine_control.step_log import StepLoad
from jaxserve.errors import InputError
from jaxserve.live.calibration.fit import fit, of_steps
from jaxserve.live.calibration.kept import KeptMeasurements
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
    url: str,
    plan: CalibrationPlan = PLAN,
    kept: KeptMeasurements | None = None,
    suffices: Callable[[EngineMeasurements], bool] = lambda measured: True,
) -> tuple[EngineMeasurements, list[tuple[str, int, int]]]:
    """What is measured, and the progress that was told."""
    told: list[tuple[str, int, int]] = []

    async def run() -> EngineMeasurements:
        async with EngineClient(Target(url)) as client:
            note = lambda *progress: told.append(progress)  # noqa: E731
            return await measure(client, plan, note, kept, suffices)

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
    assert measured.latency_s.sum() > table.ttft_s.sum()  # a mean and a median
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
    # A busy machine composes fewer kinds of steps, so that held-out ones may lie far from the rest.
    assert found.error < 0.05
    seconds = found.cost_model("gpu", "model", 1).iteration_s(**LOAD)
    assert seconds == pytest.approx(machine().cost.iteration_s(**LOAD), rel=0.05)
    assert np.unique(measured.steps.depth).tolist() == [0]


def test_points_that_the_engine_refuses_are_left_out() -> None:
    """Each with the engine's own words, and no request is left behind; the others are measured.

    A gateway may still count a request that its client has seen end, so the cap is one more than
    the points that must be measured.
    """
    with (
        running() as engine,
        RunningGateway([f"vllm={engine.url},cap=2"], queue=0, look_ahead=0) as gateway,
    ):
        measured, _ = sweep(gateway.url, replace(PLAN, concurrency=(1, 4)))
        wait_for_rest(engine)
    assert measured.load_test.concurrency.tolist() == [1.0] * 6
    assert len(measured.left_out) == 6
    said = r"^4 in flight, prompts of 16 and outputs of about 8 tokens: .*an error: 429 .*full"
    assert re.search(said, measured.left_out[0])


def test_an_engine_that_goes_away_leaves_what_was_measured(tmp_path: Path) -> None:
    """A further call goes on: points are measured once, also of another plan, until the
    measurements suffice; then it reads nothing but the file."""
    path = tmp_path / "mine.measured.json"
    with running() as engine:
        first, _ = sweep(engine.url, replace(PLAN, concurrency=(1,)), KeptMeasurements.read(path))
    with pytest.raises(InputError, match="cannot be reached"):
        sweep(engine.url, PLAN, KeptMeasurements.read(path))
    with running() as engine:
        measured, told = sweep(engine.url, PLAN, KeptMeasurements.read(path))
        rows = len(engine.loop.log.after(0)["rows"])
        again, _ = sweep(engine.url, PLAN, KeptMeasurements.read(path))
        assert len(engine.loop.log.after(0)["rows"]) - rows < 0.1 * rows  # those of the warm-up
    assert told[0] == ("measuring", 0, 12) and len(measured.load_test) == 18
    assert first.steps is not None and measured.steps is not None and again.steps is not None
    assert len(first.steps) < len(measured.steps) <= len(again.steps)
    np.testing.assert_allclose(measured.load_test.tpot_s[:6], first.load_test.tpot_s, rtol=1e-9)
    assert again.requests == measured.requests
    with running(token_budget=1024) as other, pytest.raises(InputError, match="another engine"):
        sweep(other.url, PLAN, KeptMeasurements.read(path))


@pytest.mark.parametrize("content", ["", "[]", '{"facts": 3}', '{"facts": {"model": "m"}}'])
def test_a_file_that_holds_no_measurements(content: str, tmp_path: Path) -> None:
    """Is refused with its name."""
    path = tmp_path / "mine.measured.json"
    path.write_text(content)
    with pytest.raises(InputError, match=r"mine\.measured\.json"):
        KeptMeasurements.read(path)


def test_minutes_that_are_left_are_used() -> None:
    """While the measurements do not suffice, every point is measured again."""
    seen: list[int] = []

    def suffices(measured: EngineMeasurements) -> bool:
        seen.append(measured.requests)
        return len(seen) == 3

    with running() as engine:
        measured, told = sweep(engine.url, replace(PLAN, concurrency=(1,)), suffices=suffices)
    assert seen[0] < seen[1] < seen[2] == measured.requests
    assert told.count(("measuring", 6, 6)) == 3


def test_time_that_does_not_suffice() -> None:
    """Is said where nothing was measured in it."""
    said = r"^nothing was measured.*: 1 in flight, prompts of 16 .* completed no request in .* s$"
    refused = pytest.raises(InputError, match=said)
    with running(speed=0.2) as engine, refused:
        sweep(engine.url, CalibrationPlan((1,), (16,), (8,), minutes=0.001))


def test_prompts_beyond_the_engine() -> None:
    """Are refused before anything is asked."""
    with running() as engine, pytest.raises(InputError, match="the engine takes 512"):
        sweep(engine.url, CalibrationPlan(prompt_tokens=(5000,)))
    assert engine.loop.log.after(0)["rows"] == []
