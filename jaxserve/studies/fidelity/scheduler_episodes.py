"""Random episodes for two schedulers, and the steps of the reference engine in them.

In every episode KV pool, token budget or batch cap is too small for the traffic: sequences are
preempted, prompts are cut and requests wait. Knobs change meanwhile. docs/fidelity.md names the
cases that no episode covers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jaxserve.sim.machine.acceptance import MAX_DEPTH
from jaxserve.sim.reference.engine import Engine
from jaxserve.sim.reference.request import Request
from jaxserve.sim.reference.settings import GpuKnobs, SchedulerSettings


@dataclass(frozen=True)
class SchedulerEpisode:
    """Traffic and knobs for one scheduler; every step lasts one unit of time."""

    blocks: int
    """KV blocks."""
    block_tokens: int
    """tokens per KV block."""
    max_length: int
    """longest request, prompt and output; the smallest KV budget holds it."""
    batch_cap: int
    """largest number of running sequences, until the knob changes."""
    token_budget: int
    """tokens of a step, until the knob changes."""
    priority_routing: bool
    """order by (priority, arrival), until the knob changes."""
    watermark: float
    """share of the KV blocks that admission leaves free."""
    prefix_caching: bool
    """whether a preempted sequence finds the rest of its own KV."""
    speculation_depth: int
    """draft tokens of a sequence and step, all of them right."""
    requests: Sequence[Sequence[int]]
    """[step of its arrival, prompt tokens, output tokens, priority], in order of arrival."""
    turns: Sequence[tuple[int, Mapping[str, float]]]
    """(step, new knobs before that step), in order."""


ScheduledStep = tuple[list[list[int]], list[int]]
"""[request, tokens] in the order of the batch, and the preempted requests."""


def random_episode(
    seed: int, prefix_caching: bool = False, speculates: bool = False
) -> SchedulerEpisode:
    """The episode of ``seed``.

    Args:
      seed: any whole number from 0.
      prefix_caching: whether preempted sequences find the rest of their KV.
      speculates: whether sequences have draft tokens.
    """
    rng = np.random.default_rng(seed)
    block_tokens = int(rng.choice([4, 8, 16, 32]))
    longest = int(rng.integers(3, 20))
    max_length = longest * block_tokens
    least = longest + 1  # the smallest KV budget of a live vLLM
    blocks = least + int(rng.integers(1, 3 * longest))
    batch_cap = int(rng.integers(1, 25))
    token_budget = int(rng.choice([2 * batch_cap + 4, 64, 256]))
    depth = 0
    if speculates:
        # The simulator does not cut drafts to a small budget as vLLM does: give both enough.
        depth = int(rng.integers(1, 9))
        token_budget += 2 * batch_cap * (depth + 1)
    requests = _random_requests(rng, max_length - depth - 1)
    # vLLM never resizes its pool, of which watermark and prefix cache are shares.
    watermark = float(rng.choice([0.0, 0.0, 0.1]))
    fixed_pool = prefix_caching or watermark > 0
    turns = []
    for step in sorted(rng.integers(1, 400, rng.integers(0, 13)).tolist()):
        values = {
            "batch_cap": rng.integers(1, batch_cap + 1),
            "priority_routing": rng.integers(2),
        }
        if not speculates:
            values["token_budget"] = rng.integers(1, token_budget + 1)
        if not fixed_pool:
            values["kv_blocks"] = rng.integers(least, blocks + 1)
        knob = str(rng.choice(list(values)))
        turns.append((step, {knob: int(values[knob])}))
    return SchedulerEpisode(
        blocks=blocks,
        block_tokens=block_tokens,
        max_length=max_length,
        batch_cap=batch_cap,
        token_budget=token_budget,
        priority_routing=bool(rng.integers(2)),
        watermark=watermark,
        prefix_caching=prefix_caching,
        speculation_depth=depth,
        requests=requests,
        turns=turns,
    )


def _random_requests(rng: np.random.Generator, max_length: int) -> list[list[int]]:
    count = int(rng.integers(3, 41))
    arrivals = np.cumsum(rng.geometric(rng.uniform(0.05, 1.0), count) - 1)
    longest_prompt = max(1, max_length // int(rng.choice([1, 3])) - 1)
    prompts = rng.integers(1, longest_prompt + 1, count)
    outputs = rng.integers(1, max_length - prompts + 1)
    priorities = rng.integers(0, 3, count)
    return np.stack([arrivals, prompts, outputs, priorities], axis=1).tolist()


_ALL_RIGHT = np.arange(1.0, MAX_DEPTH + 2)


class _UnitTimer:
    """Every step lasts one second."""

    def iteration_s(self, **load: Any) -> float:
        return 1.0


def our_steps(episode: SchedulerEpisode) -> list[ScheduledStep]:
    """Steps of ``episode`` on the reference engine; fewer than vLLM's if the engine gets stuck."""
    knobs = GpuKnobs(
        batch_cap=episode.batch_cap,
        kv_capacity_tokens=episode.blocks * episode.block_tokens,
        priority_routing=episode.priority_routing,
        speculation_depth=episode.speculation_depth,
    )
    settings = SchedulerSettings(
        token_budget=episode.token_budget,
        block_tokens=episode.block_tokens,
        watermark=episode.watermark,
        prefix_caching=episode.prefix_caching,
    )
    engine = Engine(_UnitTimer(), knobs, settings, np.random.default_rng(0))
    requests = [
        Request(i, float(i), prompt, output, priority=priority, acceptance=_ALL_RIGHT)
        for i, (_, prompt, output, priority) in enumerate(episode.requests)
    ]
    steps: list[ScheduledStep] = []
    turns, upcoming, now = list(episode.turns), 0, 0
    while upcoming < len(requests) or engine.running or engine.waiting:
        if not engine.running and not engine.waiting:
            now = max(now, episode.requests[upcoming][0])
        while turns and turns[0][0] <= now:
            _turn(engine, turns.pop(0)[1])
        while upcoming < len(requests) and episode.requests[upcoming][0] <= now:
            engine.waiting.push(requests[upcoming])
            upcoming += 1
        before = [request.preemptions for request in requests]
        if engine.start(float(now)) is None:
            break
        preempted = [
            request.id
            for request, count in zip(requests, before, strict=True)
            for _ in range(request.preemptions - count)
        ]
        batch = [[request.id, tokens] for request, tokens in engine.batch]
        steps.append((batch, preempted))
        now += 1
        engine.finish(float(now))
    return steps


def _turn(engine: Engine, knobs: Mapping[str, float]) -> None:
    for name, value in knobs.items():
        match name:
            case "token_budget":
                engine.settings = replace(engine.settings, token_budget=int(value))
            case "kv_blocks":
                tokens = int(value) * engine.settings.block_tokens
                engine.set_knobs(replace(engine.knobs, kv_capacity_tokens=tokens))
            case "priority_routing":
                engine.set_knobs(replace(engine.knobs, priority_routing=bool(value)))
            case "batch_cap":
                engine.set_knobs(replace(engine.knobs, batch_cap=int(value)))
