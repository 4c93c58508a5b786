"""Knobs that engines apply themselves: vLLM with ``jaxserve-vllm``, SGLang's live batch cap."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from jaxserve import checks
from jaxserve.gateway.engines.specs import EngineSpec
from jaxserve.gateway.engines.upstream import EngineRefused, Upstream, ask
from jaxserve.gateway.knobs.values import obeyed

_RANGE = ("now", "static", "least", "most")
_NOT_LIVE = "SGLang has no such knob while it serves"


@dataclass(frozen=True)
class EngineOffer:
    """Knobs that an engine offers at the moment."""

    engine_id: str | None = None
    """id of the engine's process, new after a restart; None where the engine reports none."""
    knobs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """``now``, ``static``, ``least`` and ``most`` of each offered knob."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """reasons why other knobs are not offered, by knob."""
    reason: str | None = None
    """reason for every other knob."""

    def why_not(self, knob: str) -> str:
        """Reason why a knob is not offered."""
        return self.reasons.get(knob) or self.reason or "it has no such knob"


class EngineKnobs(Protocol):
    """The knobs of one engine."""

    name: str
    """name of the engine."""
    leases: bool
    """whether the engine restores its static values by itself when a lease ends."""

    async def offer(self) -> EngineOffer:
        """Offered knobs with their values; an engine that does not answer offers none."""
        ...

    async def put(self, values: Mapping[str, float], lease_s: float) -> EngineOffer:
        """Sets knobs; values of knobs that the engine does not offer are ignored.

        Args:
          values: values by knob.
          lease_s: duration of the lease, s.

        Returns:
          the offer after the command.

        Raises:
          EngineRefused: the engine did not obey.
        """
        ...

    async def release(self) -> None:
        """Restores the static values.

        Raises:
          EngineRefused: the engine did not answer.
        """
        ...


def engine_knobs(spec: EngineSpec, upstream: Upstream) -> EngineKnobs:
    """Knobs of an engine by its kind."""
    return (SglangKnobs if spec.kind == "sglang" else VllmKnobs)(spec, upstream)


class VllmKnobs:
    """Knobs of vLLM with the plug-in ``jaxserve-vllm``, or of another engine with the same route
    ``/jaxserve/control``."""

    leases = True

    def __init__(self, spec: EngineSpec, upstream: Upstream) -> None:
        """Args: the engine, and the connections."""
        self.name = spec.name
        self._spec = spec
        self._upstream = upstream

    async def offer(self) -> EngineOffer:
        """See ``EngineKnobs``."""
        try:
            return _plugin_offer(await self._ask("GET"))
        except EngineRefused as error:
            return EngineOffer(reason=str(error))

    async def put(self, values: Mapping[str, float], lease_s: float) -> EngineOffer:
        """See ``EngineKnobs``; the lease is the engine's own."""
        answer = await self._ask("PUT", {"lease_s": lease_s, "knobs": dict(values)})
        return _acknowledged(self.name, values, _plugin_offer(answer))

    async def release(self) -> None:
        """See ``EngineKnobs``."""
        await self._ask("DELETE")

    async def _ask(self, method: str, content: Any = None) -> Any:
        return await ask(self._upstream, self._spec, method, "/jaxserve/control", content)


class SglangKnobs:
    """Knobs of SGLang: the batch cap is live without pipeline parallelism.

    ``POST /set_internal_state`` of 0.5.23 takes the cap as ``pp_max_micro_batch_size``, and
    ``/server_info`` shows the current and the static one. SGLang has no leases: the gateway ends
    them.
    """

    leases = False

    _FIELD = "pp_max_micro_batch_size"

    def __init__(self, spec: EngineSpec, upstream: Upstream) -> None:
        """Args: the engine, and the connections."""
        self.name = spec.name
        self._spec = spec
        self._upstream = upstream

    async def offer(self) -> EngineOffer:
        """See ``EngineKnobs``."""
        try:
            return self._offer(await self._info())
        except EngineRefused as error:
            return EngineOffer(reason=str(error))

    def _offer(self, info: Any) -> EngineOffer:
        info = info if isinstance(info, dict) else {}
        states = info.get("internal_states")
        ranks = states if isinstance(states, list) else []
        ranks = [rank if isinstance(rank, dict) else {} for rank in ranks]
        allowed = [_count(rank.get("effective_max_running_requests_per_dp")) for rank in ranks]
        most = min((each for each in allowed if each is not None), default=None)
        if info.get("pp_size", 1) != 1 or most is None or None in allowed:
            return EngineOffer(
                reasons={
                    "batch_cap": "SGLang's cap is live only without pipeline parallelism, and "
                    "where /server_info says how many requests may run"
                },
                reason=_NOT_LIVE,
            )
        now = {min(_count(rank.get(self._FIELD)) or most, most) for rank in ranks}
        cap = {
            "now": now.pop() if len(now) == 1 else None,
            "static": min(_count(info.get(self._FIELD)) or most, most),
            "least": 1.0,
            "most": most,
        }
        return EngineOffer(knobs={"batch_cap": cap}, reason=_NOT_LIVE)

    async def put(self, values: Mapping[str, float], lease_s: float) -> EngineOffer:
        """See ``EngineKnobs``."""
        del lease_s
        if "batch_cap" in values:
            return await self._cap(values["batch_cap"])
        return await self.offer()

    async def release(self) -> None:
        """See ``EngineKnobs``."""
        cap = self._offer(await self._info()).knobs.get("batch_cap")
        if cap is not None and cap["now"] != cap["static"]:
            await self._cap(cap["static"])

    async def _info(self) -> Any:
        return await ask(self._upstream, self._spec, "GET", "/server_info")

    async def _cap(self, value: float) -> EngineOffer:
        content = {"server_args": {self._FIELD: int(value)}}
        answer = await ask(self._upstream, self._spec, "POST", "/set_internal_state", content)
        # The answer has one entry per data-parallel rank.
        if not isinstance(answer, list) or not answer or not all(done is True for done in answer):
            raise EngineRefused(f"engine {self.name} did not take a batch cap of {value:g}")
        return _acknowledged(self.name, {"batch_cap": value}, self._offer(await self._info()))


def _acknowledged(engine: str, values: Mapping[str, float], offer: EngineOffer) -> EngineOffer:
    """Returns the offer after a command; raises EngineRefused where other values are in force."""
    for name, value in values.items():
        now = offer.knobs.get(name, {}).get("now")
        if not obeyed(name, value, now):
            raise EngineRefused(f"engine {engine} has {name} {now} after it was told {value:g}")
    return offer


def _plugin_offer(answer: Any) -> EngineOffer:
    """Joint offer of all data-parallel engines behind an address."""
    try:
        engines = answer["engines"]
        knobs: dict[str, dict[str, float | None]] = {}
        reasons: dict[str, str] = {}
        for name in engines[0]["knobs"]:
            each = [engine["knobs"][name] for engine in engines]
            if all(knob["offered"] for knob in each):
                now, static, least, most = (
                    [_number(knob[word]) for knob in each] for word in _RANGE
                )
                knobs[name] = {
                    "now": now[0] if len(set(now)) == 1 else None,
                    "static": static[0],
                    "least": max(least),
                    "most": min(most),
                }
            else:
                reasons[name] = str(next(k["reason"] for k in each if not k["offered"]))[:200]
        return EngineOffer(
            engine_id="+".join(str(engine["engine_id"]) for engine in engines),
            knobs=knobs,
            reasons=reasons,
        )
    except (KeyError, IndexError, TypeError, ValueError):
        raise EngineRefused("an engine's control answers something else") from None


def _number(value: Any) -> float:
    if not checks.is_finite(value):
        raise ValueError
    return value


def _count(value: Any) -> float | None:
    """A number of requests; None for anything but a whole number from 1 on."""
    usable = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    return float(value) if usable else None
