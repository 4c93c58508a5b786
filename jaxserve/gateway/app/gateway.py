"""The gateway: all of its parts, as one ASGI application with two ports."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence

from starlette.types import Receive, Scope, Send

from jaxserve.gateway.app.client_app import ClientApp
from jaxserve.gateway.app.control_app import ControlApp, gauges, pause_routes
from jaxserve.gateway.app.proxy import Proxy
from jaxserve.gateway.app.queries import EngineQueries
from jaxserve.gateway.engines.admission import build_pools
from jaxserve.gateway.engines.scrape import EngineMetricsReader
from jaxserve.gateway.engines.specs import EngineSpec
from jaxserve.gateway.engines.upstream import Upstream
from jaxserve.gateway.exchange.in_flight import InFlight
from jaxserve.gateway.exchange.pause import InferencePause
from jaxserve.gateway.knobs.engine import engine_knobs
from jaxserve.gateway.knobs.hold import ControlHold
from jaxserve.gateway.knobs.steering import Steering
from jaxserve.gateway.measure.ledger import Ledger
from jaxserve.gateway.measure.metrics import GatewayMetrics, Gauges
from jaxserve.gateway.measure.objectives import RequestClasses
from jaxserve.gateway.measure.records import Records
from jaxserve.gateway.measure.windows import WindowSeries
from jaxserve.gateway.recording.recorded import SessionRecorder
from jaxserve.gateway.recording.redaction import Redaction
from jaxserve.gateway.recording.routes import SessionRoutes
from jaxserve.gateway.recording.store import SessionStore
from jaxserve.gateway.settings import AccessTokens, GatewaySettings


class Gateway:
    """ASGI application of the client port and the control port."""

    def __init__(
        self,
        settings: GatewaySettings,
        tokens: AccessTokens,
        specs: Sequence[EngineSpec],
        control_port: int,
    ) -> None:
        """Args:
          settings: settings of the command line.
          tokens: tokens of clients and controllers.
          specs: engines.
          control_port: number of the control port; requests of any other port are of clients.

        Raises:
          InputError: objectives are malformed, the file of records cannot be written, the file of
            the hold cannot be read, or the folder of sessions cannot be used.
        """
        gateway_id = secrets.token_hex(4)
        classes = RequestClasses(settings.slo)
        records = Records(settings.records_kept, settings.records)
        self.in_flight = InFlight()
        self.pools = build_pools(specs, settings.queue, settings.look_ahead, settings.routing)
        metrics = GatewayMetrics(self._gauges)
        windows = WindowSeries(classes, settings.window_kept_s)
        self.ledger = Ledger(gateway_id, classes, metrics, windows, records)
        self.pause = InferencePause()
        self.sessions = None if settings.sessions is None else SessionStore(settings.sessions)
        self.hold = ControlHold(settings.state)
        self._upstream = Upstream(settings.connect_s)
        knobs = [
            engine_knobs(replica.spec, self._upstream)
            for pool in self.pools.values()
            for replica in pool.replicas
        ]
        self._steering = Steering(self.pools, knobs, settings.look_ahead, self.hold)
        recording = None
        if self.sessions is not None:
            keys = (key for spec in specs for key in (spec.key, spec.control_key))
            redaction = Redaction((*keys, tokens.client, tokens.control))
            recording = SessionRecorder(self.sessions, self.pause, redaction)
        self._clients = ClientApp(
            settings,
            tokens.client,
            self.in_flight,
            Proxy(settings, self.pools, self._upstream, self.ledger, self.in_flight, self.pause),
            EngineQueries(settings, self.pools, self._upstream),
            recording,
        )
        sessions = [] if self.sessions is None else SessionRoutes(self.sessions).routes()
        self._control = ControlApp(
            tokens.control,
            self.pools,
            self.in_flight,
            self.ledger,
            self._steering,
            EngineMetricsReader(self.pools, self._upstream),
            [*pause_routes(self.pause), *sessions],
        )
        self._control_port = control_port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves an HTTP request, or the lifespan of the server."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["server"][1] == self._control_port:
            await self._control(scope, receive, send)
        else:
            await self._clients(scope, receive, send)

    def _gauges(self) -> Gauges:
        return gauges(self.ledger, self.pools, self.in_flight, self._steering, self.pause)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        self._upstream.start()
        clock = asyncio.create_task(self.in_flight.watch())
        self._steering.begin()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._steering.close()
        clock.cancel()
        await self._upstream.close()
        self.ledger.records.close()
        if self.sessions is not None:
            self.sessions.shut()
        await send({"type": "lifespan.shutdown.complete"})
