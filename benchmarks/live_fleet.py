"""``python -m benchmarks.live_fleet``: a day of demand on replicas that are started and stopped.

A tuned rule and a policy scale mock engines behind the gateway, in processes of this machine, by
the controller of ``jaxserve scale``. The clock of the engines runs ``--speed`` times as fast as
the host's, and what the gateway measures is told to the controller in the engines' time. The
reference simulator plays the same requests under the same rule and policy.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.page import page_parser, publish
from jaxserve import checks
from jaxserve.agents.panel import build_agent
from jaxserve.agents.policy import Policy
from jaxserve.agents.reference_rollout import ReferenceEpisode, episode_traffic, reference_rollout
from jaxserve.agents.rule_advice import AdvisingRule
from jaxserve.agents.scaling import ScalingPolicy, rule_of_setting
from jaxserve.agents.task_setup import TaskSetup, load_setup
from jaxserve.learning.ppo import Learner
from jaxserve.learning.returns import task_discount
from jaxserve.learning.run_options import check_run
from jaxserve.live.engine_client import EngineClient, Target
from jaxserve.live.gateway_client import GatewayClient
from jaxserve.live.player import RequestOutcome, play, stream_of_class
from jaxserve.live.prompts import RandomPrompts
from jaxserve.live.replicas.local_processes import LocalProcesses
from jaxserve.live.replicas.policy_autoscaler import PolicyAutoscaler
from jaxserve.live.replicas.scaler import Scaler, ScalingWindow
from jaxserve.runtime.child_processes import child_server, free_ports, ports_in_a_row
from jaxserve.seeds import episode_key
from jaxserve.show.terminal import progress_bars
from jaxserve.sim.fast.state import Slo
from jaxserve.sim.machine.cost_model import CostModel
from jaxserve.sim.reference.request import Request
from jaxserve.sim.table.build import build
from jaxserve.sim.table.file import write_table_file

PLACES, TENSOR_PARALLEL, BATCH_CAP = 4, 8, 6
MODEL, HARDWARE = "llama-3.1-70b", "l40s-48gb"
START_S, DRAIN_S = 300.0, 300.0
DAY_S, WINDOW_S = 86_400.0, 15.0
TASK: Mapping[str, Any] = {
    "spec_version": 1,
    "version": 1,
    "title": "Fleet of document readers",
    "difficulty": "fleet",
    "description": "Four replicas of eight L40S read long documents; the rate follows the hours.",
    "hardware": HARDWARE,
    "model": MODEL,
    "deployment": {
        "num_gpus": PLACES,
        "tensor_parallel": TENSOR_PARALLEL,
        "queue_capacity": 4096,
        "fleet": {"start_s": [START_S, START_S], "drain_s": DRAIN_S},
    },
    "knobs": ["replicas"],
    "locked": {"batch_cap": BATCH_CAP},
    "horizon": 960,
    "window_s": WINDOW_S,
    "ticks": 8,
    "streams": [
        {
            "name": "documents",
            "prompt": {"kind": "lognormal", "mu": 9.3, "sigma": 0.5, "low": 1024, "high": 30000},
            "output": {"kind": "lognormal", "mu": 3.9, "sigma": 0.5, "low": 8, "high": 400},
            "acceptance": "sharegpt/eagle",
            "ttft_slo_s": 20.0,
            "tpot_slo_s": 1.0,
        }
    ],
    "demand": {"name": "servegen_chat", "streams": {"documents": "long"}},
    "regimes": [
        {"name": "day", "rate_rps": 0.22, "mix": {"documents": 1.0}, "dwell_s": [DAY_S, DAY_S]}
    ],
    "objective": {"memory_limit_gib": 384, "cost_weight": 0.5},
}
"""Few requests, each of much work, so that a day passes in half an hour on two cores."""
PPO_STEPS = 4_000_000
AGENTS = ("best_rule", "ppo")
_TIMES = ("itl_mean_s", "itl_p50_s", "itl_p99_s", "ttft_p50_s", "ttft_p99_s", "tpot_mean_s")
_GATEWAY_LIMITS = (
    "--look-ahead",
    "0",
    "--queue",
    "100000",
    "--queue-s",
    "3600",
    "--max-requests",
    "100000",
)


@dataclass(frozen=True)
class Outcome:
    """A day of an agent."""

    attainment: float
    """share of the requests inside both objectives."""
    replica_hours: float
    """hours of replicas that were paid for."""
    changes: int
    """windows in which another number was wanted than before."""


class FasterGateway:
    """A gateway whose times are told in the time of engines that run ``speed`` times as fast."""

    def __init__(self, gateway: GatewayClient, speed: float) -> None:
        self._gateway, self._speed = gateway, speed
        self.engines, self.serve_with = gateway.engines, gateway.serve_with

    async def window(self, since_s: float | None, slices: int) -> dict[str, Any]:
        """See ``GatewayClient.window``."""
        asked = None if since_s is None else since_s / self._speed
        window = await self._gateway.window(asked, slices)
        self._stretch(window, ("since_s", "until_s", *_TIMES))
        for one in window["classes"].values():
            self._stretch(one, _TIMES)
            one["ttft_s"] = [self._speed * each for each in one["ttft_s"]]
        return window

    def _stretch(self, data: dict[str, Any], names: Sequence[str]) -> None:
        for name in names:
            if data.get(name) is not None:
                data[name] *= self._speed


def prepared(folder: Path) -> tuple[TaskSetup, CostModel]:
    """The task on a table of its own."""
    task, table = folder / "documents.json", folder / "documents.parquet"
    task.write_text(json.dumps(TASK))
    file = build(HARDWARE, MODEL, tensor_parallel=TENSOR_PARALLEL)
    write_table_file(table, file)
    return load_setup(str(task), table=str(table)), file.metadata.cost_model


def agents(setup: TaskSetup, names: Sequence[str]) -> dict[str, Policy]:
    """The best rule, tuned on training days, and PPO, which starts from it, as far as named."""
    with progress_bars() as progress:
        rule = build_agent("best_rule", setup, progress)
        assert isinstance(rule, ScalingPolicy)
        if "ppo" not in names:
            return {"best_rule": rule}
        advice = AdvisingRule(*rule_of_setting(rule.setting()))
        env = setup.training_env
        config = check_run(
            PPO_STEPS, 0, 1, 1024, 2e-3, task_discount(env), horizon=TASK["horizon"], demand=True
        )
        learner = Learner.create(env, config, rule=advice)
        state, update = learner.init(jax.random.key(0)), jax.jit(learner.update)
        for number in range(config.updates):
            state, _ = jax.block_until_ready(update(state))
            progress("training", number + 1, config.updates)
    found: dict[str, Policy] = {"best_rule": rule, "ppo": learner.policy(state)}
    return {name: found[name] for name in names}


def simulated(setup: TaskSetup, cost: CostModel, policy: Policy, windows: int) -> Outcome:
    """The test day in the reference simulator."""
    key = episode_key(0, "test")
    played = reference_rollout(setup.env, policy, key, cost, windows)
    good = ReferenceEpisode(setup.env, key, cost, windows).meets_slo(played.log)
    judged = played.log["arrival_s"] < _judged_until(windows)
    rented = np.asarray(played.metrics.replicas_rented, np.float64)
    wanted = np.asarray(played.actions.replicas)
    return Outcome(
        attainment=float(good[judged].mean()),
        replica_hours=float(rented.sum()) * WINDOW_S / 3600.0,
        changes=int((wanted[1:] != wanted[:-1]).sum()),
    )


def _judged_until(windows: int) -> float:
    """Arrivals after it may not end inside the day, s."""
    return WINDOW_S * windows - 600.0


@contextlib.contextmanager
def running_gateway(ports: Sequence[int], speed: float, log: Path) -> Iterator[tuple[str, str]]:
    """A gateway with an engine for every place; gives its address and that of its control."""
    port, control = free_ports(2)
    stream = TASK["streams"][0]
    slo = f"{stream['name']}:" + ",".join(
        f"{name}={stream[f'{name}_slo_s'] / speed!r}" for name in ("ttft", "tpot")
    )
    command = [
        *(sys.executable, "-m", "jaxserve.cli", "gateway", "--slo", slo, *_GATEWAY_LIMITS),
        *(
            word
            for one in ports
            for word in ("--engine", f"vllm=http://127.0.0.1:{one},cap={BATCH_CAP}")
        ),
        *("--port", str(port), "--control-port", str(control)),
    ]
    urls = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{control}"
    with (
        log.open("wb") as out,
        child_server(command, f"{urls[1]}/control/state", stdout=out, stderr=out),
    ):
        yield urls


async def scaled(
    setup: TaskSetup,
    policy: Policy,
    control_url: str,
    actuator: LocalProcesses,
    speed: float,
    windows: int,
    begun: threading.Event,
) -> list[ScalingWindow]:
    """Scales from the start of the traffic to the end of the day."""
    found = []
    autoscaler = PolicyAutoscaler(setup, policy)
    async with GatewayClient(control_url) as client:
        gateway: Any = FasterGateway(client, speed)
        scaler = Scaler(autoscaler, gateway, actuator, acts=True, drain_s=DRAIN_S / speed)
        await actuator.resize(PLACES)
        while not all("error" not in one for one in (await client.engines()).values()):
            await asyncio.sleep(0.2)
        begun.set()
        start_s = time.monotonic()
        await scaler.window()
        for number in range(1, windows + 1):
            await asyncio.sleep(start_s + number * WINDOW_S / speed - time.monotonic())
            found.append(await scaler.window())
    return found


async def measured(
    setup: TaskSetup, policy: Policy, speed: float, windows: int, folder: Path
) -> tuple[Outcome, list[RequestOutcome], list[ScalingWindow]]:
    """The test day on engines that are started and stopped."""
    folder.mkdir(parents=True)
    ports = ports_in_a_row(PLACES)
    engine = [
        *(sys.executable, "-m", "benchmarks.late_engine", "--port", "{port}"),
        *("--model", MODEL, "--hardware", HARDWARE, "--tensor-parallel", str(TENSOR_PARALLEL)),
        *("--batch-cap", str(BATCH_CAP), "--speed", f"{speed:g}"),
        *("--start-s", str(START_S)),
    ]
    actuator = LocalProcesses(" ".join(engine), ports[0], folder / "replicas")
    requests = [
        dataclasses.replace(one, arrival_s=one.arrival_s / speed)
        for one in episode_traffic(setup.env, episode_key(0, "test"), windows)
    ]
    slo = Slo(*(jnp.asarray(each) / speed for each in (setup.env.slo.ttft_s, setup.env.slo.tpot_s)))
    begun, prompts = threading.Event(), RandomPrompts(0)
    with running_gateway(ports, speed, folder / "gateway.log") as (url, control_url):
        scaling = asyncio.create_task(
            asyncio.to_thread(
                lambda: asyncio.run(
                    scaled(setup, policy, control_url, actuator, speed, windows, begun)
                )
            )
        )
        try:
            while not begun.is_set() and not scaling.done():
                await asyncio.sleep(0.001)
            if scaling.done():
                scaling.result()
            async with EngineClient(Target(url)) as client:
                outcomes = await _sent(client, setup, slo, requests, prompts)
            decisions = await scaling
        finally:
            await actuator.resize(0)
    judged = [one for one in outcomes if one.arrival_s * speed < _judged_until(windows)]
    wanted = [one.wanted for one in decisions]
    hours = sum(one.size or 0 for one in decisions) * WINDOW_S / 3600.0
    return (
        Outcome(
            attainment=float(np.mean([one.good for one in judged])),
            replica_hours=hours,
            changes=sum(one != two for one, two in pairwise(wanted)),
        ),
        outcomes,
        decisions,
    )


async def _sent(
    client: EngineClient,
    setup: TaskSetup,
    slo: Slo,
    requests: Sequence[Request],
    prompts: RandomPrompts,
) -> list[RequestOutcome]:
    with progress_bars() as progress:
        done = 0

        def ended(outcome: RequestOutcome) -> None:
            nonlocal done
            done += 1
            if done % 20 == 0:
                progress("requests", done, len(requests))

        return await play(client, stream_of_class(setup.spec), slo, requests, prompts, ended)


def page(hours: float, speed: float, names: Sequence[str], folder: Path) -> str:
    """Plays the agents and prints each as it is known; Markdown."""
    checks.number("--hours", hours, 0.5, DAY_S / 3600.0)
    checks.number("--speed", speed, 1.0, 200.0)
    for name in names:
        checks.one_of("--agents", name, AGENTS)
    windows = round(hours * 3600.0 / WINDOW_S)
    setup, cost = prepared(folder)
    rows = []
    for name, policy in agents(setup, names).items():
        expected = simulated(setup, cost, policy, windows)
        print(name, "reference", expected, flush=True)
        found, outcomes, decisions = asyncio.run(
            measured(setup, policy, speed, windows, folder / name)
        )
        print(name, "live", found, flush=True)
        ttft_s = [speed * one.ttft_s for one in outcomes if one.ttft_s is not None]
        print(name, "TTFT p50, p90, p99", np.percentile(ttft_s, (50, 90, 99)), flush=True)
        late_s = speed * np.percentile([one.late_s for one in outcomes], 99)
        failed = sum(one.error is not None for one in outcomes)
        errors = sum(one.error is not None for one in decisions)
        rows.append(
            f"| {name} | {len(outcomes):,} | {failed} | {expected.attainment:.2%} | "
            f"{found.attainment:.2%} | {expected.replica_hours:.1f} | {found.replica_hours:.1f} | "
            f"{found.replica_hours / expected.replica_hours - 1.0:+.1%} | {expected.changes} | "
            f"{found.changes} | {late_s:.2f} | {errors} |"
        )
    return "\n".join([_head(hours, speed, names), *rows, ""])


def _head(hours: float, speed: float, names: Sequence[str]) -> str:
    return f"""\
# Live fleets

Printed by
`python -m benchmarks.live_fleet --agents {" ".join(names)} --hours {hours:g} --speed {speed:g}`:
demand on up to {PLACES} replicas of {MODEL} on {TENSOR_PARALLEL} x {HARDWARE} each.
The replicas are mock engines in processes of their own behind the gateway, {speed:g} times as fast
as the clock, on {os.cpu_count()} cores. Every replica starts in {START_S:g} s, so that no draw of
start-ups tells the two sides apart. Agents were tuned or trained on other days; the controller of
`jaxserve scale` lets them act. *Late* is the 99th percentile of the time by which requests were
sent late, in seconds of the engines. The aim is 5 % between the reference simulator and the live
fleet.

| agent | requests | failed | met, reference | met, live | replica hours, reference | live | \
difference | changes, reference | live | late | windows with an error |
| --- | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: |"""


def main() -> int:
    """Plays the day and prints the page; exit code 2 after bad input."""
    parser = page_parser("benchmarks.live_fleet", __doc__)
    parser.add_argument("--hours", type=float, default=24.0, help="hours of the day")
    parser.add_argument("--agents", nargs="+", default=AGENTS, help="best_rule, ppo, or both")
    parser.add_argument("--speed", type=float, default=40.0, help="engines' seconds in one")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        return publish(
            lambda: page(arguments.hours, arguments.speed, arguments.agents, Path(name)),
            arguments.markdown,
        )


if __name__ == "__main__":
    sys.exit(main())
