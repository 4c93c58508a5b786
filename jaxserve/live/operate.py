"""The controller: observes every window, lets the policy decide, turns knobs, checks and logs.

Control falls back twice without the policy: the engines' static values return when commands stop
(a lease is two windows long), and the controller sets the best static setting after any fault
(``jaxserve.live.supervisor``).
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from jaxserve.agents.policy import Policy
from jaxserve.agents.task_setup import TaskSetup
from jaxserve.errors import InputError
from jaxserve.live.deployment_control import DeploymentControl
from jaxserve.live.episode_file import EpisodeWriter, plain
from jaxserve.live.fleet import ActuatorError, FleetControl
from jaxserve.live.gateway_client import GatewayClient, GatewayError, LateAnswer
from jaxserve.live.guard import (
    Guard,
    Values,
    as_values,
    changed,
    changed_costly,
    guarded,
    limited,
    windows_of_a_minute,
)
from jaxserve.live.live_task import check_objectives, echo
from jaxserve.live.readings import TURNED, Snapshot, window_fault
from jaxserve.live.show import Report
from jaxserve.live.supervisor import (
    Health,
    InControl,
    Mode,
    Rules,
    Supervision,
    supervise,
)
from jaxserve.live.window_meter import MeasuredWindow, WindowMeter
from jaxserve.seeds import episode_key, policy_key
from jaxserve.spaces import KNOBS, make_action
from jaxserve.types import ServeAction

_BEGIN_S = 30.0
"""Patience with late answers before the first window, s."""
_DEADLINE_SHARE = 0.5
"""Share of a window in which a decision must be made and acknowledged."""
_EARLY_SHARE = 0.25
"""Share of a window by which the question for the knobs precedes its end at most."""
_LATE = "a decision missed its deadline"


@dataclass(frozen=True)
class Conduct:
    """Limits of a controller."""

    mode: Mode = Mode.SHADOW
    rules: Rules = field(default_factory=Rules)
    guard: Guard = field(default_factory=Guard)
    most_changes: Mapping[str, int] = field(default_factory=dict)
    """most changes by the policy per minute, by knob; other knobs may change any number of
    times."""


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
        fleet: FleetControl | None = None,
    ) -> None:
        """Args:
        setup: the live task.
        policy: the controlling policy.
        static: the setting after a fault.
        gateway: client of the deployment's gateway.
        log: log of the episode.
        conduct: limits of the controller.
        fleet: replicas of a task with a fleet; None where all serve all the time.
        """
        self._env = env = setup.env
        self._spec = setup.spec
        self._turned = setup.spec.knobs
        self._static = self._values(static)
        self._gateway = gateway
        self._deployment = DeploymentControl(env, setup.spec.knobs, gateway, fleet)
        self._log = log
        self._mode = conduct.mode
        self._rules, self._guard = conduct.rules, conduct.guard
        self._most_changes = conduct.most_changes
        self._changed: deque[frozenset[str]] = deque(maxlen=windows_of_a_minute(env.window_s))
        """knobs changed in each window of the last minute, the latest window last."""
        self._meter = WindowMeter(env, setup.spec, self._static)
        self._memory = policy.init(env)
        self._act = jax.jit(lambda memory, seen, key: policy.act(env, memory, seen, key))
        self._key = episode_key(0, "test")
        self._number = 0
        """number of the present window."""
        self._supervision = Supervision()
        self._since_costly = conduct.guard.dwell_windows
        self._wanted = dict(self._static)
        self._last: Snapshot | None = None
        """snapshot at the beginning of this window; None if it failed."""

    async def run(
        self,
        windows: int | None,
        report: Callable[[Report], None],
        on_start: Callable[[], None] = lambda: None,
    ) -> None:
        """Operates for ``windows`` windows, or until cancelled; then ends the lease.

        Args:
          windows: number of windows; None for no end.
          report: called at the end of every window.
          on_start: called when the first window begins.

        Raises:
          InputError: the deployment does not fit the task, or the log cannot be written.
        """
        self._compile()
        await self._begin()
        window_s = self._env.window_s
        due_s = time.monotonic()
        on_start()
        count = 0
        try:
            while windows is None or count < windows:
                count += 1
                # The schedule is absolute, but windows lost in a pause of the host are skipped.
                now_s = time.monotonic()
                due_s += window_s
                due_s = due_s if due_s > now_s else now_s + window_s
                # Engines answer between two steps; asking early keeps the command on time.
                early_s = min(self._deployment.knobs_took_s, _EARLY_SHARE * window_s)
                await asyncio.sleep(due_s - early_s - now_s)
                knobs = asyncio.create_task(self._deployment.knobs())
                try:
                    await asyncio.sleep(due_s - time.monotonic())
                    await self._window(knobs, report)
                finally:
                    knobs.cancel()
        finally:
            if self._mode.steers:
                await self._release()

    async def _begin(self) -> None:
        """Reads the deployment and checks that it fits the task; starts a fleet that is off."""
        fleet = self._env.deployment.fleet
        if fleet is not None and self._mode.steers:
            patience_s = _BEGIN_S + 2.0 * float(fleet.start_most_s)
            try:
                await self._deployment.start(round(self._static["replicas"]), patience_s)
            except (GatewayError, ActuatorError) as error:
                raise InputError(str(error)) from None
        self._last, state = await self._first_snapshot()
        fits = "`jaxserve live-task` makes one that fits"
        for name in self._turned:
            offer = self._last.knobs["knobs"][name]
            if offer["how"] not in TURNED:
                raise InputError(
                    f"the task turns {name}, which the deployment does not "
                    f"({offer.get('reason')}); {fits}"
                )
        gpus = int(self._env.deployment.num_gpus)
        count = self._last.engines.count
        if self._last.fleet is None and count != gpus:
            raise InputError(f"the task has {gpus} GPUs and the gateway {count} engines; {fits}")
        check_objectives(self._spec, state)
        if self._last.fleet is not None:
            self._meter.begin(max(1, len(self._last.fleet.serving)))

    async def _first_snapshot(self) -> tuple[Snapshot, dict[str, Any]]:
        """The first snapshot and the gateway's state; retries late answers, which spoil no window
        yet."""
        until_s = time.monotonic() + _BEGIN_S
        while True:
            try:
                knobs = self._deployment.knobs()
                return await self._deployment.snapshot(knobs, None), await self._gateway.state()
            except (GatewayError, ActuatorError) as error:
                if not isinstance(error, LateAnswer) or time.monotonic() > until_s:
                    raise InputError(str(error)) from None

    async def _window(
        self, knobs: Awaitable[dict[str, Any]], report: Callable[[Report], None]
    ) -> None:
        """Ends a window: reads it, decides, turns knobs for the next window, and logs.

        Args:
          knobs: gives the gateway's knobs.
          report: called with the result.
        """
        started_s = time.monotonic()
        self._number += 1
        self._changed.append(frozenset())
        before = self._last
        try:
            self._last = after = await self._deployment.snapshot(knobs, self._last)
        except (GatewayError, ActuatorError, InputError) as error:
            self._last = None
            await self._skip_window(str(error), started_s, report)
            return
        if before is None:
            await self._skip_window("nothing was known when the window began", started_s, report)
            return
        window = self._meter.measure(before, after, self._wanted, self._number)
        fault = window_fault(before, after, self._env.window_s, self._turned)
        try:
            self._decide()
        except ArithmeticError as error:
            fault = fault or str(error)
        if self._late(started_s):
            fault = fault or _LATE
        held = bool(after.knobs["held"])
        steers = self._mode.steers and not held
        if not steers:
            self._deployment.believe()
        if held:
            self._deployment.leased = False
        if steers:
            expected = window.expected[2].good
            health = Health(fault, window.good, expected, window.ended, window.unjudged)
            self._supervision = supervise(self._rules, self._supervision, health)
        command, state = self._next(window.in_force), after.knobs
        if steers:
            state = await self._steer(command, state, started_s)
        in_force = self._meter.in_force(state)
        if steers:
            self._changed[-1] = changed(window.in_force, in_force)
        changes = self._changes() if steers else {}
        found = Report(
            window=self._number,
            mode="off (the switch)" if held else str(self._mode),
            reason=self._supervision.reason if steers else fault,
            comparison=window.comparison,
            command=command,
            changes={name: n for name, n in changes.items() if name in self._most_changes},
            in_control=self._in_control,
            in_force=in_force if self._deployment.leased or not steers else {},
        )
        self._write(window, found, steers, changes, echo(state, command))
        report(found)

    @property
    def _in_control(self) -> InControl:
        """Source of the values in force."""
        if not self._deployment.leased:
            return InControl.ENGINES
        return InControl.POLICY if self._supervision.steering else InControl.BEST_STATIC

    def _late(self, started_s: float) -> bool:
        return time.monotonic() - started_s > _DEADLINE_SHARE * self._env.window_s

    def _decide(self) -> None:
        """Asks the policy for the next action; raises ArithmeticError if it is not finite."""
        key = policy_key(self._key, self._number)
        action, memory = self._act(self._memory, self._meter.seen, key)
        raw = [float(np.asarray(getattr(action, name))) for name in KNOBS]
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(memory)]
        numbers = [leaf for leaf in leaves if np.issubdtype(leaf.dtype, np.floating)]
        if not np.isfinite(raw).all() or not all(np.isfinite(leaf).all() for leaf in numbers):
            raise ArithmeticError("the policy's output is not finite")
        self._memory = memory
        self._wanted = self._values(action)

    def _values(self, action: ServeAction) -> Values:
        """The knobs of an action that act, in numbers; of a fleet, 0 stands for all replicas."""
        values = as_values(self._env.effective_action(action))
        if self._env.deployment.fleet is not None and values["replicas"] == 0.0:
            values["replicas"] = float(self._env.deployment.num_gpus)
        return values

    def _next(self, in_force: Values) -> Values:
        """The next command: the policy's knobs within one window's limits, or the static ones."""
        if not self._supervision.steering:
            # Jump, do not ramp: ramping down would prolong the fault.
            wanted = self._static
        elif self._mode is Mode.FREE:
            wanted = self._wanted
        else:
            wanted = guarded(
                self._guard,
                in_force,
                self._wanted,
                self._since_costly,
                self._deployment.limits.allowed,
            )
        if self._supervision.steering and self._mode.steers:
            wanted = limited(self._most_changes, self._changes(), in_force, wanted)
        self._since_costly = 0 if changed_costly(in_force, wanted) else self._since_costly + 1
        return self._deployment.limits.nearest(wanted)

    def _changes(self) -> dict[str, int]:
        """Changes in the last minute of every knob that the task turns."""
        counted = Counter(name for names in self._changed for name in names)
        return {name: counted[name] for name in self._turned}

    async def _steer(
        self, command: Values, knobs: dict[str, Any], started_s: float
    ) -> dict[str, Any]:
        """Turns knobs; returns the knobs then, or ``knobs`` if the answer cannot be read."""
        found, reason = await self._deployment.command(command)
        if reason is None and self._late(started_s):
            # The gateway has answered, so the static setting may be commanded however late it is.
            reason, started_s = _LATE, time.monotonic()
        if reason is not None:
            found = await self._fall_back("fault", reason, started_s) or found
        return found or knobs

    async def _skip_window(
        self, reason: str, started_s: float, report: Callable[[Report], None]
    ) -> None:
        """Ends a window that could not be read."""
        if self._mode.steers:
            await self._fall_back("blind", reason, started_s)
        else:
            self._log.event(self._number, "blind", reason)
        mode, in_control = str(self._mode), self._in_control
        report(Report(self._number, mode, reason, in_control=in_control))

    async def _fall_back(self, what: str, reason: str, since_s: float) -> dict[str, Any] | None:
        """Commands the best static values; ends the lease if that fails.

        Args:
          what: kind of the event in the log.
          reason: the fault.
          since_s: start of the deadline, after which no command is sent.

        Returns:
          the knobs then; None after the end of the lease.
        """
        self._supervision = supervise(self._rules, self._supervision, Health(reason))
        self._log.event(self._number, what, reason)
        if not self._late(since_s):
            static = self._deployment.limits.nearest(self._static)
            found, missed = await self._deployment.command(static)
            if missed is None:
                return found
        await self._release()
        return None

    async def _release(self) -> None:
        try:
            await self._deployment.release()
        except GatewayError as error:
            self._log.event(self._number, "blind", f"the static values cannot be told: {error}")

    def _write(
        self,
        window: MeasuredWindow,
        report: Report,
        steers: bool,
        changes: Mapping[str, int],
        echoed: Mapping[str, Any],
    ) -> None:
        """Logs a measured window."""
        self._log.window(
            self._meter.seen,
            window.metrics,
            make_action(**window.in_force),
            {
                "window": self._number,
                "unix_s": time.time(),
                "seconds": window.seconds,
                "mode": report.mode,
                "reason": report.reason,
                "in_control": report.in_control,
                "strangers": list(window.strangers),
                "ended": window.ended,
                "unjudged": window.unjudged,
                "acceptance_scale": window.acceptance_scale,
                "wanted": plain(make_action(**self._wanted)),
                "told": report.command if steers else {},
                "changes": dict(changes),
                "echo": echoed,
                "expected": {
                    name: dataclasses.asdict(each)
                    for name, each in zip(
                        ("in_force", "policy", "static"), window.expected, strict=True
                    )
                },
            },
        )

    def _compile(self) -> None:
        """Compiles all programs before the first window, which would miss its deadline."""
        self._act(self._memory, self._meter.seen, policy_key(self._key, 0))
        self._meter.compile()
