"""A test episode of an agent: measured on a real deployment, and predicted by both simulators."""

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
from jaxserve.agents.policy import Policy
from jaxserve.agents.reference_rollout import ReferenceEpisode, episode_traffic, reference_rollout
from jaxserve.agents.rollout import rollout
from jaxserve.agents.task_setup import TaskSetup
from jaxserve.datafiles import read_json
from jaxserve.errors import InputError
from jaxserve.live.engine_client import EngineClient, Target
from jaxserve.live.episode_file import EpisodeWriter
from jaxserve.live.figures import NAMES, Figures, of_reference, of_windows, undecided_at_end
from jaxserve.live.gateway_client import GatewayClient, GatewayError
from jaxserve.live.guard import KnobLimits, as_values
from jaxserve.live.operate import Conduct, Controller
from jaxserve.live.player import RequestOutcome, play, stream_of_class
from jaxserve.live.prompts import RandomPrompts
from jaxserve.live.show import Report
from jaxserve.live.supervisor import Mode, Rules
from jaxserve.seeds import episode_key, episode_keys, policy_key
from jaxserve.sim.reference.request import Request
from jaxserve.spaces import make_action
from jaxserve.studies.live.agents import Prepared
from jaxserve.studies.live.servers import Running

_FIRST_LEASE_WINDOWS = 10.0  # lease of the first knobs, until the controller's first command
_PATIENCE_SHARE = 0.5
_POLL_S = 0.001
_LENIENT = Rules(share=0.0, recover=1)
"""Rules that measure an agent as it is: low goodput is no reason to fall back, and the agent
resumes control in the first window without a fault."""


@dataclass(frozen=True)
class MeasuredEpisode:
    """Measurements of one agent in one repeat."""

    agent: str
    """name of the agent."""
    repeat: int
    """seed of the test episode."""
    outcomes: tuple[RequestOutcome, ...]
    """outcome of every request."""
    seconds: float
    """length of the episode, on the deployment's clock."""
    windows: int
    """control windows of the episode."""
    steered: int
    """windows under the agent's knobs instead of the fallback setting."""
    load: float
    """load average of the machine over the minute before the end."""

    def to_json(self) -> dict[str, Any]:
        """JSON data that ``from_json`` reads."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, path: Path) -> MeasuredEpisode:
        """Reads the file of an earlier call.

        Raises:
          InputError: the file is damaged.
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


@dataclass(frozen=True)
class PredictedEpisode:
    """Figures of an episode in both simulators, on the deployment's clock."""

    fast: Figures
    """figures of the fast simulator."""
    reference: Figures
    """figures of the reference simulator."""

    @classmethod
    def from_json(cls, path: Path) -> PredictedEpisode:
        """Reads the file of an earlier call.

        Raises:
          InputError: the file is damaged.
        """
        fields = [field.name for field in dataclasses.fields(cls)]
        item = checks.JsonObject(read_json(path, str(path)), str(path), fields)
        return cls(**{name: _figures(item.inside(name, NAMES)) for name in fields})


def sent_requests(setup: TaskSetup, repeat: int) -> list[Request]:
    """Requests of a repeat; the simulators face the same requests under the same key."""
    return episode_traffic(setup.env, episode_key(repeat, "test"), int(setup.env.horizon))


async def play_episode(
    prepared: Prepared,
    agent: str,
    repeat: int,
    running: Running,
    log: Path,
    ended: Callable[[int, int], None],
) -> MeasuredEpisode:
    """Operates an idle deployment from the first window of an episode to the last answer.

    The load generator and the controller have separate threads and event loops, so that neither
    waits for the other.

    Args:
      prepared: deployment and agents.
      agent: name of the agent.
      repeat: seed of the test episode.
      running: addresses of the deployment.
      log: log of the controller, overwritten.
      ended: called with the number of finished and of all requests.

    Raises:
      InputError: the deployment cannot be reached, or differs from the task's.
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
        # Compilation before the first window takes seconds.
        while not begun.is_set() and not operating.done():
            await asyncio.sleep(_POLL_S)
        if operating.done():
            operating.result()
        streams = stream_of_class(setup.spec)
        outcomes = await play(client, streams, env.slo, requests, prompts, count)
        await operating
    return MeasuredEpisode(
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
    """Sets the policy's knobs for the first window, as the simulators do.

    The memory of a policy begins with the next window.
    """
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


def predict(prepared: Prepared, agent: str, repeat: int) -> PredictedEpisode:
    """Plays the test episode of a repeat in both simulators."""
    env, policy, key = prepared.setup.env, prepared.policies[agent], episode_key(repeat, "test")
    played = rollout(env, policy, episode_keys(1, "test", first=repeat))
    metrics = jax.tree.map(lambda leaf: np.asarray(leaf[0]), played.timesteps.metrics)
    referenced = reference_rollout(env, policy, key, prepared.cost)
    log, undecided = referenced.log, undecided_at_end(referenced.metrics)
    good = ReferenceEpisode(env, key, prepared.cost).meets_slo(log)
    seconds = int(env.horizon) * float(env.window_s)
    return PredictedEpisode(of_windows(env, metrics), of_reference(log, good, undecided, seconds))


def _figures(item: checks.JsonObject) -> Figures:
    values = {n: float("nan") if item.get(n) is None else item.number(n, 0) for n in NAMES}
    return Figures(**values)
