"""The application for controllers: metrics, windows, records, engines, knobs and the pause."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from jaxserve import checks
from jaxserve.checks import JsonObject
from jaxserve.engine_control.command import ENGINE_KNOBS, MAX_LEASE_S
from jaxserve.errors import InputError
from jaxserve.gateway.engines.admission import Pool
from jaxserve.gateway.engines.scrape import EngineMetricsReader
from jaxserve.gateway.engines.upstream import EngineRefused
from jaxserve.gateway.exchange.in_flight import InFlight
from jaxserve.gateway.exchange.pause import InferencePause
from jaxserve.gateway.http.auth import browser_page_refusal, has_token, remote_refusal
from jaxserve.gateway.http.json_http import command_of, number_in, plain_json
from jaxserve.gateway.knobs.hold import HoldNotSaved
from jaxserve.gateway.knobs.steering import Steering
from jaxserve.gateway.measure.ledger import Ledger
from jaxserve.gateway.measure.metrics import Gauges
from jaxserve.gateway.settings import CONTROL_TOKEN_VARIABLE

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_MAX_WINDOW_S = 86_400.0
_MAX_SLICES = 1024


class ControlApp:
    """ASGI application of the control port."""

    def __init__(
        self,
        token: str | None,
        pools: Mapping[str, Pool],
        in_flight: InFlight,
        ledger: Ledger,
        steering: Steering,
        engine_metrics: EngineMetricsReader,
        more: Sequence[Route] = (),
    ) -> None:
        """Args:
        token: control token; None allows direct requests from this machine only.
        pools: pools by name.
        in_flight: requests in flight.
        ledger: measurements.
        steering: knobs.
        engine_metrics: reader of the engines' metrics.
        more: further routes.
        """
        self._token = token
        self._steering = steering
        self._engine_metrics = engine_metrics
        self._pools = pools
        self._in_flight = in_flight
        self._ledger = ledger
        self._router = Router(
            [
                Route("/metrics", self._metrics),
                Route("/control/window", self._window),
                Route("/control/records", self._records),
                Route("/control/state", self._state),
                Route("/control/engines", self._engines),
                Route("/control/serving", self._serving, methods=["PUT"]),
                Route("/control/knobs", self._knobs, methods=["GET", "PUT", "DELETE"]),
                Route("/control/hold", self._hold, methods=["PUT"]),
                *more,
            ]
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        try:
            self._admit(scope)
            # With an app in its scope, the router raises its errors in place of answering them.
            await self._router({**scope, "app": self}, receive, send)
        except (HTTPException, InputError, EngineRefused, HoldNotSaved) as error:
            refused = {EngineRefused: 502, HoldNotSaved: 500}.get(type(error), 400)
            status = error.status_code if isinstance(error, HTTPException) else refused
            text = error.detail if isinstance(error, HTTPException) else str(error)
            headers = error.headers if isinstance(error, HTTPException) else None
            await plain_json({"error": text}, status, headers)(scope, receive, send)

    def _admit(self, scope: Scope) -> None:
        """Raises HTTPException for a request without the right to control."""
        if not has_token(scope["headers"], self._token):
            message = "control asks for a token: Authorization: Bearer TOKEN"
            raise HTTPException(401, message, {"WWW-Authenticate": "Bearer"})
        if self._token is None:
            headers, client = Headers(scope=scope), (scope.get("client") or (None,))[0]
            why = remote_refusal(CONTROL_TOKEN_VARIABLE, client, headers)
            # A page cannot read responses of another site, but could cause the work.
            why = why or browser_page_refusal(CONTROL_TOKEN_VARIABLE, headers, is_here=True)
            if why is not None:
                raise HTTPException(403, why)

    async def _metrics(self, request: Request) -> Response:
        return Response(self._ledger.metrics.text(), media_type=_METRICS_TYPE)

    async def _window(self, request: Request) -> Response:
        """``?seconds=10``, or ``?since=`` the ``until_s`` of the last response: consecutive windows
        neither lose nor repeat a measurement. ``&slices=8`` adds single measurements."""
        until_s = time.monotonic()
        if "since" in request.query_params:
            since_s = number_in(request, "since", 0.0, until_s)
        else:
            since_s = until_s - number_in(request, "seconds", 0.001, _MAX_WINDOW_S, 10.0)
        ledger = self._ledger
        slices = int(number_in(request, "slices", 0.0, _MAX_SLICES, 0.0))
        window = ledger.windows.window(ledger.records, since_s, until_s, slices)
        return plain_json({"gateway": ledger.id, **window, **self._now()})

    async def _records(self, request: Request) -> Response:
        """``?last=100``: records of the last requests that ended, in their order."""
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
        """Metrics of every engine."""
        now_s = time.monotonic()
        return plain_json({"now_s": now_s, "engines": await self._engine_metrics.read()})

    async def _serving(self, request: Request) -> Response:
        """``{"engines": ["vllm-0"]}`` get new requests; the others drain: they end those that they
        have."""
        command = JsonObject(await command_of(request), "the command", ("engines",))
        wanted = command.entries("engines")
        replicas = {one.spec.name: one for pool in self._pools.values() for one in pool.replicas}
        for name in wanted:
            checks.one_of("engines", name, tuple(replicas))
        for pool in self._pools.values():
            if not any(one.spec.name in wanted for one in pool.replicas):
                raise InputError(f"engines leaves pool {pool.name} without an engine that serves")
        for name, one in replicas.items():
            one.serving = name in wanted
        for pool in self._pools.values():
            pool.places_changed()
        return plain_json(self._now())

    async def _knobs(self, request: Request) -> Response:
        """GET the state of all knobs, PUT values under a lease, DELETE the lease."""
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
        """``{"held": true}`` switches control off, ``false`` on again."""
        command = JsonObject(await command_of(request), "the command", ("held",))
        return plain_json(await self._steering.hold(command.flag("held")))

    def _now(self) -> dict[str, Any]:
        """Load of the gateway at this moment."""
        return {
            "now_s": time.monotonic(),
            "in_gateway": len(self._in_flight),
            "in_flight": self._in_flight.by_class(),
            "stopping": self._in_flight.stopping,
            "pools": {pool.name: _pool_state(pool) for pool in self._pools.values()},
        }


def pause_routes(inference: InferencePause) -> list[Route]:
    """Routes for the pause of inference and the version of the weights."""

    async def status(request: Request) -> Response:
        return plain_json(inference.status())

    async def pause(request: Request) -> Response:
        inference.pause()
        return plain_json(inference.status())

    async def resume(request: Request) -> Response:
        inference.resume()
        return plain_json(inference.status())

    async def weights(request: Request) -> Response:
        """``{"version": "step-20"}`` is the version in all records from now on."""
        command = JsonObject(await command_of(request), "the command", ("version",))
        inference.weight_version = command.text("version")
        return plain_json(inference.status())

    return [
        Route("/control/inference/status", status),
        Route("/control/inference/pause", pause, methods=["PUT", "POST"]),
        Route("/control/inference/resume", resume, methods=["PUT", "POST"]),
        Route("/control/weights", weights, methods=["PUT"]),
    ]


def gauges(
    ledger: Ledger,
    pools: Mapping[str, Pool],
    in_flight: InFlight,
    steering: Steering,
    inference: InferencePause,
) -> Gauges:
    """Gauges of the metrics at this moment."""
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
        "engine_serving",
        "1 while an engine gets new requests; 0 while it drains.",
        "engine",
        {one.spec.name: float(one.serving) for one in replicas},
    )
    yield (
        "waiting",
        "Requests in the queue of a pool.",
        "pool",
        {name: pool.waiting for name, pool in pools.items()},
    )
    slos = ledger.classes.slos
    for field in ("ttft_s", "tpot_s"):
        limits = {name: getattr(slo, field) for name, slo in slos.items()}
        yield (
            f"{field.removesuffix('_s')}_objective_seconds",
            "Limit of good requests, where a class has one.",
            "class",
            {name: limit_s for name, limit_s in limits.items() if math.isfinite(limit_s)},
        )
    for name, text, value in (
        ("in_gateway", "Requests in the gateway, those being read included.", len(in_flight)),
        ("records_lost", "Records that the file did not take.", ledger.records.lost),
        ("control_held", "1 while control is switched off.", float(steering.held)),
        ("lease_seconds", "Time left of the lease of the knobs; 0: none.", steering.lease_left_s),
        ("paused", "1 while inference is paused.", float(not inference.is_open)),
    ):
        yield name, text, "gateway", {ledger.id: value}


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
                "serving": one.serving,
            }
            for one in pool.replicas
        ],
    }
