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
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from jaxserve.agents.panel import TaskSetup
from jaxserve.agents.policy import Policy
from jaxserve.errors import InputError
from jaxserve.live.episode_file import EpisodeWriter, plain
from jaxserve.live.gateway_client import GatewayClient, GatewayError, LateAnswer
from jaxserve.live.guard import (
    Guard,
    KnobLimits,
    as_values,
    changed,
    changed_costly,
    guarded,
    limited,
    windows_of_a_minute,
)
from jaxserve.live.live_task import TURNED, check_objectives, echo, unacknowledged
from jaxserve.live.measured import Streams, arrivals_by_tick, measure, observe
from jaxserve.live.readings import (
    EngineState,
    LiveWindow,
    fell,
    parse_engine_state,
    parse_knobs,
    parse_window,
)
from jaxserve.live.supervisor import Health, Mode, Rules, Supervision, supervise
from jaxserve.live.twins import Expectation, Twins, acceptance_scale
from jaxserve.live.window_report import Report, WindowComparison
from jaxserve.seeds import episode_key, policy_key
from jaxserve.sim.fast.window import idle_metrics
from jaxserve.spaces import ACTION_BOUNDS, KNOBS, make_action
from jaxserve.types import ServeAction, ServeObservation

LEASE_WINDOWS = 2.0
_BEGIN_S = 30.0
"""For which late answers are asked for again before the first window."""
_DEADLINE_SHARE = 0.5
"""of a window, in which a decision must be made and acknowledged."""
_EARLY_SHARE = 0.25
"""of a window, by which knobs are asked for before its end at most."""
_LATE = "a decision missed its deadline"
_SHORTEST, _LONGEST = 0.5, 1.5
"""of a window: one that took less or more says little of a window."""


@dataclass(frozen=True)
class Snapshot:
    """All that a controller asks for at the end of a window."""

    window: LiveWindow
    engines: EngineState
    knobs: dict[str, Any]


@dataclass(frozen=True)
class Conduct:
    """How much a controller may do."""

    mode: Mode = Mode.SHADOW
    rules: Rules = field(default_factory=Rules)
    guard: Guard = field(default_factory=Guard)
    most_changes: Mapping[str, int] = field(default_factory=dict)
    """changes of a knob by the policy in one minute, by name; knobs that are not named may make
    any number."""


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
        self._spec = setup.spec
        self._streams = Streams.of(setup.spec)
        self._turned = setup.spec.knobs
        self._static = as_values(env.effective_action(static))
        self._gateway = gateway
        self._log = log
        self._mode, self._rules, self._guard = conduct.mode, conduct.rules, conduct.guard
        self._most_changes = conduct.most_changes
        self._changed: deque[frozenset[str]] = deque(maxlen=windows_of_a_minute(env.window_s))
        """knobs that changed in each window of the last minute, the latest window last."""
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
        self._limits = KnobLimits({}, {})
        """as far as they were told last."""
        self._last: Snapshot | None = None
        """at the beginning of this window; None where nothing could be seen then."""
        self._knobs_took_s = 0.0
        """how long it took to be told the knobs last."""

    async def run(
        self,
        windows: int | None,
        tell: Callable[[Report], None],
        begun: Callable[[], None] = lambda: None,
    ) -> None:
        """Operates until it is cancelled, or for so many windows; then the lease ends.

        Args:
          tell: told about every window when it is over.
          begun: called when the first one begins.

        Raises:
          InputError: the deployment is not that of the task, or the log cannot be written.
        """
        self._compile()
        await self._begin()
        window_s = self._env.window_s
        due_s = time.monotonic()
        begun()
        count = 0
        try:
            while windows is None or count < windows:
                count += 1
                # An absolute schedule, but windows that were slept through are not caught up with.
                now_s = time.monotonic()
                due_s += window_s
                due_s = due_s if due_s > now_s else now_s + window_s
                # Engines answer between two steps: asked in time, they do not delay the command.
                early_s = min(self._knobs_took_s, _EARLY_SHARE * window_s)
                await asyncio.sleep(due_s - early_s - now_s)
                knobs = asyncio.create_task(self._knobs())
                try:
                    await asyncio.sleep(due_s - time.monotonic())
                    await self._one(knobs, tell)
                finally:
                    knobs.cancel()
        finally:
            if self._mode.steers:
                await self._release()

    async def _begin(self) -> None:
        seen, state = await self._first_look()
        self._last = seen
        fits = "`jaxserve live-task` makes one that fits"
        for name in self._turned:
            offer = seen.knobs["knobs"][name]
            if offer["how"] not in TURNED:
                raise InputError(
                    f"the task turns {name}, which the deployment does not "
                    f"({offer.get('reason')}); {fits}"
                )
        gpus = int(self._env.deployment.num_gpus)
        if seen.engines.count != gpus:
            raise InputError(
                f"the task has {gpus} GPUs and the gateway {seen.engines.count} engines; {fits}"
            )
        check_objectives(self._spec, state)

    async def _first_look(self) -> tuple[Snapshot, dict[str, Any]]:
        """No window has begun that a late answer could spoil."""
        until_s = time.monotonic() + _BEGIN_S
        while True:
            try:
                return await self._look(self._knobs()), await self._gateway.state()
            except GatewayError as error:
                if not isinstance(error, LateAnswer) or time.monotonic() > until_s:
                    raise InputError(str(error)) from None

    async def _knobs(self) -> dict[str, Any]:
        """What is in force, and how long it took to be told; raises GatewayError."""
        began_s = time.monotonic()
        knobs = await self._gateway.knobs()
        self._knobs_took_s = time.monotonic() - began_s
        return knobs

    async def _look(self, asked: Awaitable[dict[str, Any]]) -> Snapshot:
        """All that is known at the end of a window; ``asked`` gives the knobs.

        Raises GatewayError, or InputError where an answer cannot be.
        """
        since_s = None if self._last is None else self._last.window.until_s
        answers = await asyncio.gather(
            self._gateway.window(since_s, self._env.ticks), self._gateway.engines(), asked
        )
        knobs = parse_knobs(answers[2])
        self._limits = KnobLimits.of(knobs["knobs"], self._turned)
        return Snapshot(parse_window(answers[0]), parse_engine_state(answers[1], knobs), knobs)

    async def _one(self, asked: Awaitable[dict[str, Any]], tell: Callable[[Report], None]) -> None:
        """The end of one window and the beginning of the next; ``asked`` as for ``_look``."""
        started_s = time.monotonic()
        self._window += 1
        self._changed.append(frozenset())
        before = self._last
        try:
            self._last = seen = await self._look(asked)
        except (GatewayError, InputError) as error:
            self._last = None
            await self._blind(str(error), started_s, tell)
            return
        if before is None:
            await self._blind("nothing was known when the window began", started_s, tell)
            return
        window, knobs = seen.window, seen.knobs
        fault = self._fault(before, seen)
        in_force = self._now(knobs)
        metrics = measure(
            self._env,
            self._streams,
            window,
            before.engines,
            seen.engines,
            make_action(**in_force),
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
        if self._late(started_s):
            fault = fault or _LATE
        held = bool(knobs["held"])
        mode = Mode.OFF if held else self._mode
        good = float(np.sum(np.asarray(metrics.good)))
        if mode.steers:
            health = Health(fault, good, expected[2].good)
            self._supervision = supervise(self._rules, self._supervision, health)
        told = self._next(in_force)
        if mode.steers:
            knobs = await self._steer(told, knobs, started_s)
            self._changed[-1] = changed(in_force, self._now(knobs))
        changes = self._changes() if mode.steers else {}
        measured = Expectation(
            good, float(np.sum(np.asarray(metrics.ttft_met))), float(metrics.itl_s), math.nan
        )
        report = Report(
            window=self._window,
            mode="off (the switch)" if held else str(mode),
            reason=self._supervision.reason if mode.steers else fault,
            comparison=WindowComparison(measured, *expected),
            told=told,
            changes={name: n for name, n in changes.items() if name in self._most_changes},
        )
        self._log.window(
            self._seen,
            metrics,
            make_action(**in_force),
            {
                "window": self._window,
                "unix_s": time.time(),
                "seconds": window.seconds,
                "mode": report.mode,
                "reason": report.reason,
                "strangers": list(self._streams.strangers(window)),
                "acceptance_scale": self._scale,
                "wanted": plain(make_action(**self._wanted)),
                "told": told if mode.steers else {},
                "changes": changes,
                "echo": echo(knobs, told),
                "expected": {
                    name: dataclasses.asdict(each)
                    for name, each in zip(("in_force", "policy", "static"), expected, strict=True)
                },
            },
        )
        tell(report)

    def _late(self, started_s: float) -> bool:
        return time.monotonic() - started_s > _DEADLINE_SHARE * self._env.window_s

    def _fault(self, before: Snapshot, after: Snapshot) -> str | None:
        """What is wrong with a window, in one sentence."""
        window, window_s = after.window, self._env.window_s
        if window.gateway != before.window.gateway:
            return "the gateway was restarted"
        if after.engines.identity != before.engines.identity:
            return "an engine was restarted, or can no longer be read"
        if not window.complete:
            return "the gateway does not have all of the window"
        if not _SHORTEST * window_s < window.seconds < _LONGEST * window_s:
            return f"the window took {window.seconds:.3g} s in place of {window_s:g} s"
        if (counter := fell(before.engines, after.engines)) is not None:
            return f"the engines' counter of {counter} went back"
        knobs = after.knobs["knobs"]
        missing = [name for name in self._turned if knobs[name]["how"] not in TURNED]
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

    def _next(self, in_force: dict[str, float]) -> dict[str, float]:
        """The knobs to turn: the policy's, as far as one window may go, or the static ones."""
        if not self._supervision.steering:
            # At once: whoever falls step by step stays long in what has just gone wrong.
            wanted = self._static
        elif self._mode is Mode.FREE:
            wanted = self._wanted
        else:
            wanted = guarded(
                self._guard, in_force, self._wanted, self._since_costly, self._limits.allowed
            )
        if self._supervision.steering and self._mode.steers:
            wanted = limited(self._most_changes, self._changes(), in_force, wanted)
        self._since_costly = 0 if changed_costly(in_force, wanted) else self._since_costly + 1
        return self._limits.nearest(wanted)

    def _changes(self) -> dict[str, int]:
        """Changes in the last minute of every knob that the task turns."""
        counted = Counter(name for names in self._changed for name in names)
        return {name: counted[name] for name in self._turned}

    async def _steer(
        self, told: dict[str, float], knobs: dict[str, Any], started_s: float
    ) -> dict[str, Any]:
        """Turns knobs; what is in force then, or was before where the answer cannot be read."""
        found, reason = await self._tell(told)
        if reason is None and self._late(started_s):
            # Whoever has answered is asked once more, however late it is.
            reason, started_s = _LATE, time.monotonic()
        if reason is not None:
            found = await self._fall("fault", reason, started_s) or found
        return found or knobs

    async def _tell(self, told: dict[str, float]) -> tuple[dict[str, Any] | None, str | None]:
        """What is in force then, None where nobody says it, and why that is not what was told."""
        gone = [name for name in self._turned if name not in told]
        if gone:
            # To renew the lease would hold their last values as well.
            return None, f"{gone[0]} can no longer be turned"
        try:
            lease_s = LEASE_WINDOWS * self._env.window_s
            knobs = parse_knobs(await self._gateway.put(told, lease_s))
        except (GatewayError, InputError) as error:
            return None, str(error)
        return knobs, unacknowledged(knobs, told)

    async def _blind(self, reason: str, started_s: float, tell: Callable[[Report], None]) -> None:
        """Nothing is known of the window."""
        if self._mode.steers:
            await self._fall("blind", reason, started_s)
        else:
            self._log.event(self._window, "blind", reason)
        tell(Report(self._window, str(self._mode), reason))

    async def _fall(self, what: str, reason: str, since_s: float) -> dict[str, Any] | None:
        """The best static values; where they cannot be told, the lease ends.

        Args:
          since_s: from when on the deadline counts, after which nothing is told.

        Returns:
          what is in force then, None after the end of the lease.
        """
        self._supervision = supervise(self._rules, self._supervision, Health(reason))
        self._log.event(self._window, what, reason)
        if not self._late(since_s):
            found, missed = await self._tell(self._limits.nearest(self._static))
            if missed is None:
                return found
        await self._release()
        return None

    async def _release(self) -> None:
        try:
            await self._gateway.release()
        except GatewayError as error:
            self._log.event(self._window, "blind", f"the static values cannot be told: {error}")

    def _now(self, knobs: dict[str, Any]) -> dict[str, float]:
        """The knobs in force; those that nobody says are as the task locks them."""
        locked = as_values(self._env.locked)
        found = {name: knobs["knobs"][name].get("now") for name in KNOBS}
        now = {name: locked[name] if value is None else value for name, value in found.items()}
        # A gateway's cap may lie far above any knob's range.
        return {
            name: bound.number(min(max(float(value), bound.low), bound.high))
            for (name, value), bound in zip(now.items(), ACTION_BOUNDS.values(), strict=True)
        }

    def _compile(self) -> None:
        """Before the first window: a compilation would miss every deadline."""
        self._act(self._memory, self._seen, policy_key(self._key, 0))
        self._twins.compile()
        observe(self._env, self._seen, idle_metrics(len(self._env.slo.ttft_s)), None, 0)
