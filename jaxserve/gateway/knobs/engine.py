"""Knobs that engines turn themselves: vLLM with ``jaxserve-vllm``, SGLang's live batch cap."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import orjson

from jaxserve import checks
from jaxserve.gateway.engines.specs import EngineSpec
from jaxserve.gateway.engines.upstream import NotBegun, Upstream, chunks, join
from jaxserve.gateway.http import headers as names
from jaxserve.gateway.http.errors import Problem
from jaxserve.gateway.knobs.values import obeyed

ANSWER_WITHIN_S = 10.0
_LONGEST = 4 * 2**20
_RANGE = ("now", "static", "least", "most")
_NOT_LIVE = "SGLang has no such knob while it serves"


class EngineRefused(Exception):
    """An engine did not do as it was told; the reason in one sentence."""


@dataclass(frozen=True)
class EngineOffer:
    """What an engine offers at the moment."""

    engine_id: str | None = None
    """changes when it is restarted; None where it does not say."""
    knobs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """``now``, ``static``, ``least`` and ``most`` of each knob that it turns."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """why it does not turn others."""
    reason: str | None = None
    """why nothing is known of it."""

    def why_not(self, knob: str) -> str:
        """Why it does not turn a knob."""
        return self.reasons.get(knob) or self.reason or "it has no such knob"


class EngineKnobs(Protocol):
    """The knobs of one engine."""

    name: str
    leases: bool
    """whether it falls back by itself when commands stop."""

    async def offer(self) -> EngineOffer:
        """What it offers and what is in force; never raises for an engine that does not answer."""
        ...

    async def put(self, values: Mapping[str, float], lease_s: float) -> EngineOffer:
        """Turns knobs; those that it does not offer are none of its business.

        Returns:
          as ``offer``, after it.

        Raises:
          EngineRefused: it did not.
        """
        ...

    async def release(self) -> None:
        """Back to the static values.

        Raises:
          EngineRefused: it did not answer.
        """
        ...


def engine_knobs(spec: EngineSpec, upstream: Upstream) -> EngineKnobs:
    """Those of an engine by its kind."""
    return (SglangKnobs if spec.kind == "sglang" else VllmKnobs)(spec, upstream)


class VllmKnobs:
    """vLLM with the plug-in ``jaxserve-vllm``, or whatever has the same ``/jaxserve/control``."""

    leases = True

    def __init__(self, spec: EngineSpec, upstream: Upstream) -> None:
        """Args: which engine, and the connections."""
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
    """SGLang: its batch cap is live where there is no pipeline parallelism.

    ``POST /set_internal_state`` of 0.5.23 takes it as ``pp_max_micro_batch_size``, and
    ``/server_info`` shows it beside the one that the engine was started with. It has no lease, so
    that the gateway ends it.
    """

    leases = False

    _FIELD = "pp_max_micro_batch_size"

    def __init__(self, spec: EngineSpec, upstream: Upstream) -> None:
        """Args: which engine, and the connections."""
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
        # One answer of each data-parallel rank.
        if not isinstance(answer, list) or not answer or not all(done is True for done in answer):
            raise EngineRefused(f"engine {self.name} did not take a batch cap of {value:g}")
        return _acknowledged(self.name, {"batch_cap": value}, self._offer(await self._info()))


async def ask(
    upstream: Upstream, spec: EngineSpec, method: str, path: str, content: Any = None
) -> Any:
    """One JSON request to an engine's own routes.

    Raises:
      EngineRefused: no answer in time, or one that is an error or no JSON.
    """
    status, text = await ask_text(upstream, spec, method, path, content)
    try:
        answer = orjson.loads(text)
    except orjson.JSONDecodeError:
        answer = None
    if status == 404:
        raise EngineRefused(f"engine {spec.name} has no {path}")
    if status != 200 or answer is None:
        said = answer.get("error") if isinstance(answer, dict) else None
        reason = f": {said!s:.200}" if said else f" with status {status}"
        raise EngineRefused(f"engine {spec.name} refused{reason}")
    return answer


async def ask_text(
    upstream: Upstream, spec: EngineSpec, method: str, path: str, content: Any = None
) -> tuple[int, bytes]:
    """Status and body of an engine's answer on one of its own routes.

    Args:
      path: one of the gateway's own table.

    Raises:
      EngineRefused: no answer in time.
    """
    key = spec.control_key or spec.key
    headers = names.to_engine((), key, None)
    body = None
    if content is not None:
        body = orjson.dumps(content)
        headers.append(("content-type", "application/json"))
    try:
        async with asyncio.timeout(ANSWER_WITHIN_S):
            response = await upstream.open(spec, method, path, b"", headers, body)
            try:
                text = await join(chunks(response, spec.name), spec.name, _LONGEST)
            finally:
                response.close()
    except TimeoutError:
        raise EngineRefused(
            f"engine {spec.name} did not answer within {ANSWER_WITHIN_S:g} s"
        ) from None
    except NotBegun:
        raise EngineRefused(f"engine {spec.name} cannot be reached") from None
    except Problem as problem:
        raise EngineRefused(str(problem)) from None
    return response.status, text


def _acknowledged(engine: str, values: Mapping[str, float], offer: EngineOffer) -> EngineOffer:
    """What an engine offers after it was told ``values``; raises where others are in force."""
    for name, value in values.items():
        now = offer.knobs.get(name, {}).get("now")
        if not obeyed(name, value, now):
            raise EngineRefused(f"engine {engine} has {name} {now} after it was told {value:g}")
    return offer


def _plugin_offer(answer: Any) -> EngineOffer:
    """All data-parallel engines behind one address, as one."""
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
    """A number of requests, None where there is none."""
    usable = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    return float(value) if usable else None
