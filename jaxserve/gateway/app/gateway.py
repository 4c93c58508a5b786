"""All parts of the gateway put together, as one ASGI application with two doors."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.types import Receive, Scope, Send

from jaxserve.gateway.app.client_app import ClientDoor
from jaxserve.gateway.app.control_app import ControlDoor, gauges
from jaxserve.gateway.app.proxy import Proxy
from jaxserve.gateway.engines.admission import build_pools
from jaxserve.gateway.engines.specs import EngineSpec
from jaxserve.gateway.exchange.in_flight import Calls
from jaxserve.gateway.exchange.pause import Gate
from jaxserve.gateway.http.auth import keys
from jaxserve.gateway.http.headers import RawHeaders
from jaxserve.gateway.knobs.hold import Switch
from jaxserve.gateway.knobs.steering import Steering
from jaxserve.gateway.measure.ledger import Ledger
from jaxserve.gateway.measure.metrics import Metrics
from jaxserve.gateway.measure.objectives import Classes
from jaxserve.gateway.measure.records import Records
from jaxserve.gateway.measure.windows import Windows
from jaxserve.gateway.recording.recorded import Place
from jaxserve.gateway.recording.redaction import Redaction
from jaxserve.gateway.recording.routes import SessionRoutes, gate_routes
from jaxserve.gateway.recording.store import Sessions
from jaxserve.gateway.settings import GatewaySettings, Tokens


class Gateway:
    """The application. Requests that come in at the control port meet the other door."""

    def __init__(
        self,
        settings: GatewaySettings,
        tokens: Tokens,
        specs: Sequence[EngineSpec],
        control_port: int,
    ) -> None:
        """Args: as read from command line and environment, and the port that was taken.

        Raises:
          InputError: objectives are not understood, or the file of records cannot be written,
            or that of the switch not be read.
        """
        classes = Classes(settings.slo)
        self.calls = Calls()
        self.pools = build_pools(specs, settings.queue, settings.look_ahead)
        records = Records(settings.records_kept, settings.records)
        metrics = Metrics(lambda: gauges(self.pools, self.calls, self.ledger))
        self.ledger = Ledger(classes, metrics, Windows(classes, settings.window_kept_s), records)
        self.gate = Gate()
        self.sessions = None if settings.sessions is None else Sessions(settings.sessions)
        engines = (key for spec in specs for key in (spec.key, spec.control_key))
        self._redaction = Redaction((*engines, tokens.client, tokens.control))
        self._proxy = Proxy(settings, self.pools, self.ledger, self.calls, self.gate)
        self._clients = ClientDoor(
            settings,
            tokens.client,
            self.calls,
            self._proxy,
            None if self.sessions is None else self._place_of,
        )
        self.switch = Switch(settings.state)
        self._steering = Steering(
            self.pools, lambda: self._proxy.engine_knobs, settings.look_ahead, self.switch
        )
        self._control = ControlDoor(
            tokens.control,
            self.pools,
            self.calls,
            self.ledger,
            self._steering,
            lambda: self._proxy.readings,
            [
                *gate_routes(self.gate),
                *(SessionRoutes(self.sessions).routes() if self.sessions is not None else ()),
            ],
        )
        self._control_port = control_port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves what uvicorn hands over: HTTP requests, and its own start and end."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["server"][1] == self._control_port:
            await self._control(scope, receive, send)
        else:
            await self._clients(scope, receive, send)

    def _place_of(self, headers: RawHeaders, query: bytes) -> Place | None:
        assert self.sessions is not None
        session = self.sessions.of(headers, query)
        if session is None:
            return None
        redaction = self._redaction.beside(keys(headers, query))
        return Place(self.sessions, session, lambda: self.gate.weight_version, redaction)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        await self._proxy.begin()
        self._steering.begin()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._steering.close()
        await self._proxy.close()
        self.ledger.records.close()
        if self.sessions is not None:
            self.sessions.shut()
        await send({"type": "lifespan.shutdown.complete"})
