"""Policies that scale: what they observe of a running fleet, and what becomes of their answers."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxserve.agents.panel import build_agent
from jaxserve.agents.task_setup import TaskSetup, load_setup
from jaxserve.errors import InputError
from jaxserve.live.fleet import LiveFleet
from jaxserve.live.replicas.policy_autoscaler import PolicyAutoscaler
from jaxserve.live.replicas.scaler import Scaler
from jaxserve.spaces import make_action
from jaxserve.types import ServeAction, ServeObservation
from tests.live.deployment import window_answer
from tests.live.replicas.test_scaler import FakeActuator

PLACES = 8


@pytest.fixture(scope="module")
def setup() -> TaskSetup:
    """A built-in fleet, of eight places."""
    return load_setup("fleet_chat")


@dataclass(frozen=True)
class Watcher:
    """Wants what ``of`` says of an observation."""

    of: Callable[[ServeObservation], jax.Array]

    def init(self, env: Any) -> jax.Array:
        """Nothing to remember."""
        return jnp.float32(0.0)

    def act(self, env: Any, memory: jax.Array, seen: ServeObservation, key: Any) -> Any:
        """The number, in an action."""
        wanted = self.of(seen)
        return make_action(batch_cap=64).replace(replicas=wanted.astype(jnp.int32)), memory


def state(serving: int, starting: int = 0) -> LiveFleet:
    """A fleet of which so many replicas serve and start."""
    names = [f"vllm-{place}" for place in range(PLACES)]
    up = {"running": 2.0, "waiting": 1.0, "kv_use": 0.25, "kv_tokens": 1e5, "preemptions": 3.0}
    return LiveFleet(
        window=window_answer(arrivals=15),
        metrics={n: up if i < serving else {"error": "away"} for i, n in enumerate(names)},
        names=names,
        in_flight=[2 if i < serving else 0 for i in range(PLACES)],
        named_serving=[i < serving for i in range(PLACES)],
        queued=0,
        size=serving + starting,
    )


def wanted(setup: TaskSetup, of: Callable[[ServeObservation], jax.Array], seen: LiveFleet) -> int:
    """The answer of a watcher to one window."""
    policy: Any = Watcher(of)
    return PolicyAutoscaler(setup, policy).wanted(seen)


def test_it_sees_the_fleet(setup: TaskSetup) -> None:
    """Replicas that serve and start are what they are in episodes, and so is a new window."""
    fleet = state(3, starting=2)
    assert wanted(setup, lambda seen: seen.replicas_ready, fleet) == 3
    assert wanted(setup, lambda seen: seen.replicas_starting, fleet) == 2
    assert wanted(setup, lambda seen: seen.step_index, fleet) == 1
    assert wanted(setup, lambda seen: 100.0 * seen.reconfiguring, fleet) == PLACES  # 0 is all


def test_cost_is_that_of_the_replicas_that_are_paid(setup: TaskSetup) -> None:
    """Places that do not run cost nothing."""
    usd = float(setup.env.deployment.cost_usd(1.0, 0.0, 1.0))

    def ratio(seen: ServeObservation) -> jax.Array:
        """One for the cost of a replica in a window, two for that of two."""
        return jnp.round(seen.cost_so_far / usd)

    few, many = (wanted(setup, ratio, state(1, starting=more)) for more in (0, 2))
    assert few < many


@pytest.mark.parametrize(("answer", "replicas"), [(0, 8), (1, 1), (20, 8), (-3, 1)])
def test_answers_stay_in_bounds(answer: int, replicas: int, setup: TaskSetup) -> None:
    """0 stands for all replicas."""
    assert wanted(setup, lambda seen: jnp.float32(answer), state(2)) == replicas


@pytest.mark.parametrize("agent", ["ppo", "best_rule"])
def test_packaged_agents_answer(agent: str, setup: TaskSetup) -> None:
    """The learned one and the tuned rule, window after window; a fleet that is idle shrinks."""
    autoscaler = PolicyAutoscaler(setup, build_agent(agent, setup))
    answers = [autoscaler.wanted(state(4)) for _ in range(40)]
    assert all(1 <= answer <= PLACES for answer in answers) and answers[-1] < 4


class OneWindow:
    """A gateway whose window stays the same."""

    def __init__(self, serving: int) -> None:
        """So many engines answer."""
        self.serving, self.now_s = serving, 0.0

    async def window(self, since_s: float | None, slices: int) -> dict[str, Any]:
        """The next window."""
        self.now_s += 15.0
        fleet = state(self.serving)
        engines = [
            {"name": name, "running": 0, "serving": place < self.serving}
            for place, name in enumerate(fleet.names)
        ]
        pools = {"default": {"waiting": 0, "engines": engines}}
        times = {"since_s": self.now_s - 15.0, "until_s": self.now_s}
        return dict(fleet.window) | times | {"pools": pools, "slo_attainment": None}

    async def engines(self) -> Any:
        """Their metrics."""
        return state(self.serving).metrics

    async def serve_with(self, engines: list[str]) -> dict[str, Any]:
        """Nothing to do."""
        return {}


def test_the_last_answer_stands_while_there_is_none(setup: TaskSetup) -> None:
    """A policy whose output is no number, and a fleet of which no engine answers."""

    @dataclass(frozen=True)
    class Breaks(Watcher):
        def act(self, env: Any, memory: jax.Array, seen: ServeObservation, key: Any) -> Any:
            late = jnp.where(seen.step_index > 1, jnp.nan, 0.0)
            action: ServeAction = make_action(batch_cap=64)
            return dataclasses.replace(action, replicas=jnp.int32(3)), memory + late

    policy: Any = Breaks(lambda seen: seen.step_index)
    gateway, actuator = OneWindow(2), FakeActuator(2)
    stand_in: Any = gateway
    scaler = Scaler(PolicyAutoscaler(setup, policy), stand_in, actuator, acts=True, drain_s=1.0)

    async def play() -> list[tuple[int | None, str | None]]:
        await scaler.window()
        found = [await scaler.window() for _ in range(2)]
        gateway.serving, actuator.count = 0, 0
        found.append(await scaler.window())
        return [(one.wanted, one.error) for one in found]

    assert asyncio.run(play()) == [
        (3, None),
        (3, "the policy's output is not finite"),
        (3, "no engine that serves shows its metrics"),
    ]
    assert actuator.count == 3


def test_tasks_that_cannot_scale() -> None:
    """Without a fleet, or with knobs that the command does not turn."""
    policy: Any = Watcher(lambda seen: seen.step_index)
    with pytest.raises(InputError, match="bursty_workload, whose replicas serve all the time"):
        PolicyAutoscaler(load_setup("bursty_workload"), policy)
    with pytest.raises(InputError, match="fleet_reasoning, which opens batch_cap too"):
        PolicyAutoscaler(load_setup("fleet_reasoning"), policy)
