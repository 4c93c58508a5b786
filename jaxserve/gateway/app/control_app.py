"""The door for controllers: metrics, aggregates of windows, records, engines and their knobs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from jaxserve.checks import JsonObject
from jaxserve.errors import InputError
from jaxserve.gateway.engines.admission import Pool
from jaxserve.gateway.engines.scrape import Readings
from jaxserve.gateway.exchange.in_flight import Calls
from jaxserve.gateway.http.auth import not_from_here, of_a_page, shows
from jaxserve.gateway.http.json_http import command_of, number_in, plain_json
from jaxserve.gateway.knobs.engine import EngineRefused
from jaxserve.gateway.knobs.hold import NotKept
from jaxserve.gateway.knobs.steering import Steering
from jaxserve.gateway.knobs.values import ENGINE_KNOBS, MAX_LEASE_S
from jaxserve.gateway.measure.ledger import Ledger
from jaxserve.gateway.settings import CONTROL_TOKEN_VARIABLE

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_LONGEST_WINDOW_S = 86_400.0
_MOST_SLICES = 1024


class ControlDoor:
    """ASGI application on a port of its own."""

    def __init__(
        self,
        token: str | None,
        pools: Mapping[str, Pool],
        calls: Calls,
        ledger: Ledger,
        steering: Steering,
        readings: Callable[[], Readings | None],
        more: Sequence[Route] = (),
    ) -> None:
        """Args: what controllers must show, the engines, what is in flight, the books, the knobs,
        what engines say of themselves, and routes beside its own."""
        self._token = token
        self._steering = steering
        self._readings = readings
        self._pools = pools
        self._calls = calls
        self._ledger = ledger
        self._router = Router(
            [
                Route("/metrics", self._metrics),
                Route("/control/window", self._window),
                Route("/control/records", self._records),
                Route("/control/state", self._state),
                Route("/control/engines", self._engines),
                Route("/control/knobs", self._knobs, methods=["GET", "PUT", "DELETE"]),
                Route("/control/hold", self._hold, methods=["PUT"]),
                *more,
            ]
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        try:
            self._admit(scope)
            # The router then raises what it would answer itself.
            await self._router({**scope, "app": self}, receive, send)
        except (HTTPException, InputError, EngineRefused, NotKept) as error:
            refused = {EngineRefused: 502, NotKept: 500}.get(type(error), 400)
            status = error.status_code if isinstance(error, HTTPException) else refused
            text = error.detail if isinstance(error, HTTPException) else str(error)
            headers = error.headers if isinstance(error, HTTPException) else None
            await plain_json({"error": text}, status, headers)(scope, receive, send)

    def _admit(self, scope: Scope) -> None:
        """Raises HTTPException where a request may not."""
        if not shows(scope["headers"], self._token):
            said = "control asks for a token: Authorization: Bearer TOKEN"
            raise HTTPException(401, said, {"WWW-Authenticate": "Bearer"})
        if self._token is None:
            headers, client = Headers(scope=scope), (scope.get("client") or (None,))[0]
            why = not_from_here(CONTROL_TOKEN_VARIABLE, client, headers)
            # A page reads nothing of another site, but could have it computed.
            why = why or of_a_page(CONTROL_TOKEN_VARIABLE, headers, is_here=True)
            if why is not None:
                raise HTTPException(403, why)

    async def _metrics(self, request: Request) -> Response:
        return Response(self._ledger.metrics.text(), media_type=_METRICS_TYPE)

    async def _window(self, request: Request) -> Response:
        """``?seconds=10``, or ``?since=`` with the ``until_s`` of the last answer: windows that
        follow each other lose and repeat nothing. ``&slices=8`` adds single measurements."""
        until_s = time.monotonic()
        if "since" in request.query_params:
            since_s = number_in(request, "since", 0.0, until_s)
        else:
            since_s = until_s - number_in(request, "seconds", 0.001, _LONGEST_WINDOW_S, 10.0)
        books = self._ledger
        slices = int(number_in(request, "slices", 0.0, _MOST_SLICES, 0.0))
        window = books.windows.window(books.records, since_s, until_s, slices)
        return plain_json({"gateway": books.id, **window, **self._now()})

    async def _records(self, request: Request) -> Response:
        """``?last=100``: requests that ended, the last one last."""
        ring = self._ledger.records.ring
        count = int(number_in(request, "last", 1.0, 1e6, 100.0))
        return plain_json({"records": list(ring)[-count:]})

    async def _state(self, request: Request) -> Response:
        objectives = {
            name: {"ttft_s": one.ttft_s, "tpot_s": one.tpot_s}  # no limit becomes null
            for name, one in self._ledger.classes.slos.items()
        }
        return plain_json({"gateway": self._ledger.id, "objectives": objectives, **self._now()})

    async def _engines(self, request: Request) -> Response:
        """What every engine says of itself on its ``/metrics``."""
        readings = self._readings()
        return plain_json(
            {"now_s": time.monotonic(), "engines": await readings.read() if readings else {}}
        )

    async def _knobs(self, request: Request) -> Response:
        """GET what is in force, PUT values under a lease, DELETE the lease."""
        if request.method == "GET":
            return plain_json(await self._steering.state())
        if request.method == "DELETE":
            return plain_json(await self._steering.release())
        command = JsonObject(await command_of(request), "the command", ("lease_s", "knobs"))
        lease_s = command.number("lease_s", 0.1, MAX_LEASE_S)
        knobs = command.inside("knobs", ENGINE_KNOBS)
        return plain_json(
            await self._steering.put({name: knobs.number(name) for name in knobs}, lease_s)
        )

    async def _hold(self, request: Request) -> Response:
        """``{"held": true}`` switches control off, false on again."""
        asked = JsonObject(await command_of(request), "the command", ("held",))
        return plain_json(await self._steering.hold(asked.flag("held")))

    def _now(self) -> dict[str, Any]:
        """What is so at this moment."""
        return {
            "now_s": time.monotonic(),
            "in_gateway": len(self._calls),
            "in_flight": self._calls.by_class(),
            "stopping": self._calls.stopping,
            "pools": {pool.name: _pool_state(pool) for pool in self._pools.values()},
        }


def gauges(
    pools: Mapping[str, Pool], calls: Calls, ledger: Ledger
) -> Iterable[tuple[str, str, str, Mapping[str, float]]]:
    """What metrics show of this moment."""
    replicas = [replica for pool in pools.values() for replica in pool.replicas]
    yield (
        "running",
        "Requests at an engine.",
        "engine",
        {one.spec.name: one.in_flight for one in replicas},
    )
    yield (
        "engine_up",
        "1 unless the last connection to an engine could not be made.",
        "engine",
        {one.spec.name: float(one.up) for one in replicas},
    )
    yield (
        "waiting",
        "Requests in the queue of a pool.",
        "pool",
        {name: pool.waiting for name, pool in pools.items()},
    )
    yield (
        "in_gateway",
        "Requests in the gateway, those being read included.",
        "gateway",
        {ledger.id: len(calls)},
    )
    yield (
        "records_lost",
        "Records that the file did not take.",
        "gateway",
        {ledger.id: ledger.records.lost},
    )


def _pool_state(pool: Pool) -> dict[str, Any]:
    return {
        "waiting": pool.waiting,
        "running": sum(one.in_flight for one in pool.replicas),
        "engines": [
            {
                "name": one.spec.name,
                "kind": one.spec.kind,
                "tier": one.spec.tier,
                "depth": one.spec.depth,
                "cap": one.spec.cap,
                "running": one.in_flight,
                "up": one.up,
            }
            for one in pool.replicas
        ],
    }
