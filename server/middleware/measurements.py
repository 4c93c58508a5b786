"""Measurements of the server itself, for Prometheus."""

from __future__ import annotations

import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.service import Service

_NO_ROUTE = "none"
"""Label of requests that were refused before a route, or that name none."""
_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)


class ServerMeasurements:
    """Counters of one process."""

    def __init__(self, service: Service) -> None:
        """Args: the service, whose figures are read when they are asked for."""
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "jaxserve_requests",
            "HTTP requests answered, refused ones included",
            ("method", "route", "status"),
            registry=self.registry,
        )
        self.seconds = Histogram(
            "jaxserve_request_seconds",
            "Time from a request's head to the end of its answer",
            ("route",),
            buckets=_BUCKETS_S,
            registry=self.registry,
        )
        self.websockets = Gauge("jaxserve_websockets", "Open WebSockets", registry=self.registry)
        self.registry.register(_ServiceFigures(service))
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)


class _ServiceFigures(Collector):
    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        service = self._service
        yield CounterMetricFamily(
            "jaxserve_windows", "Windows played and acknowledged", service.windows_played
        )
        yield GaugeMetricFamily(
            "jaxserve_sessions_in_memory",
            "Sessions in memory; the log may hold more",
            service.live_sessions,
        )
        yield GaugeMetricFamily(
            "jaxserve_computations",
            "Long computations that run or wait",
            service.background.pending,
        )
        live = service.live
        if live is not None:
            yield CounterMetricFamily(
                "jaxserve_live_tokens", "Tokens booked on the engine", live["tokens_spent"]
            )
            yield GaugeMetricFamily(
                "jaxserve_live_token_limit", "Tokens that may ever be booked", live["token_limit"]
            )


class MeasureRequests:
    """ASGI middleware: counts requests and WebSockets, and measures the time of requests."""

    def __init__(self, app: ASGIApp, measurements: ServerMeasurements) -> None:
        """Args: the application, and the counters."""
        self._app, self._measurements = app, measurements

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Measures one request."""
        if scope["type"] == "websocket":
            with self._measurements.websockets.track_inprogress():
                await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, started, counted = 500, time.perf_counter(), False

        def count() -> None:
            nonlocal counted
            if not counted:
                counted, route = True, _route(scope)
                self._measurements.requests.labels(scope["method"], route, status).inc()
                self._measurements.seconds.labels(route).observe(time.perf_counter() - started)

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            elif not message.get("more_body", False):
                count()  # before the client can have the whole answer
            await send(message)

        try:
            await self._app(scope, receive, answer)
        finally:
            count()


def _route(scope: Scope) -> str:
    """The path of the route that a request has reached, with the names of its parameters; a label,
    of which clients cannot invent others."""
    if "route" in scope:
        return scope["route"].path
    root_path = scope.get("root_path", "")
    return root_path.removeprefix(scope.get("app_root_path", root_path)) or _NO_ROUTE
