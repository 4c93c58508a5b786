"""One agent on one test episode of a real deployment: operated, while the traffic is sent."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxserve import checks
from jaxserve.agents.panel import TaskSetup
from jaxserve.agents.policy import Policy
from jaxserve.agents.reference_rollout import episode_traffic
from jaxserve.datafiles import read_json
from jaxserve.errors import InputError
from jaxserve.live.engine_client import EngineClient, Target
from jaxserve.live.episode_file import EpisodeWriter
from jaxserve.live.gateway_client import GatewayClient, GatewayError
from jaxserve.live.guard import KnobLimits, as_values
from jaxserve.live.operate import Conduct, Controller
from jaxserve.live.player import RequestOutcome, play
from jaxserve.live.prompts import RandomPrompts
from jaxserve.live.show import Report
from jaxserve.live.study.agents import Prepared
from jaxserve.live.study.servers import Running
from jaxserve.live.supervisor import Mode, Rules
from jaxserve.seeds import episode_key, policy_key
from jaxserve.sim.reference.request import Request
from jaxserve.spaces import make_action

_FIRST_LEASE_WINDOWS = 10.0  # outlives the wait for the controller's first command
_PATIENCE_SHARE = 0.5
_LOOK_S = 0.001
_LENIENT = Rules(share=0.0, recover=1)
"""An agent is measured as it is: it keeps the wheel even where goodput is low, and gets it back in
the first window without a fault."""


@dataclass(frozen=True)
class Episode:
    """What was measured of one agent in one repeat."""

    agent: str
    repeat: int
    """seed of the test episode."""
    outcomes: tuple[RequestOutcome, ...]
    seconds: float
    """length of the episode, on the deployment's clock."""
    windows: int
    steered: int
    """windows in which the agent, and not the setting to fall back to, was in force."""
    load: float
    """of the machine, processes that ran or waited in the minute before the end."""

    def to_json(self) -> dict[str, Any]:
        """As ``from_json`` reads it."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, path: Path) -> Episode:
        """A file of an earlier call.

        Raises:
          InputError: it is damaged.
        """
        fields = [field.name for field in dataclasses.fields(cls)]
        item = checks.JsonObject(read_json(path, str(path)), str(path), fields)
        try:
            outcomes = tuple(RequestOutcome(**each) for each in item.entries("outcomes"))
        except TypeError:
            raise InputError(f"{path} holds outcomes of another version; remove it") from None
        return cls(
            agent=item.text("agent"),
            repeat=item.whole("repeat", 0),
            outcomes=outcomes,
            seconds=item.positive("seconds"),
            windows=item.whole("windows", 1),
            steered=item.whole("steered", 0),
            load=item.number("load", 0),
        )


def sent_requests(setup: TaskSetup, repeat: int) -> list[Request]:
    """The very requests of a repeat, which the simulators face under the same key."""
    return episode_traffic(setup.env, episode_key(repeat, "test"), int(setup.env.horizon))


async def play_episode(
    prepared: Prepared,
    agent: str,
    repeat: int,
    running: Running,
    log: Path,
    ended: Callable[[int, int], None],
) -> Episode:
    """Operates a deployment that is idle, from its first window to the last answer.

    The load generator and the controller have threads and event loops of their own, so that
    neither waits for the other.

    Args:
      log: of the controller, written anew.
      ended: told how many requests are over, and how many there are.

    Raises:
      InputError: the deployment cannot be reached, or is not that of the task.
    """
    setup, env = prepared.setup, prepared.setup.env
    policy, windows = prepared.policies[agent], int(env.horizon)
    requests = sent_requests(setup, repeat)
    begun = threading.Event()
    reports: list[Report] = []
    log.unlink(missing_ok=True)

    async def operate() -> None:
        header = {"task": setup.spec.name, "inputs": dict(setup.inputs), "agent": agent}
        header |= {"mode": str(Mode.FREE), "repeat": repeat}
        static = make_action(**as_values(env.locked) | dict(prepared.static))
        with EpisodeWriter(log, header) as writer:
            async with GatewayClient(
                running.control_url, patience_s=_PATIENCE_SHARE * env.window_s
            ) as gateway:
                await _first_action(setup, policy, repeat, gateway)
                conduct = Conduct(Mode.FREE, rules=_LENIENT)
                controller = Controller(setup, policy, static, gateway, writer, conduct)
                await controller.run(windows, reports.append, begun.set)

    done = 0

    def count(outcome: RequestOutcome) -> None:
        nonlocal done
        done += 1
        ended(done, len(requests))

    prompts = RandomPrompts(repeat)
    async with EngineClient(Target(running.gateway_url)) as client:
        await prompts.learn(client)
        operating = asyncio.create_task(asyncio.to_thread(lambda: asyncio.run(operate())))
        # Before the first window everything is compiled, which takes seconds.
        while not begun.is_set() and not operating.done():
            await asyncio.sleep(_LOOK_S)
        if operating.done():
            operating.result()
        outcomes = await play(client, env, setup.spec, requests, prompts, count)
        await operating
    return Episode(
        agent=agent,
        repeat=repeat,
        outcomes=tuple(outcomes),
        seconds=windows * float(env.window_s),
        windows=windows,
        steered=sum(report.reason is None for report in reports),
        load=os.getloadavg()[0],
    )


async def _first_action(
    setup: TaskSetup, policy: Policy, repeat: int, gateway: GatewayClient
) -> None:
    """Puts the knobs that the policy chooses before the first window, as in the simulators; what a
    policy remembers begins with the window after it."""
    env, key = setup.env, episode_key(repeat, "test")
    _, start = env.reset(key)
    action, _ = policy.act(env, policy.init(env), start.observation, policy_key(key, 0))
    action = jax.tree.map(np.asarray, env.effective_action(action))
    try:
        knobs = await gateway.knobs()
        values = KnobLimits.of(knobs["knobs"], setup.spec.knobs).nearest(as_values(action))
        await gateway.put(values, _FIRST_LEASE_WINDOWS * env.window_s)
    except GatewayError as error:
        raise InputError(str(error)) from None
