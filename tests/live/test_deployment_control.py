"""A fleet under the controller: replicas are a knob beside the others, and come and go."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest

from jaxserve.agents.task_setup import TaskSetup
from jaxserve.errors import InputError
from jaxserve.live.deployment_control import DeploymentControl
from jaxserve.live.episode_file import EpisodeWriter, read_episode
from jaxserve.live.fleet import ActuatorError, FleetControl
from jaxserve.live.operate import Conduct, Controller
from jaxserve.live.show import Report
from jaxserve.live.supervisor import Mode, Rules
from jaxserve.spaces import make_action
from tests.live.deployment import PLACES, Deployment, engines_answer, fleet_with, virtual
from tests.live.faults import FAULTS

START_WINDOWS = 2
Script = dict[int, Callable[["ScaledDeployment"], object]]


class ScaledDeployment(Deployment):
    """Three places behind a gateway, and their actuator: a replica answers two windows after its
    start."""

    def __init__(self, running: int = 1, start_windows: int = START_WINDOWS) -> None:
        super().__init__()
        self.start_windows = start_windows
        self.age = [start_windows if place < running else None for place in range(PLACES)]
        """windows since the start of each place; None where nothing runs."""
        self.named = [True] * PLACES
        self.sizes: list[int] = []
        """every number of replicas that was asked for."""
        self.tokens = [1e6 * place for place in range(PLACES)]
        self.fails: str | None = None

    @property
    def up(self) -> list[bool]:
        return [age is not None and age >= self.start_windows for age in self.age]

    def name(self, place: int) -> str:
        return f"vllm-{place}"

    async def window(self, since_s: float | None, slices: int) -> dict[str, Any]:
        answer = await super().window(since_s, slices)
        self.age = [None if age is None else age + 1 for age in self.age]
        engines = [
            {"name": self.name(place), "running": 0, "serving": self.named[place]}
            for place in range(PLACES)
        ]
        return answer | {"pools": {"default": {"waiting": 0, "engines": engines}}}

    async def engines(self) -> Any:
        self._answer()
        found: dict[str, Any] = {}
        for place, up in enumerate(self.up):
            self.tokens[place] += 100.0 * up
            one = engines_answer(output_tokens=self.tokens[place], **self.engine_fields)["vllm-0"]
            found[self.name(place)] = one if up else {"error": "cannot be reached"}
        return found

    async def serve_with(self, engines: list[str]) -> dict[str, Any]:
        self._answer()
        self.named = [self.name(place) in engines for place in range(PLACES)]
        return {}

    async def size(self) -> int:
        if self.fails:
            raise ActuatorError(self.fails)
        return max((p + 1 for p, age in enumerate(self.age) if age is not None), default=0)

    async def resize(self, count: int) -> None:
        self.sizes.append(count)
        old = self.age
        self.age = [(old[p] or 0) if p < count else None for p in range(PLACES)]


@dataclass(frozen=True)
class Wants:
    """A policy with a number of replicas for every window; the last one stays."""

    replicas: tuple[int, ...]
    name: str = field(default="wants", init=False)

    def init(self, env: Any) -> Any:
        del env
        return ()

    def act(self, env: Any, memory: Any, observation: Any, key: Any) -> Any:
        del env, key
        last = len(self.replicas) - 1
        window = jnp.clip(observation.step_index.astype(jnp.int32) - 1, 0, last)
        action = make_action(batch_cap=40, kv_budget_fraction=0.9)
        return action.replace(replicas=jnp.asarray(self.replicas, jnp.int32)[window]), memory


@pytest.fixture(scope="module")
def fleet_setup(tmp_path_factory: pytest.TempPathFactory) -> TaskSetup:
    """A task that opens replicas."""
    return fleet_with(tmp_path_factory.mktemp("fleet"), "replicas")


@dataclass
class Run:
    """What came of operating a fleet."""

    deployment: ScaledDeployment
    log: Path
    reports: list[Report] = field(default_factory=list)

    @property
    def reasons(self) -> list[str | None]:
        return [report.reason for report in self.reports]

    def seen(self, name: str) -> list[float]:
        """An entry of the observation, window by window."""
        lines = map(json.loads, self.log.read_text().splitlines())
        return [line["observation"][name] for line in lines if line["kind"] == "window"]


@pytest.fixture
def run(
    fleet_setup: TaskSetup, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., Run]:
    """Operates a fleet for some windows: ``run(8, replicas=(1, 3))``."""

    def play(
        windows: int,
        replicas: tuple[int, ...],
        script: Script | None = None,
        mode: Mode = Mode.FREE,
        running: int = 1,
        start_windows: int = START_WINDOWS,
        setup: TaskSetup = fleet_setup,
    ) -> Run:
        deployment = ScaledDeployment(running, start_windows)
        found = Run(deployment, tmp_path / "log.jsonl")

        def tell(report: Report) -> None:
            found.reports.append(report)
            (script or {}).get(report.window, lambda one: None)(deployment)

        async def operate() -> None:
            with EpisodeWriter(found.log, {"task": setup.spec.name}) as log:
                client: Any = deployment
                scales = "replicas" in setup.spec.knobs
                policy: Any = Wants(replicas)
                conduct = Conduct(mode, Rules(recover=2, fewest=1e9))
                static = make_action(batch_cap=48, kv_budget_fraction=1.0).replace(
                    replicas=jnp.int32(2)
                )
                fleet = FleetControl(client, client if scales else None, PLACES, 5.0)
                controller = Controller(setup, policy, static, client, log, conduct, fleet)
                await controller.run(windows, tell)

        virtual(monkeypatch, deployment)
        asyncio.run(operate())
        return found

    return play


@pytest.mark.slow
def test_replicas_are_turned_beside_the_other_knobs(run: Callable[..., Run]) -> None:
    """More start and serve when they answer, fewer drain and end; none of that is a fault, and the
    observation shows it."""
    played = run(12, replicas=(3, 3, 3, 3, 3, 1))
    assert played.reasons == [None] * 12
    assert played.deployment.sizes[0] == 3 and played.deployment.sizes[-1] == 1
    assert played.deployment.age[1:] == [None, None]
    assert {command["batch_cap"] for command in played.deployment.commands if command} == {40}
    ready, starting = played.seen("replicas_ready"), played.seen("replicas_starting")
    assert ready[0] == 1 and max(ready) == PLACES and ready[-1] == 1
    assert max(starting) == 2 and starting[-1] == 0
    assert all("replicas" not in command for command in played.deployment.commands if command)


def test_an_engine_that_joins_brings_no_tokens_of_its_past(run: Callable[..., Run]) -> None:
    """Replicas that have counted a million tokens and serve again add what they count from then."""
    rates = run(8, replicas=(3,)).seen("throughput_tps")
    assert max(rates) < 1000.0


def test_a_draining_replica_is_kept_for_a_window(run: Callable[..., Run]) -> None:
    """Requests may have come to it between its reading and the word to the gateway."""
    sizes = run(4, replicas=(1,), running=2).deployment.sizes
    assert sizes[:2] == [2, 1]


def test_expectations_are_those_of_the_replicas(
    run: Callable[..., Run], fleet_setup: TaskSetup
) -> None:
    """The log has the number that was asked for and what is paid; the episode can be read again."""
    played = run(6, replicas=(3,))
    episode = read_episode(played.log, fleet_setup.env)
    assert [float(x) for x in episode.rollout.actions.replicas[0]] == [1, 3, 3, 3, 3, 3]
    rented = [float(x) for x in episode.rollout.timesteps.metrics.replicas_rented[0]]
    assert rented == [1, 3, 3, 3, 3, 3]
    comparison = played.reports[-1].comparison
    assert comparison is not None and comparison.in_force.good > 0.0
    assert episode.notes[-1]["echo"]["replicas"] == {"how": "exact", "asked": 3.0, "now": 3.0}


def test_shadow_scales_nothing(run: Callable[..., Run]) -> None:
    """It says what it would do."""
    played = run(4, replicas=(3,), mode=Mode.SHADOW)
    assert played.deployment.sizes == [] and played.deployment.named == [True] * PLACES
    assert played.reports[-1].command["replicas"] == 3


def test_guarded_goes_down_by_one(run: Callable[..., Run]) -> None:
    """And up at once."""
    played = run(8, replicas=(3, 3, 3, 3, 1), mode=Mode.GUARDED)
    commands = [report.command["replicas"] for report in played.reports]
    assert commands == [3, 3, 3, 3, 2, 1, 1, 1]


def test_a_fault_brings_the_static_number(run: Callable[..., Run]) -> None:
    """An actuator that cannot count, until it can again."""
    script: Script = {
        3: lambda one: setattr(one, "fails", "no cluster answers"),
        4: lambda one: setattr(one, "fails", None),
    }
    played = run(10, replicas=(3,), script=script)
    assert played.reasons[3] == "no cluster answers"
    assert 2 in played.deployment.sizes and played.deployment.sizes[-1] == 3
    assert played.reasons[-1] is None


@pytest.mark.parametrize(
    "what", sorted(set(FAULTS) - {"the engine was restarted", "a counter went back"})
)
def test_any_fault_of_a_fleet(what: str, run: Callable[..., Run]) -> None:
    """The fault is told, and the policy steers again after it. An engine that starts anew is no
    fault of a fleet."""
    happen, end, why = FAULTS[what]
    played = run(14, replicas=(2,), script={3: happen, 4: end})
    assert any(why.removeprefix("vllm-0: ") in (reason or "") for reason in played.reasons)
    assert played.reasons[-1] is None and played.deployment.up[:2] == [True, True]


def test_replicas_that_died_are_replaced(run: Callable[..., Run]) -> None:
    """All of them at once: no engine shows its metrics, and the static number is started."""

    def die(one: ScaledDeployment) -> None:
        one.age = [None] * PLACES

    played = run(12, replicas=(3,), script={3: die})
    assert played.reasons[3] is not None and "no engine shows its metrics" in played.reasons[3]
    assert played.deployment.up == [True] * PLACES and played.reasons[-1] is None


def test_a_fleet_that_is_off_is_started(run: Callable[..., Run]) -> None:
    """With the static number, before the first window; a shadow starts nothing and says why."""
    played = run(4, replicas=(3,), running=0)
    assert played.deployment.sizes[0] == 2 and played.reasons == [None] * 4
    with pytest.raises(InputError, match="no engine shows its metrics"):
        run(4, replicas=(3,), running=0, mode=Mode.SHADOW)


def test_a_fleet_that_does_not_start(run: Callable[..., Run]) -> None:
    """One sentence, after twice the task's longest start and half a minute."""
    with pytest.raises(InputError, match="no replica could be read within 34 s of its start"):
        run(4, replicas=(3,), running=0, start_windows=10_000)


def test_others_may_scale(run: Callable[..., Run], tmp_path: Path) -> None:
    """A task that does not open replicas: what others start and stop is seen and no fault, and all
    expectations follow it."""

    def more(one: ScaledDeployment) -> None:
        one.age = [0 if age is None else age for age in one.age]

    def fewer(one: ScaledDeployment) -> None:
        one.age = [one.age[0], None, None]

    setup = fleet_with(tmp_path)
    played = run(12, replicas=(0,), script={3: more, 8: fewer}, setup=setup)
    assert played.reasons == [None] * 12 and played.deployment.sizes == []
    ready = played.seen("replicas_ready")
    assert (ready[0], max(ready), ready[-1]) == (1, PLACES, 1)
    comparison = played.reports[-1].comparison
    assert comparison is not None and comparison.static.good > 0.0
    assert all(command.keys() == setup.spec.limits.keys() for command in played.deployment.commands
               if command)  # fmt: skip


def test_what_others_scale_is_believed(fleet_setup: TaskSetup) -> None:
    """Without a command of its own, the number in force is that of the actuator."""
    deployment: Any = ScaledDeployment(running=2)
    fleet = FleetControl(deployment, deployment, PLACES, 5.0)
    knobs = fleet_setup.spec.knobs
    control = DeploymentControl(fleet_setup.env, knobs, deployment, fleet)

    async def numbers() -> list[float]:
        found = []
        for say in (None, 1, None):
            if say is not None:
                values = {"replicas": say, "batch_cap": 8.0, "kv_budget_fraction": 1.0}
                assert (await control.command(values))[1] is None
            snapshot = await control.snapshot(control.knobs(), None)
            found.append(snapshot.knobs["knobs"]["replicas"]["now"])
        control.believe()
        await deployment.resize(3)
        snapshot = await control.snapshot(control.knobs(), None)
        return [*found, snapshot.knobs["knobs"]["replicas"]["now"]]

    assert asyncio.run(numbers()) == [2, 1, 1, 3]


def test_too_few_engines(fleet_setup: TaskSetup) -> None:
    """A gateway without an engine for every place."""
    deployment: Any = ScaledDeployment()
    fleet = FleetControl(deployment, deployment, PLACES + 1, 5.0)
    control = DeploymentControl(fleet_setup.env, ("replicas",), deployment, fleet)
    with pytest.raises(InputError, match="there may be 4 replicas, and the gateway has places for"):
        asyncio.run(control.snapshot(control.knobs(), None))
