"""The controller: every window it looks, decides, turns, checks and writes down.

It never holds the wheel alone: engines fall back to their static values when its commands stop (the
lease is two windows long), and it gives the wheel to the best static setting itself when anything
is wrong (``jaxserve.live.supervisor``).
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from jaxserve.agents.panel import TaskSetup
from jaxserve.agents.policy import Policy
from jaxserve.errors import InputError
from jaxserve.live.episode_file import EpisodeWriter, plain
from jaxserve.live.gateway_client import GatewayClient, GatewayError
from jaxserve.live.guard import Guard, Limits, as_values, changed_costly, guarded
from jaxserve.live.live_task import TURNED, echo, unacknowledged
from jaxserve.live.measured import Streams, arrivals_by_tick, measure, observe
from jaxserve.live.readings import (
    EngineState,
    LiveWindow,
    counted,
    parse_engines,
    parse_window,
)
from jaxserve.live.supervisor import Health, Mode, Rules, Supervision, supervise
from jaxserve.live.twins import Expectation, Twins, acceptance_scale
from jaxserve.seeds import episode_key, policy_key
from jaxserve.sim.fast.window import idle_metrics
from jaxserve.spaces import ACTION_BOUNDS, KNOBS, make_action
from jaxserve.types import ServeAction, ServeObservation

LEASE_WINDOWS = 2.0
_DEADLINE_SHARE = 0.5
"""of a window, in which a decision must be made and acknowledged."""
_LONG_SHARE = 1.5
"""of a window: one that took longer says little of a window."""


@dataclass(frozen=True)
class Report:
    """What the operator is told of a window."""

    window: int
    mode: str
    reason: str | None
    """why the static setting is in force, None where it is not."""
    seen: Expectation
    """what was measured, in the terms of the expectations."""
    in_force: Expectation
    """what the simulator expected under the knobs that were in force."""
    policy: Expectation
    """under those of the policy, on the same traffic from the start."""
    static: Expectation
    """under the best static ones, likewise."""
    told: dict[str, float]
    """knobs that were turned, or would be."""


@dataclass(frozen=True)
class Conduct:
    """How much a controller may do."""

    mode: Mode = Mode.SHADOW
    rules: Rules = field(default_factory=Rules)
    guard: Guard = field(default_factory=Guard)


class Controller:
    """One policy on one deployment."""

    def __init__(
        self,
        setup: TaskSetup,
        policy: Policy,
        static: ServeAction,
        gateway: GatewayClient,
        log: EpisodeWriter,
        conduct: Conduct,
    ) -> None:
        """Args:
        setup: the live task.
        static: the setting that it falls back to.
        conduct: how much it may do.
        """
        self._env = env = setup.env
        self._streams = Streams.of(setup.spec)
        self._turned = setup.spec.knobs
        self._static = as_values(env.effective_action(static))
        self._gateway = gateway
        self._log = log
        self._mode, self._rules, self._guard = conduct.mode, conduct.rules, conduct.guard
        self._twins = Twins(env, 3)
        self._memory = policy.init(env)
        self._act = jax.jit(lambda memory, seen, key: policy.act(env, memory, seen, key))
        self._key = episode_key(0, "test")
        _, first = env.reset(self._key)
        self._seen: ServeObservation = first.observation
        self._window = 0
        self._scale = 1.0
        self._supervision = Supervision()
        self._since_costly = conduct.guard.dwell_windows
        self._wanted = dict(self._static)

    async def run(
        self,
        windows: int | None,
        tell: Callable[[Report], None],
        begun: Callable[[], None] = lambda: None,
    ) -> None:
        """Operates until it is cancelled, or for so many windows.

        Args:
          tell: told about every window when it is over.
          begun: called when the first one begins.

        Raises:
          InputError: the deployment is not that of the task.
        """
        self._compile()
        before, last = await self._begin()
        start_s = time.monotonic()
        begun()
        count = 0
        while windows is None or count < windows:
            count += 1
            # An absolute schedule; windows that were slept through are not caught up with.
            now_s = time.monotonic() - start_s
            count_s = max(count * self._env.window_s, now_s)
            await asyncio.sleep(count_s - now_s)
            before, last = await self._one(before, last, tell)
        if self._mode.steers:
            await self._let_go()

    async def _begin(self) -> tuple[EngineState, LiveWindow]:
        try:
            knobs = await self._gateway.knobs()
            engines = parse_engines(await self._gateway.engines(), knobs)
            first = parse_window(await self._gateway.window(None, self._env.ticks))
        except GatewayError as error:
            raise InputError(str(error)) from None
        for name in self._turned:
            if knobs["knobs"][name]["how"] not in TURNED:
                raise InputError(
                    f"the task turns {name}, which the deployment does not "
                    f"({knobs['knobs'][name].get('reason')}); `jaxserve live-task` makes one that "
                    "fits"
                )
        gpus = int(self._env.deployment.num_gpus)
        if engines.count != gpus:
            raise InputError(
                f"the task has {gpus} GPUs and the gateway {engines.count} engines; `jaxserve "
                "live-task` makes one that fits"
            )
        return engines, first

    async def _one(
        self, before: EngineState, last: LiveWindow, tell: Callable[[Report], None]
    ) -> tuple[EngineState, LiveWindow]:
        """The end of one window and the beginning of the next."""
        started_s = time.monotonic()
        self._window += 1
        try:
            answers = await asyncio.gather(
                self._gateway.window(last.until_s, self._env.ticks),
                self._gateway.engines(),
                self._gateway.knobs(),
            )
            window = parse_window(answers[0])
            engines = parse_engines(answers[1], answers[2])
            knobs = answers[2]
        except (GatewayError, InputError) as error:
            await self._blind(str(error))
            return before, last
        fault = self._fault(before, engines, last, window, knobs)
        in_force = self._now(knobs)
        metrics = measure(
            self._env, self._streams, window, before, engines, make_action(**in_force)
        )
        counts = arrivals_by_tick(self._env, self._streams, window)
        depth = int(in_force["speculation_depth"])
        scale = acceptance_scale(self._env, counts, depth, float(metrics.acceptance))
        self._scale = self._scale if scale is None else scale
        expected = self._twins.advance(
            [make_action(**each) for each in (in_force, self._wanted, self._static)],
            counts,
            self._scale,
        )
        self._seen = observe(self._env, self._seen, metrics, window, self._window)
        try:
            self._decide()
        except ArithmeticError as error:
            fault = fault or str(error)
        held = bool(knobs.get("held"))
        mode = Mode.OFF if held else self._mode
        good = float(np.sum(np.asarray(metrics.good)))
        if mode.steers:
            health = Health(fault, good, expected[2].good)
            self._supervision = supervise(self._rules, self._supervision, health)
        told = self._next(knobs, in_force)
        late = time.monotonic() - started_s > _DEADLINE_SHARE * self._env.window_s
        if mode.steers:
            knobs = await self._steer(told, knobs, late)
        report = Report(
            window=self._window,
            mode="off (the switch)" if held else mode,
            reason=fault if not mode.steers else self._supervision.reason,
            seen=Expectation(
                good,
                float(np.sum(np.asarray(metrics.ttft_met))),
                float(metrics.itl_s),
                math.nan,
            ),
            in_force=expected[0],
            policy=expected[1],
            static=expected[2],
            told=told,
        )
        self._log.window(
            self._seen,
            metrics,
            make_action(**in_force),
            {
                "window": self._window,
                "unix_s": time.time(),
                "seconds": window.seconds,
                "mode": str(report.mode),
                "reason": report.reason,
                "strangers": list(self._streams.strangers(window)),
                "acceptance_scale": self._scale,
                "wanted": plain(make_action(**self._wanted)),
                "told": told if mode.steers else {},
                "echo": echo(knobs, told),
                "expected": {
                    name: dataclasses.asdict(each)
                    for name, each in zip(("in_force", "policy", "static"), expected, strict=True)
                },
            },
        )
        tell(report)
        return engines, window

    def _fault(
        self,
        before: EngineState,
        after: EngineState,
        last: LiveWindow,
        window: LiveWindow,
        knobs: dict[str, Any],
    ) -> str | None:
        """What is wrong with a window, in one sentence."""
        if window.gateway != last.gateway:
            return "the gateway was restarted"
        if after.identity != before.identity:
            return "an engine was restarted, or can no longer be read"
        if not window.complete:
            return "the gateway does not have all of the window"
        if not 0.0 < window.seconds < _LONG_SHARE * self._env.window_s:
            return f"the window took {window.seconds:.1f} s in place of {self._env.window_s:g} s"
        shown = [name for name, value in after.counters.items() if value is not None]
        if any(counted(before, after, name) is None for name in shown):
            return "a counter of the engines went back"
        missing = [n for n in self._turned if knobs["knobs"][n]["how"] not in TURNED]
        return f"{missing[0]} can no longer be turned" if missing else None

    def _decide(self) -> None:
        """What the policy wants next; raises ArithmeticError where it is no number."""
        key = policy_key(self._key, self._window)
        action, memory = self._act(self._memory, self._seen, key)
        raw = [float(np.asarray(getattr(action, name))) for name in KNOBS]
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(memory)]
        numbers = [leaf for leaf in leaves if np.issubdtype(leaf.dtype, np.floating)]
        if not np.isfinite(raw).all() or not all(np.isfinite(leaf).all() for leaf in numbers):
            raise ArithmeticError("the policy's output is not finite")
        self._memory = memory
        self._wanted = as_values(self._env.effective_action(action))

    def _next(self, knobs: dict[str, Any], in_force: dict[str, float]) -> dict[str, float]:
        """The knobs to turn: the policy's or the static ones, as far as one window may go."""
        limits = Limits.of(knobs["knobs"], self._turned)
        wanted = self._wanted if self._supervision.steering else self._static
        if self._mode is not Mode.FREE:
            wanted = guarded(self._guard, in_force, wanted, self._since_costly)
        self._since_costly = 0 if changed_costly(in_force, wanted) else self._since_costly + 1
        return limits.nearest(wanted)

    async def _steer(
        self, told: dict[str, float], knobs: dict[str, Any], late: bool
    ) -> dict[str, Any]:
        lease_s = LEASE_WINDOWS * self._env.window_s
        reason = "a decision missed its deadline" if late else None
        try:
            knobs = await self._gateway.put(told, lease_s)
            reason = reason or unacknowledged(knobs, told)
        except GatewayError as error:
            reason = str(error)
        if reason is not None:
            self._supervision = supervise(self._rules, self._supervision, Health(reason))
            self._log.event("fault", reason)
        return knobs

    async def _blind(self, reason: str) -> None:
        """Nothing is known: the static setting, if it can be told; else the lease ends."""
        self._supervision = supervise(self._rules, self._supervision, Health(reason))
        self._log.event("blind", reason)
        if self._mode.steers:
            await self._let_go()

    async def _let_go(self) -> None:
        """Ends the lease; where that cannot be told, it ends by itself."""
        try:
            await self._gateway.release()
        except GatewayError as error:
            self._log.event("blind", f"the static values cannot be told: {error}")

    def _now(self, knobs: dict[str, Any]) -> dict[str, float]:
        """The knobs in force; those that nobody says are as the task locks them."""
        locked = as_values(self._env.locked)
        found = {name: knobs["knobs"][name].get("now") for name in KNOBS}
        now = {name: locked[name] if value is None else value for name, value in found.items()}
        # A gateway's cap may lie far above any knob's range.
        return {
            name: min(max(float(value), bound.low), bound.high)
            for (name, value), bound in zip(now.items(), ACTION_BOUNDS.values(), strict=True)
        }

    def _compile(self) -> None:
        """Before the first window: a compilation would miss every deadline."""
        self._act(self._memory, self._seen, policy_key(self._key, 0))
        self._twins.compile()
        observe(self._env, self._seen, idle_metrics(len(self._env.slo.ttft_s)), None, 0)
