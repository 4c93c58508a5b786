"""A deployment in virtual time: a gateway's answers, with every fault that a test wants."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import pytest

from jaxserve.agents.task_setup import TaskSetup, load_setup
from jaxserve.live import deployment_control, fleet, operate
from jaxserve.live.gateway_client import GatewayError, LateAnswer

WINDOW_S = 1.0
TICKS = 4
PLACES = 3
"""of a fleet."""
RATE = 8
"""requests in a window."""

TASK: dict[str, Any] = {
    "spec_version": 1,
    "title": "Chat",
    "difficulty": "easy",
    "description": "One stream on one engine.",
    "hardware": "h100-sxm-80gb",
    "model": "llama-3.1-8b",
    "window_s": WINDOW_S,
    "ticks": TICKS,
    "knobs": ["batch_cap", "kv_budget_fraction"],
    "locked": {"batch_cap": 64, "kv_budget_fraction": 1.0},
    "limits": {"batch_cap": [1, 64], "kv_budget_fraction": [0.2, 1.0]},
    "deployment": {"num_gpus": 1},
    "streams": [
        {
            "name": "chat",
            "prompt": {"kind": "uniform", "low": 64, "high": 128},
            "output": {"kind": "uniform", "low": 16, "high": 64},
            "acceptance": "sharegpt/eagle",
            "ttft_slo_s": 0.5,
            "tpot_slo_s": 0.05,
        }
    ],
    "regimes": [{"name": "steady", "rate_rps": RATE, "mix": {"chat": 1.0}}],
    "objective": {"memory_limit_gib": 80},
}


def setup_of(path: Any) -> TaskSetup:
    """The task from a file."""
    return load_setup(str(path))


def fleet_with(folder: Path, *knobs: str) -> TaskSetup:
    """The live task with three places, which opens such knobs besides its own."""
    task = copy.deepcopy(TASK)
    task["knobs"] = [*knobs, *task["knobs"]]
    task["deployment"] = {"num_gpus": PLACES, "fleet": {"start_s": [2, 2], "drain_s": 5}}
    path = folder / "fleet.json"
    path.write_text(json.dumps(task))
    return setup_of(path)


def window_answer(seconds: float = WINDOW_S, good: float = 1.0, **fields: Any) -> dict[str, Any]:
    """What a gateway says of a window with steady traffic."""
    completed = round(RATE * seconds)
    one = {
        "arrivals_by_slice": [max(1, completed // TICKS)] * TICKS,
        "first_tokens": completed,
        "ttft_s": [0.05] * completed,
        "completed": completed,
        "good": round(good * completed),
        "judged": completed,
        "unjudged": 0,
        "rejected": 0,
        "failed": 0,
        "tpot_mean_s": 0.01,
        "prompt_tokens": 96 * completed,
        "output_tokens": 40 * completed,
    }
    answer = {
        "gateway": "one",
        "since_s": 0.0,
        "until_s": seconds,
        "complete": True,
        "classes": {"chat": one},
        "in_flight": {"chat": {"waiting": 1, "running": 3}},
        "pools": {"default": {"waiting": 0}},
        "itl_mean_s": 0.01,
        "itl_p50_s": 0.01,
        "itl_p99_s": 0.03,
        "ttft_p50_s": 0.05,
        "ttft_p99_s": 0.05,
        "arrivals_by_priority": {"0": completed},
    }
    return answer | fields


def engines_answer(**fields: Any) -> dict[str, Any]:
    """What a gateway says of an engine."""
    one = {
        "running": 3.0,
        "waiting": 0.0,
        "kv_use": 0.25,
        "preemptions": 0.0,
        "drafted": None,
        "accepted": None,
        "prompt_tokens": 0.0,
        "output_tokens": 0.0,
        "kv_tokens": 50_000.0,
        "started_unix_s": 1e9,
    }
    return {"vllm-0": one | fields}


def offered(static: float, least: float, most: float) -> dict[str, Any]:
    """A knob that an engine turns."""
    shown = {"how": "exact", "where": "engine", "now": static, "static": static}
    return shown | {"least": least, "most": most}


def locked(how: str = "unsupported") -> dict[str, Any]:
    """A knob that nobody turns."""
    return {"how": how, "where": None, "reason": "vllm-0: it has no such knob"}


def knobs_answer(**knobs: dict[str, Any]) -> dict[str, Any]:
    """What a gateway says of knobs."""
    return {
        "mode": "static",
        "lease_left_s": 0.0,
        "version": 1,
        "held": False,
        "engines": {"vllm-0": {"engine_id": "a", "reason": None}},
        "knobs": {
            "batch_cap": offered(64, 1, 64),
            "token_budget": locked(),
            "kv_budget_fraction": offered(1.0, 0.2, 1.0),
            "speculation_depth": locked("restart_required"),
            "quantization_tier": locked("restart_required"),
            "prefill_decode_split": locked("restart_required"),
            "priority_routing": locked(),
            **knobs,
        },
    }


class Deployment:
    """Stands in for ``GatewayClient``. Tests change its fields between windows."""

    def __init__(self) -> None:
        self.now_s = 100.0
        """the clock of all."""
        self.gateway, self.engine_id, self.started_s = "one", "a", 1e9
        self.window_fields: dict[str, Any] = {}
        """replace what the gateway says of a window."""
        self.engine_fields: dict[str, Any] = {}
        self.good = 1.0
        """share of the requests that meet their objectives."""
        self.unreachable = self.held = False
        self.late = 0
        """answers that do not come in time, from now on."""
        self.lies: dict[str, float] = {}
        self.refuses: str | None = None
        self.refuse_next = False
        """one command."""
        self.slow_s = 0.0
        """that an answer takes."""
        self.stopped_s = 0.0
        """that the whole machine stands still in the next sleep."""
        self.wall_s = 1e9
        """how far the wall clock is ahead of the other."""
        self.answers: Any = knobs_answer()
        self.static = {"batch_cap": 64.0, "kv_budget_fraction": 1.0}
        self.values = dict(self.static)
        self.commands: list[dict[str, float] | None] = []
        """every one; None for the end of a lease."""
        self.counters = 0.0
        self._lease_end_s = 0.0

    def clock(self) -> SimpleNamespace:
        """In place of the module ``time``."""
        return SimpleNamespace(monotonic=lambda: self.now_s, time=lambda: self.wall_s + self.now_s)

    async def sleep(self, seconds: float) -> None:
        """In place of ``asyncio.sleep``."""
        self.now_s += max(seconds, 0.0) + self.stopped_s
        self.stopped_s = 0.0
        await asyncio.sleep(0)

    def _answer(self) -> None:
        if self.unreachable:
            raise GatewayError("the gateway cannot be reached: ClientConnectorError")
        if self.late:
            self.late -= 1
            self.now_s += 1.0
            raise LateAnswer("the gateway did not answer within 1 s")
        self.in_force()

    def in_force(self) -> dict[str, float]:
        """The knobs, whoever can ask for them."""
        if self.now_s >= self._lease_end_s:
            self.values = dict(self.static)
        return self.values

    async def window(self, since_s: float | None, slices: int) -> dict[str, Any]:
        self._answer()
        if since_s is not None and since_s > self.now_s:
            raise GatewayError("the gateway refused: since is no time of this gateway")
        since_s = self.now_s - 0.001 if since_s is None else since_s
        answer = window_answer(min(self.now_s - since_s, 10.0), self.good)
        self.counters += answer["classes"]["chat"]["output_tokens"]
        span = {"gateway": self.gateway, "since_s": since_s, "until_s": self.now_s}
        return answer | span | self.window_fields

    async def engines(self) -> Any:
        self._answer()
        counted = {"output_tokens": self.counters, "started_unix_s": self.started_s}
        return engines_answer(**(counted | self.engine_fields))

    async def knobs(self) -> dict[str, Any]:
        self._answer()
        answer = copy.deepcopy(self.answers) | {"held": self.held}
        if "engines" not in answer:
            return answer
        answer["engines"]["vllm-0"]["engine_id"] = self.engine_id
        for name, value in (self.values | self.lies).items():
            answer["knobs"][name]["now"] = value
        return answer

    async def put(self, knobs: Mapping[str, float], lease_s: float) -> dict[str, Any]:
        self._answer()
        self.now_s += self.slow_s
        self.commands.append(dict(knobs))
        if self.refuse_next:
            self.refuse_next = False
            raise GatewayError("refused once")
        if self.refuses:
            self.values = dict(self.static)
            raise GatewayError(self.refuses)
        self._lease_end_s = self.now_s + lease_s
        self.values |= knobs
        return await self.knobs()

    async def release(self) -> dict[str, Any]:
        self._answer()
        self.commands.append(None)
        self._lease_end_s = 0.0
        self._answer()
        return await self.knobs()

    async def state(self) -> dict[str, Any]:
        self._answer()
        return {"objectives": {"chat": {"ttft_s": 0.5, "tpot_s": 0.05}}}


class Slow(Deployment):
    """Its engine says what is in force only after a while, as between two long steps."""

    TAKES_S = 0.1 * WINDOW_S

    def __init__(self) -> None:
        super().__init__()
        self.told_s: list[float] = []
        """when commands came."""

    async def sleep(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        await asyncio.sleep(0)  # what runs beside takes its time of it
        self.now_s = max(self.now_s, until_s)

    async def knobs(self) -> dict[str, Any]:
        self.now_s += self.TAKES_S
        return await super().knobs()

    async def put(self, knobs: Mapping[str, float], lease_s: float) -> dict[str, Any]:
        self.told_s.append(self.now_s)
        return await super().put(knobs, lease_s)


class Moody:
    """A policy with a cap for every window; None stands for a number that is none."""

    name = "moody"

    def __init__(self, caps: list[float | None]) -> None:
        self._caps = jnp.asarray([jnp.nan if cap is None else cap for cap in caps], jnp.float32)

    def init(self, env: Any) -> Any:
        del env
        return ()

    def act(self, env: Any, memory: Any, observation: Any, key: Any) -> Any:
        from jaxserve.spaces import make_action

        del key
        place = jnp.clip(observation.step_index.astype(jnp.int32), 0, len(self._caps) - 1)
        action = make_action(kv_budget_fraction=0.9)
        return action.replace(batch_cap=self._caps[place]), memory


def virtual(monkeypatch: pytest.MonkeyPatch, deployment: Deployment) -> None:
    """The controller lives in the deployment's time."""
    for module in (operate, deployment_control, fleet):
        monkeypatch.setattr(module, "time", deployment.clock())
    steps = SimpleNamespace(
        gather=asyncio.gather, create_task=asyncio.create_task, sleep=deployment.sleep
    )
    for module in (operate, deployment_control):
        monkeypatch.setattr(module, "asyncio", steps)
