"""The reference engine against vLLM's own scheduler, step by step, on random episodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jaxserve.sim.reference.engine import Engine
from jaxserve.sim.reference.request import Request
from jaxserve.sim.reference.settings import EngineKnobs, SchedulerSettings


@dataclass(frozen=True)
class Episode:
    """Traffic and knobs for one scheduler; every step lasts one unit of time."""

    blocks: int
    """KV blocks."""
    block_tokens: int
    """tokens per KV block."""
    max_length: int
    """longest request, prompt and output; the smallest KV budget holds it."""
    batch_cap: int
    """sequences that may run, until the knob is turned."""
    token_budget: int
    """tokens of a step, until the knob is turned."""
    priority_routing: bool
    """serve by (priority, arrival), until the knob is turned."""
    watermark: float
    """share of the KV blocks that admission leaves free."""
    prefix_caching: bool
    """a preempted sequence finds what is left of its own KV."""
    requests: Sequence[Sequence[int]]
    """[step of its arrival, prompt tokens, output tokens, priority], in order of arrival."""
    turns: Sequence[tuple[int, Mapping[str, float]]]
    """(step, knobs turned before it), in order."""


Step = tuple[list[list[int]], list[int]]
"""[request, tokens] in the order of the batch, and the requests preempted."""


def random_episode(seed: int, prefix_caching: bool = False) -> Episode:
    """An episode whose KV pool, token budget or batch cap is too small for its traffic."""
    rng = np.random.default_rng(seed)
    block_tokens = int(rng.choice([4, 8, 16, 32]))
    longest = int(rng.integers(3, 20))
    max_length = longest * block_tokens
    least = longest + 1  # what the KV budget of a live vLLM is never turned below
    blocks = least + int(rng.integers(1, 3 * longest))
    batch_cap = int(rng.integers(1, 25))
    token_budget = int(rng.choice([2 * batch_cap + 4, 64, 256]))
    requests = _random_requests(rng, max_length)
    # These two are shares of a pool whose size vLLM does not change.
    watermark = float(rng.choice([0.0, 0.0, 0.1]))
    fixed_pool = prefix_caching or watermark > 0
    turns = []
    for step in sorted(rng.integers(1, 400, rng.integers(0, 13)).tolist()):
        values = {
            "batch_cap": rng.integers(1, batch_cap + 1),
            "token_budget": rng.integers(1, token_budget + 1),
            "priority_routing": rng.integers(2),
        }
        if not fixed_pool:
            values["kv_blocks"] = rng.integers(least, blocks + 1)
        knob = str(rng.choice(list(values)))
        turns.append((step, {knob: int(values[knob])}))
    return Episode(
        blocks=blocks,
        block_tokens=block_tokens,
        max_length=max_length,
        batch_cap=batch_cap,
        token_budget=token_budget,
        priority_routing=bool(rng.integers(2)),
        watermark=watermark,
        prefix_caching=prefix_caching,
        requests=requests,
        turns=turns,
    )


def _random_requests(rng: np.random.Generator, max_length: int) -> list[list[int]]:
    count = int(rng.integers(3, 41))
    arrivals = np.cumsum(rng.geometric(rng.uniform(0.05, 1.0), count) - 1)
    longest_prompt = max_length // int(rng.choice([1, 3])) - 1
    prompts = rng.integers(1, longest_prompt + 1, count)
    outputs = rng.integers(1, max_length - prompts + 1)
    priorities = rng.integers(0, 3, count)
    return np.stack([arrivals, prompts, outputs, priorities], axis=1).tolist()


class _UnitTimer:
    """Every step lasts one second."""

    def iteration_s(self, **load: Any) -> float:
        return 1.0


def our_steps(episode: Episode) -> list[Step]:
    """The steps of ``episode`` on the reference engine."""
    knobs = EngineKnobs(
        batch_cap=episode.batch_cap,
        kv_capacity_tokens=episode.blocks * episode.block_tokens,
        priority_routing=episode.priority_routing,
    )
    settings = SchedulerSettings(
        token_budget=episode.token_budget,
        block_tokens=episode.block_tokens,
        watermark=episode.watermark,
        prefix_caching=episode.prefix_caching,
    )
    engine = Engine(_UnitTimer(), knobs, settings, np.random.default_rng(0))
    requests = [
        Request(i, float(i), prompt, output, priority=priority)
        for i, (_, prompt, output, priority) in enumerate(episode.requests)
    ]
    steps: list[Step] = []
    turns, upcoming, now = list(episode.turns), 0, 0
    while upcoming < len(requests) or engine.running or engine.waiting:
        if not engine.running and not engine.waiting:
            now = max(now, episode.requests[upcoming][0])
        while turns and turns[0][0] <= now:
            turned = dict(turns.pop(0)[1])
            if "token_budget" in turned:
                engine.settings = replace(engine.settings, token_budget=turned.pop("token_budget"))
            if "kv_blocks" in turned:
                turned["kv_capacity_tokens"] = turned.pop("kv_blocks") * episode.block_tokens
            if "priority_routing" in turned:
                turned["priority_routing"] = bool(turned["priority_routing"])
            engine.set_knobs(replace(engine.knobs, **turned))
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
