"""Measures a running engine: a closed loop at every point of a grid of loads.

A point keeps a number of requests in flight: a new request replaces each that ends. Output lengths
vary by half around their mean, and first requests have different lengths, so that requests are out
of phase as under real load; the first requests are not counted.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jaxserve.agents.progress import Progress
from jaxserve.errors import InputError
from jaxserve.live.calibration.plan import CalibrationPlan, longest_output
from jaxserve.live.calibration.steps import StepReader, Steps
from jaxserve.live.engine_client import EngineClient, TimedCompletion, cancel
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


async def measure(
    engine: EngineClient, plan: CalibrationPlan, progress: Progress
) -> EngineMeasurements:
    """Sweeps the grid.

    Raises:
      InputError: the engine cannot be reached, answers with an error, cannot serve the longest
        sequences of the plan, or completes no request in a point's time.
    """
    plan.check_fits(engine.longest)
    prompts = RandomPrompts(_SEED)
    await prompts.learn(engine)
    for _ in range(_ANSWERS_TO_WARM_UP):
        await engine.complete(prompts.make(max(plan.prompt_tokens)), 8)
    knobs, pool = await _knobs(engine), await engine.kv_pool_tokens()
    reader = await StepReader.of(engine)
    reading = [asyncio.create_task(reader.read_on())] if reader else []
    rows: list[tuple[float, ...]] = []
    requests = 0
    ends_s = time.monotonic() + 60 * plan.minutes
    points = plan.points
    try:
        for done, point in enumerate(points):
            progress("measuring", done, len(points))
            left_s = max(ends_s - time.monotonic(), 0.0)
            share_s = left_s / (len(points) - done)
            completions = await _measure_point(engine, prompts, point, share_s, left_s)
            requests += len(completions)
            rows.append(_row(point[0], completions))
            for task in reading:
                if task.done():
                    task.result()
        progress("measuring", len(points), len(points))
    finally:
        await cancel(reading)
    *columns, latency_s = np.array(rows).T
    return EngineMeasurements(
        load_test=Sweep(*columns),
        latency_s=latency_s,
        requests=requests,
        steps=await reader.all() if reader else None,
        kv_pool_tokens=pool,
        batch_cap=knobs.get("batch_cap"),
        token_budget=knobs.get("token_budget"),
    )


async def _measure_point(
    engine: EngineClient,
    prompts: RandomPrompts,
    point: tuple[int, int, int],
    share_s: float,
    left_s: float,
) -> list[TimedCompletion]:
    """The counted completions at a point.

    A point takes its share of the remaining time; a slow engine may take more for its first one.
    """
    in_flight, prompt, output = point
    wanted = max(_FEWEST_COUNTED, _COUNTED_PER_SLOT * in_flight)
    lengths = random.Random(f"{_SEED} {point}")
    completions: list[TimedCompletion] = []
    one, enough = asyncio.Event(), asyncio.Event()

    async def slot(place: int) -> None:
        first = max(2, round(output * (place + 1) / (in_flight + 1)))
        await engine.complete(prompts.make(prompt), first)
        while True:
            length = lengths.randint(output // 2, longest_output(output))
            completions.append(await engine.complete(prompts.make(prompt), length))
            one.set()
            if len(completions) >= wanted:
                enough.set()

    slots = [asyncio.create_task(slot(place)) for place in range(in_flight)]
    waiting = [asyncio.create_task(event.wait()) for event in (enough, one)]
    try:
        for event, limit_s in zip(waiting, (share_s, left_s - share_s), strict=True):
            # A slot returns only by raising.
            ended, _ = await asyncio.wait(
                [*slots, event], timeout=limit_s, return_when=asyncio.FIRST_COMPLETED
            )
            for task in ended:
                task.result()
    finally:
        await cancel([*slots, *waiting])
    counted = [completion for completion in completions if completion.output_tokens > 1]
    if not counted:
        raise InputError(
            f"the engine completed no request in {left_s:.1f} s with {in_flight} in flight, "
            f"prompts of {prompt} and outputs of about {output} tokens; more --minutes or a "
            "smaller grid is needed"
        )
    return counted


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
