"""Measures a running engine: a closed loop at every point of a grid of loads.

A point keeps a number of requests in flight: a new request replaces each that ends. Output lengths
vary by half around their mean, and first requests have different lengths, so that requests are out
of phase as under real load; the first requests are not counted.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jaxserve.agents.progress import Progress
from jaxserve.errors import InputError
from jaxserve.live.calibration.kept import EngineFacts, KeptMeasurements, Point
from jaxserve.live.calibration.plan import CalibrationPlan, longest_output
from jaxserve.live.calibration.steps import StepReader, Steps
from jaxserve.live.engine_client import EngineClient, EngineError, TimedCompletion, cancel
from jaxserve.live.prompts import RandomPrompts
from jaxserve.sim.fit.sweep import Sweep

_FEWEST_COUNTED = 6
_COUNTED_PER_SLOT = 2
_ANSWERS_TO_WARM_UP = 3
_SEED = 0


@dataclass(frozen=True)
class EngineMeasurements:
    """Measurements of a running engine."""

    load_test: Sweep
    """one row per point; TTFT is the median."""
    latency_s: NDArray[np.float64]
    """mean time from a request to its last token at every point; unlike TTFT and TPOT it does not
    depend on tokens coming in bursts."""
    requests: int
    """number of counted requests."""
    steps: Steps | None
    """steps of the whole sweep; None without the plug-in."""
    kv_pool_tokens: int | None
    """KV pool, tokens; None if unknown."""
    batch_cap: int | None
    """most running sequences; None if unknown."""
    token_budget: int | None
    """most tokens of an iteration; None if unknown."""
    left_out: tuple[str, ...] = ()
    """points of the plan without measurements, each with its reason."""


async def measure(
    engine: EngineClient,
    plan: CalibrationPlan,
    progress: Progress,
    kept: KeptMeasurements | None = None,
    suffices: Callable[[EngineMeasurements], bool] = lambda measured: True,
) -> EngineMeasurements:
    """Sweeps the grid, from where ``kept`` ends, until the measurements suffice or time is over.

    A point that completes no request in its share of the time is tried again with the minutes that
    are left; a point that the engine refuses is not.

    Args:
      kept: measurements so far; written after every point.
      suffices: called after every sweep; False measures all points again.

    Raises:
      InputError: the engine cannot be reached, cannot serve the longest sequences of the plan, is
        another than that of ``kept``, or served no point.
    """
    plan.check_fits(engine.longest)
    kept = kept or KeptMeasurements()
    prompts = RandomPrompts(_SEED)
    await prompts.learn(engine)
    for _ in range(_ANSWERS_TO_WARM_UP):
        await engine.complete(prompts.make(max(plan.prompt_tokens)), 8)
    knobs, pool = await _knobs(engine), await engine.kv_pool_tokens()
    reader = await StepReader.of(engine, kept.steps)
    kept.begin(
        EngineFacts(
            model=engine.model,
            kv_pool_tokens=pool,
            batch_cap=knobs.get("batch_cap"),
            token_budget=knobs.get("token_budget"),
            tells_steps=reader is not None,
            behind_gateway=engine.target.gateway_url is not None,
        )
    )
    reading = [asyncio.create_task(reader.read_on())] if reader else []
    ends_s = time.monotonic() + 60 * plan.minutes
    left_out: dict[Point, str] = {}
    refused: set[Point] = set()
    todo = [point for point in plan.points if point not in kept.completions]
    try:
        while True:
            for done, point in enumerate(todo):
                progress("measuring", done, len(todo))
                share_s = max(ends_s - time.monotonic(), 0.0) / (len(todo) - done)
                try:
                    found = await _measure_point(engine, prompts, point, share_s)
                except EngineError as error:
                    if error.status is None:
                        raise
                    left_out[point] = str(error)
                    refused.add(point)
                    continue
                if found:
                    kept.completions.setdefault(point, []).extend(found)
                    left_out.pop(point, None)
                else:
                    left_out[point] = f"completed no request in {share_s:.1f} s"
                if reader:
                    await reader.read()
                kept.write()
                for task in reading:
                    if task.done():
                        task.result()
            progress("measuring", len(todo), len(todo))
            measured = _measurements(kept, left_out)
            todo = [point for point in left_out if point not in refused]
            if time.monotonic() >= ends_s or (not todo and suffices(measured)):
                return measured
            todo = todo or [point for point in plan.points if point not in refused]
    finally:
        await cancel(reading)


def _measurements(kept: KeptMeasurements, left_out: dict[Point, str]) -> EngineMeasurements:
    facts = kept.facts
    assert facts is not None
    reasons = tuple(
        f"{in_flight} in flight, prompts of {prompt} and outputs of about {output} tokens: {reason}"
        for (in_flight, prompt, output), reason in sorted(left_out.items())
    )
    if not kept.completions:
        raise InputError(
            f"nothing was measured; more --minutes or a smaller grid is needed: {reasons[0]}"
        )
    points = sorted(kept.completions.items())
    *columns, latency_s = np.array([_row(point[0], found) for point, found in points]).T
    return EngineMeasurements(
        load_test=Sweep(*columns),
        latency_s=latency_s,
        requests=sum(len(found) for _, found in points),
        steps=Steps.of(kept.steps) if facts.tells_steps else None,
        kv_pool_tokens=facts.kv_pool_tokens,
        batch_cap=facts.batch_cap,
        token_budget=facts.token_budget,
        left_out=reasons,
    )


async def _measure_point(
    engine: EngineClient, prompts: RandomPrompts, point: Point, share_s: float
) -> list[TimedCompletion]:
    """The counted completions at a point, in its share of the time; none if it took longer."""
    in_flight, prompt, output = point
    wanted = max(_FEWEST_COUNTED, _COUNTED_PER_SLOT * in_flight)
    lengths = random.Random(f"{_SEED} {point}")
    completions: list[TimedCompletion] = []
    enough = asyncio.Event()

    async def slot(place: int) -> None:
        first = max(2, round(output * (place + 1) / (in_flight + 1)))
        await engine.complete(prompts.make(prompt), first)
        while True:
            length = lengths.randint(output // 2, longest_output(output))
            completions.append(await engine.complete(prompts.make(prompt), length))
            if len(completions) >= wanted:
                enough.set()

    slots = [asyncio.create_task(slot(place)) for place in range(in_flight)]
    waiting = asyncio.create_task(enough.wait())
    try:
        # A slot returns only by raising.
        ended, _ = await asyncio.wait(
            [*slots, waiting], timeout=share_s, return_when=asyncio.FIRST_COMPLETED
        )
        for task in ended:
            task.result()
    finally:
        await cancel([*slots, waiting])
    return [completion for completion in completions if completion.output_tokens > 1]


def _row(in_flight: int, completions: list[TimedCompletion]) -> tuple[float, ...]:
    """A row of the load test, and the mean latency."""
    decoding_s = sum(completion.last_s - completion.first_s for completion in completions)
    return (
        in_flight,
        float(np.mean([completion.prompt_tokens for completion in completions])),
        float(np.mean([completion.output_tokens for completion in completions])),
        decoding_s / sum(completion.output_tokens - 1 for completion in completions),
        float(np.median([completion.first_s - completion.sent_s for completion in completions])),
        float(np.mean([completion.last_s - completion.sent_s for completion in completions])),
    )


async def _knobs(engine: EngineClient) -> dict[str, int]:
    """Values of the plug-in's knobs; empty without the plug-in."""
    state = await engine.plug_in("control") or {}
    knobs = state.get("knobs")
    found = {}
    for name in ("batch_cap", "token_budget"):
        knob = knobs.get(name) if isinstance(knobs, dict) else None
        now = knob.get("now") if isinstance(knob, dict) else None
        if isinstance(now, int):
            found[name] = now
    return found
