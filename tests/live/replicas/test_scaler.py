"""The controller of replicas: which engines serve, which processes stay, and real processes."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from jaxserve.errors import InputError
from jaxserve.live.fleet import ActuatorError
from jaxserve.live.gateway_client import GatewayError
from jaxserve.live.replicas.rule_autoscaler import RuleAutoscaler
from jaxserve.live.replicas.scaler import Scaler, ScalingWindow
from jaxserve.runtime.child_processes import ports_in_a_row
from jaxserve.scaling.history import Fleetwide
from jaxserve.scaling.setting import RuleSetting, rule_data
from tests.gateway.gateway_thread import RunningGateway
from tests.patience import wait_until

FLEET = Fleetwide(
    window_s=1.0, most=3, least=1, group=1, requests_per_s=5.0, prefill_tokens_per_s=2e4,
    kv_tokens=1e5, ttft_slo_s=2.0, tpot_slo_s=0.1,
)  # fmt: skip


class FakeGateway:
    """A gateway with three engines, of which some answer."""

    def __init__(self) -> None:
        """All idle."""
        self.now_s = 0.0
        self.up = [True, True, True]
        self.serving = [True, True, True]
        self.running = [0, 0, 0]
        self.fails: str | None = None

    def _pools(self) -> dict[str, Any]:
        engines = [
            {"name": f"vllm-{i}", "running": self.running[i], "serving": self.serving[i]}
            for i in range(3)
        ]
        return {"default": {"waiting": 0, "engines": engines}}

    async def window(self, since_s: float | None, slices: int) -> dict[str, Any]:
        """A second without requests."""
        if self.fails:
            raise GatewayError(self.fails)
        self.now_s += 1.0
        return {
            "since_s": self.now_s - 1.0, "until_s": self.now_s, "classes": {}, "arrivals": 0,
            "first_tokens": 0, "completed": 0, "prompt_tokens": 0, "tpot_mean_s": None,
            "slo_attainment": None, "pools": self._pools(),
        }  # fmt: skip

    async def engines(self) -> dict[str, Any]:
        """Metrics of those that answer."""
        found: dict[str, Any] = {}
        for i in range(3):
            one = {"running": float(self.running[i]), "waiting": 0.0, "kv_use": 0.0}
            found[f"vllm-{i}"] = one if self.up[i] else {"error": "cannot be reached"}
        return found

    async def serve_with(self, engines: list[str]) -> dict[str, Any]:
        """Notes who serves."""
        self.serving = [f"vllm-{i}" in engines for i in range(3)]
        return {}


class FakeActuator:
    """Counts."""

    def __init__(self, count: int) -> None:
        """So many replicas."""
        self.count, self.fails = count, False

    async def size(self) -> int:
        """The count."""
        return self.count

    async def resize(self, count: int) -> None:
        """The new count, unless it fails."""
        if self.fails:
            raise ActuatorError("no GPU is free")
        self.count = count


def scaler(gateway: FakeGateway, actuator: FakeActuator, replicas: int, **settings: Any) -> Scaler:
    """One whose rule wants a number that stays."""
    chosen = {"acts": True, "drain_s": 60.0} | settings
    rule = RuleSetting("static", (float(replicas),))
    rules = RuleAutoscaler(rule, FLEET)
    return Scaler(rules, gateway, actuator, **chosen)  # pyright: ignore[reportArgumentType]


def windows(controller: Scaler, count: int) -> list[ScalingWindow]:
    """Decisions of so many windows, after the one that only begins."""

    async def run() -> list[ScalingWindow]:
        await controller.window()
        return [await controller.window() for _ in range(count)]

    return asyncio.run(run())


def test_fewer_replicas_drain_before_they_stop() -> None:
    """A replica with requests keeps its process until the requests have ended."""
    gateway, actuator = FakeGateway(), FakeActuator(3)
    gateway.running = [2, 0, 1]
    controller = scaler(gateway, actuator, 1)
    (decision,) = windows(controller, 1)
    assert (decision.wanted, decision.size, decision.acted) == (1, 3, True)
    assert gateway.serving == [True, False, False] and actuator.count == 3
    gateway.running[2] = 0
    asyncio.run(controller.window())
    assert actuator.count == 1


def test_draining_ends() -> None:
    """After its time, whatever still runs."""
    gateway, actuator = FakeGateway(), FakeActuator(3)
    gateway.running = [2, 1, 1]
    windows(scaler(gateway, actuator, 1, drain_s=0.0), 2)
    assert actuator.count == 1


def test_more_replicas_serve_when_they_answer() -> None:
    """They are started at once, and get requests once they answer."""
    gateway, actuator = FakeGateway(), FakeActuator(1)
    gateway.up = [True, False, False]
    controller = scaler(gateway, actuator, 3)
    windows(controller, 1)
    assert actuator.count == 3 and gateway.serving == [True, False, False]
    gateway.up = [True, False, True]
    asyncio.run(controller.window())
    assert gateway.serving == [True, False, True]


def test_an_answer_that_is_none_scales_nothing() -> None:
    """A gateway that says something else of its engines: the window says so, and the next one is
    well."""
    gateway, actuator = FakeGateway(), FakeActuator(1)
    controller = scaler(gateway, actuator, 3)
    asyncio.run(controller.window())
    gateway.serving[1] = "yes"  # pyright: ignore[reportArgumentType]
    (broken,) = windows(controller, 1)
    assert broken.error is not None and "serving is 'yes'" in broken.error
    assert actuator.count == 1
    gateway.serving[1] = True
    assert windows(controller, 2)[-1].acted and actuator.count == 3


def test_the_last_one_that_answers_serves() -> None:
    """Even in a place that is to stop, which then stays."""
    gateway, actuator = FakeGateway(), FakeActuator(3)
    gateway.up = [False, False, True]
    windows(scaler(gateway, actuator, 1), 2)
    assert gateway.serving == [False, False, True] and actuator.count == 3


def test_a_shadow_does_nothing() -> None:
    """It says what it would want."""
    gateway, actuator = FakeGateway(), FakeActuator(3)
    (decision,) = windows(scaler(gateway, actuator, 1, acts=False), 1)
    assert (decision.wanted, decision.acted) == (1, False)
    assert actuator.count == 3 and all(gateway.serving)


def test_what_fails_is_said_and_tried_again() -> None:
    """A gateway that is away, and an actuator that refuses."""
    gateway, actuator = FakeGateway(), FakeActuator(3)
    controller = scaler(gateway, actuator, 1)
    gateway.fails = "the gateway cannot be reached: ClientConnectorError"
    assert [one.error for one in windows(controller, 2)] == [gateway.fails] * 2
    assert "not asked: the gateway" in windows(controller, 1)[0].text()
    gateway.fails, actuator.fails = None, True
    (decision,) = windows(controller, 1)
    assert (decision.wanted, decision.acted, decision.error) == (1, False, "no GPU is free")
    actuator.fails = False
    assert asyncio.run(controller.window()).acted and actuator.count == 1


def test_too_few_engines() -> None:
    """One sentence before anything is done."""
    controller = Scaler(
        RuleAutoscaler(RuleSetting("static", (4.0,)), dataclasses.replace(FLEET, most=4)),
        FakeGateway(),  # pyright: ignore[reportArgumentType]
        FakeActuator(1),
        acts=True,
        drain_s=1.0,
    )
    with pytest.raises(
        InputError, match="there may be 4 replicas, and the gateway has places for 3"
    ):
        asyncio.run(controller.run(1, print))


def request(tokens: int) -> dict[str, Any]:
    """A request for so many tokens."""
    message = {"role": "user", "content": "Count."}
    return {
        "model": "llama-3.1-8b",
        "messages": [message],
        "max_tokens": tokens,
        "ignore_eos": True,
    }


@pytest.mark.slow
def test_real_replicas(tmp_path: Path) -> None:
    """Requests bring replicas; a killed engine comes back in its place; a killed controller leaves
    engines and requests alone, and the next one scales down without losing a request."""
    rule = rule_data(RuleSetting("hpa_running", (4.0, 2.0)), FLEET)
    (tmp_path / "rule.json").write_text(json.dumps(rule))
    first = ports_in_a_row(3)[0]
    jaxserve = [sys.executable, "-m", "jaxserve.cli"]
    engine = f"{sys.executable} -m jaxserve.cli mock-engine --model llama-3.1-8b"
    command = [
        *jaxserve, "scale", "--rule", str(tmp_path / "rule.json"), "--act",
        "--start", f"{engine} --hardware h100-sxm-80gb --speed 0.2 --port {{port}}",
        "--first-port", str(first), "--log", str(tmp_path / "log.jsonl"),
    ]  # fmt: skip
    engines = [f"vllm=http://127.0.0.1:{port}" for port in range(first, first + 3)]
    folder = tmp_path / "jaxserve-scale"

    def decisions() -> list[dict[str, Any]]:
        file = tmp_path / "log.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        return [json.loads(line) for line in lines]

    def pid(place: int) -> int | None:
        file = folder / f"place-{place}.pid"
        with contextlib.suppress(FileNotFoundError):
            return int(file.read_text())
        return None  # the place is being started

    def serving() -> int:
        return (decisions() or [{}])[-1].get("serving") or 0

    with RunningGateway(engines, first_byte_s=600.0) as gateway, ThreadPoolExecutor(16) as pool:
        where = ["--gateway", f"http://127.0.0.1:{gateway.control_port}"]
        controller = subprocess.Popen([*command, *where])
        try:
            wait_until(lambda: serving() == 1, "the first replica")
            answers = [pool.submit(gateway.post, request(400)) for _ in range(16)]
            wait_until(lambda: serving() == 3, "three replicas")
            controller.send_signal(signal.SIGKILL)
            controller.wait()
            pids = [pid(place) or 0 for place in range(3)]
            assert all(map(psutil.pid_exists, pids))
            controller = subprocess.Popen([*command, *where])
            assert [answer.result().status_code for answer in answers] == [200] * 16
            wait_until(lambda: serving() == 1, "a fleet of one")
            wait_until(lambda: decisions()[-1]["size"] == 1, "two stopped replicas")
            assert pid(0) == pids[0]
            os.kill(pids[0], signal.SIGKILL)
            wait_until(lambda: pid(0) not in (None, pids[0]), "a new one")
            wait_until(lambda: gateway.post(request(4)).status_code == 200, "its service")
        finally:
            controller.kill()
            controller.wait()
            for left in filter(None, map(pid, range(3))):
                if psutil.pid_exists(left):
                    os.killpg(left, signal.SIGKILL)
