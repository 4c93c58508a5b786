"""Answers of a gateway's control routes, parsed and checked, so that all numbers are finite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxserve import checks
from jaxserve.checks import JsonObject
from jaxserve.engine_control.command import ENGINE_KNOBS
from jaxserve.errors import InputError
from jaxserve.live.fleet import LiveFleet

HOW = ("exact", "approximated", "restart_required", "unsupported")
"""Ways in which deployments turn a knob, or do not."""

COUNTERS = ("preemptions", "drafted", "accepted", "prompt_tokens", "output_tokens")
"""Counters of an engine since its start."""
TURNED = ("exact", "approximated")
"""Ways in which a controller can turn a knob."""

_SHORTEST, _LONGEST = 0.5, 1.5
"""Shares of the nominal window: windows outside them are faults."""
_RANGE = ("least", "most")
_NOBODY = {"waiting": 0, "running": 0}


@dataclass(frozen=True)
class ClassWindow:
    """One class of requests in a control window, measured by the gateway."""

    arrivals: tuple[int, ...]
    """arrivals in equal slices of the window."""
    first_tokens: int
    ttft_s: tuple[float, ...]
    """TTFT of every first token in the window, s."""
    completed: int
    good: int
    """completed requests inside the gateway's objectives."""
    judged: int
    """requests of which the gateway knows whether they were inside its objectives, besides the
    rejected and failed ones."""
    unjudged: int
    """requests that ended, and of which it does not know that."""
    rejected: int
    failed: int
    tpot_mean_s: float | None
    waiting: int
    """requests without a first token at the end of the window, queued or in prefill."""
    running: int
    """requests with a first token at the end of the window."""
    on_track: int
    """running requests inside their objectives so far; 0 at a gateway, which has no such figure."""
    prompt_tokens: int
    """prompt tokens of the ended requests."""
    output_tokens: int


@dataclass(frozen=True)
class EngineState:
    """State of all engines together."""

    counters: Mapping[str, Mapping[str, float | None]]
    """``COUNTERS`` of each engine whose metrics can be read, by the engine's id, which a restart
    changes; None where it lacks the counter."""
    waiting: float | None
    """requests that wait for admission, summed over engines; None if one lacks the figure."""
    kv_use: float | None
    """share of the KV blocks in use, mean over engines."""
    kv_tokens: float | None
    """KV pool of one engine, tokens, the least over engines."""
    up: int
    count: int


@dataclass(frozen=True)
class LiveWindow:
    """A control window of a real deployment."""

    gateway: str
    """id of the gateway's process."""
    since_s: float
    until_s: float
    complete: bool
    """whether the gateway still has the whole window."""
    classes: Mapping[str, ClassWindow]
    queued: int
    """requests that wait in the gateway for an engine, at the end of the window."""
    itl_mean_s: float | None
    itl_p50_s: float | None
    itl_p99_s: float | None
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    arrivals_by_priority: Mapping[int, int]

    @property
    def seconds(self) -> float:
        """Length of the window."""
        return self.until_s - self.since_s


@dataclass(frozen=True)
class Snapshot:
    """A deployment at the end of a window."""

    window: LiveWindow
    engines: EngineState
    knobs: dict[str, Any]
    """as ``parse_knobs`` returns them; with a fleet, the number of replicas is one of them."""
    fleet: LiveFleet | None = None
    """None where all replicas serve all the time."""


def window_fault(
    before: Snapshot, after: Snapshot, window_s: float, turned: Sequence[str]
) -> str | None:
    """The fault of the window between two snapshots, in one sentence; None without a fault.

    Args:
      window_s: nominal length of a window, s.
      turned: knobs that the task turns.
    """
    window = after.window
    if window.gateway != before.window.gateway:
        return "the gateway was restarted"
    # Replicas of a fleet come and go.
    if after.fleet is None and after.engines.counters.keys() != before.engines.counters.keys():
        return "an engine was restarted, or can no longer be read"
    if not window.complete:
        return "the gateway does not have all of the window"
    if not _SHORTEST * window_s < window.seconds < _LONGEST * window_s:
        return f"the window took {window.seconds:.3g} s in place of {window_s:g} s"
    if (counter := fell(before.engines, after.engines)) is not None:
        return f"the engines' counter of {counter} went back"
    knobs = after.knobs["knobs"]
    missing = [name for name in turned if knobs[name]["how"] not in TURNED]
    return f"{missing[0]} can no longer be turned" if missing else None


def parse_window(data: Any) -> LiveWindow:
    """Parses an answer of ``/control/window?slices=``.

    Raises:
      InputError: a field is missing or has a wrong value.
    """
    top = JsonObject(data, "the window")
    in_flight, pools = top.inside("in_flight"), top.inside("pools")
    classes = top.inside("classes")
    priorities = top.inside("arrivals_by_priority")
    return LiveWindow(
        gateway=top.text("gateway"),
        since_s=top.number("since_s", 0.0),
        until_s=top.number("until_s", 0.0),
        complete=top.flag("complete"),
        classes={name: _class(classes.inside(name), in_flight.get(name)) for name in classes},
        queued=sum(pools.inside(name).whole("waiting", 0) for name in pools),
        itl_mean_s=_optional(top, "itl_mean_s"),
        itl_p50_s=_optional(top, "itl_p50_s"),
        itl_p99_s=_optional(top, "itl_p99_s"),
        ttft_p50_s=_optional(top, "ttft_p50_s"),
        ttft_p99_s=_optional(top, "ttft_p99_s"),
        arrivals_by_priority={
            _whole_text(priorities, name): priorities.whole(name, 0) for name in priorities
        },
    )


def parse_knobs(data: Any) -> dict[str, Any]:
    """Checks the fields of ``/control/knobs`` that controllers use, and returns the answer.

    Raises:
      InputError: a field is missing or has a wrong value.
    """
    top = JsonObject(data, "the knobs")
    top.flag("held")
    engines, knobs = top.inside("engines"), top.inside("knobs")
    for name in engines:
        engines.inside(name)
    for name in ENGINE_KNOBS:
        knob = knobs.inside(name)
        knob.one_of("how", HOW)
        if knob.get("where") is None:
            continue
        for key in _RANGE:
            knob.number(key)
        for key in ("now", "static"):
            if knob.get(key) is not None:
                knob.number(key)
        if "allowed" in knob:
            knob.numbers("allowed", len(knob.entries("allowed")))
    return dict(top)


def parse_engine_state(data: Any, knobs: Mapping[str, Any]) -> EngineState:
    """Parses the field ``engines`` of ``/control/engines``.

    Args:
      knobs: as ``parse_knobs`` returns them.

    Raises:
      InputError: a field is missing or has a wrong value.
    """
    engines = JsonObject(data, "the engines")
    controls = knobs["engines"]
    read = {name: engines.inside(name) for name in engines}
    well = [engine for engine in read.values() if "error" not in engine]
    if not well:
        reasons = [str(engine.get("error")) for engine in read.values()]
        raise InputError(
            f"no engine shows its metrics: {reasons[0] if reasons else 'none is there'}"
        )

    def of_all(key: str) -> list[float]:
        found = [_optional(engine, key) for engine in well]
        return [value for value in found if value is not None]

    def total(key: str) -> float | None:
        values = of_all(key)
        return sum(values) if len(values) == len(read) else None

    kv_use, kv_tokens = of_all("kv_use"), of_all("kv_tokens")
    return EngineState(
        counters={
            f"{name}:{controls.get(name, {}).get('engine_id')}:{engine.get('started_unix_s')}": {
                counter: _optional(engine, counter) for counter in COUNTERS
            }
            for name, engine in sorted(read.items())
            if "error" not in engine
        },
        waiting=total("waiting"),
        kv_use=sum(kv_use) / len(kv_use) if kv_use else None,
        kv_tokens=min(kv_tokens) if kv_tokens else None,
        up=len(well),
        count=len(read),
    )


def counted(before: EngineState, after: EngineState, name: str) -> float | None:
    """Rise of a counter over the engines that could be read before and after; None if there is no
    such engine, an engine cannot be read now, or the counter is unknown to one or fell."""
    both = before.counters.keys() & after.counters.keys()
    if not both or after.up < after.count:
        return None
    rise = 0.0
    for engine in both:
        first, second = before.counters[engine][name], after.counters[engine][name]
        if first is None or second is None or second < first:
            return None
        rise += second - first
    return rise


def fell(before: EngineState, after: EngineState) -> str | None:
    """The first counter that fell, as after a restart; None without one."""
    for engine in before.counters.keys() & after.counters.keys():
        for name in COUNTERS:
            first, second = before.counters[engine][name], after.counters[engine][name]
            if first is not None and second is not None and second < first:
                return name
    return None


def _class(data: JsonObject, in_flight: Any) -> ClassWindow:
    flight = JsonObject(_NOBODY if in_flight is None else in_flight, f"{data.where}: in flight")
    times = data.get("ttft_s")
    if not isinstance(times, list):
        raise InputError(f"{data.where}: ttft_s is no list; ask for slices")
    slices = data.entries("arrivals_by_slice")
    name = data.name("arrivals_by_slice")
    return ClassWindow(
        arrivals=tuple(checks.whole(name, count, 0) for count in slices),
        first_tokens=data.whole("first_tokens", 0),
        ttft_s=data.numbers("ttft_s", len(times), 0.0),
        completed=data.whole("completed", 0),
        good=data.whole("good", 0),
        judged=data.whole("judged", 0),
        unjudged=data.whole("unjudged", 0),
        rejected=data.whole("rejected", 0),
        failed=data.whole("failed", 0),
        tpot_mean_s=_optional(data, "tpot_mean_s"),
        waiting=flight.whole("waiting", 0),
        running=flight.whole("running", 0),
        on_track=flight.whole("on_track", 0) if "on_track" in flight else 0,
        prompt_tokens=data.whole("prompt_tokens", 0),
        output_tokens=data.whole("output_tokens", 0),
    )


def _whole_text(data: JsonObject, name: str) -> int:
    try:
        return int(name)
    except ValueError:
        raise InputError(f"{data.where}: {name!r:.60} is no priority") from None


def _optional(data: JsonObject, key: str) -> float | None:
    return None if data.get(key) is None else data.number(key, 0.0)
