"""Routing of requests to the engines of a deployment."""

from __future__ import annotations

import numpy as np

from jaxserve.sim.reference.request import Request
from jaxserve.sim.reference.settings import Knobs, ReferenceSettings, Routing, SchedulerSettings
from jaxserve.sim.reference.simulator import ReferenceSimulator
from tests.sim.reference.simulator_inputs import ACCEPTANCE, LinearTimer

KNOBS = Knobs(batch_cap=32, kv_capacity_tokens=6_000)


def conversations(count: int, turns: int, rate: float) -> list[Request]:
    """Requests whose prompts are the conversation so far, in a random order of turns."""
    rng = np.random.default_rng(1)
    order = rng.permutation(np.repeat(np.arange(count), turns))
    turn, requests = np.zeros(count, int), []
    for number, who in enumerate(order):
        turn[who] += 1
        names = tuple(1000 * int(who) + block for block in range(6 * int(turn[who])))
        requests.append(
            Request(
                number,
                number / rate,
                16 * len(names) + 8,
                20,
                acceptance=ACCEPTANCE,
                prefix_ids=np.array(names),
                prefix_tokens=16,
            )
        )
    return requests


def serve(routing: Routing, gpus: int) -> tuple[float, ReferenceSimulator]:
    """Share of the prompt tokens that were found, and the simulator at the end."""
    simulator = ReferenceSimulator(
        ReferenceSettings(
            num_gpus=gpus, routing=routing, scheduler=SchedulerSettings(prefix_caching=True)
        ),
        LinearTimer(0.01),
        KNOBS,
        conversations(40, 5, 8.0),
    )
    simulator.advance(10_000.0, KNOBS)
    log = simulator.log()
    assert np.isfinite(log["finish_s"]).all()
    return float(log["cached_tokens"].sum() / log["prompt_tokens"].sum()), simulator


def test_hits_fall_as_replicas_rise_and_affinity_keeps_them() -> None:
    """Without a word on prefixes a conversation finds its past on one of n engines only; affinity
    finds it."""
    alone, _ = serve(Routing.LEAST_LOADED, 1)
    shares = {routing: serve(routing, 4)[0] for routing in Routing}
    assert shares[Routing.PREFIX_AFFINITY] > 1.3 * shares[Routing.LEAST_LOADED]
    assert shares[Routing.PREFIX_AFFINITY] > 1.3 * shares[Routing.ROUND_ROBIN]
    assert shares[Routing.ROUND_ROBIN] < alone


def test_affinity_spreads_conversations() -> None:
    """Prompts that no engine knows go to one after the other, so that all engines have some."""
    _, simulator = serve(Routing.PREFIX_AFFINITY, 4)
    last = conversations(40, 5, 8.0)[-40:]
    for gpu in simulator._gpus:
        assert any(gpu.engine.cached_tokens(request) for request in last)


def test_round_robin_takes_turns() -> None:
    """Four requests on four engines: each begins at once on its own."""
    simulator = ReferenceSimulator(
        ReferenceSettings(num_gpus=4, routing=Routing.ROUND_ROBIN),
        LinearTimer(0.01),
        KNOBS,
        [Request(i, 0.0, 100, 50, acceptance=ACCEPTANCE) for i in range(4)],
    )
    simulator.advance(0.05, KNOBS)
    assert [gpu.engine.running for gpu in simulator._gpus] == [1, 1, 1, 1]
