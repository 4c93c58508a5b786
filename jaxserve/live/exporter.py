"""A controller's metrics and log over HTTP: for Prometheus, and for the page of the server."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from jaxserve.errors import InputError
from jaxserve.gateway.http.auth import has_token
from jaxserve.gateway.http.json_http import number_in
from jaxserve.gateway.settings import CONTROL_TOKEN_VARIABLE
from jaxserve.live.show import Report, WindowComparison
from jaxserve.live.supervisor import InControl
from jaxserve.runtime.hosts import is_local, is_loopback, named_host
from jaxserve.runtime.limited_http import HttpLimits, limited_protocol
from jaxserve.runtime.listening import CommandServer, address, listen

_PREFIX = "jaxserve_operate"
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_LOG_BYTES = 4 * 2**20
"""Most bytes of the log in one response."""
_LIMITS = HttpLimits(max_connections=64, max_head_bytes=16_384, head_s=20.0)
_STOP_S = 5


class ControllerMetrics:
    """Prometheus metrics of a controller, updated by the report of every window."""

    def __init__(self, task: str, agent: str, mode: str) -> None:
        """Args: names of the live task and of the policy, and the mode of the controller."""
        registry = self._registry = CollectorRegistry()

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"{_PREFIX}_{name}", text, labels, registry=registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"{_PREFIX}_{name}", text, labels, registry=registry)

        gauge("info", "The controller.", "task", "agent", "mode").labels(task, agent, mode).set(1)
        self._in_control = gauge("in_control", "1 for the source of the knobs' values.", "by")
        self._reason = gauge("reason", "1 for the fault of the last window, or of the fall.", "why")
        self._in_force = gauge("knob_in_force", "Value of a knob in force.", "knob")
        self._command = gauge("knob_commanded", "Value of a knob in the last command.", "knob")
        self._windows = counter("windows", "Control windows.", "in_control")
        self._unread = counter("unread_windows", "Windows that could not be measured.")
        self._falls = counter("fallbacks", "Falls from the policy to the best static setting.")
        self._good = counter("good_requests", "Requests inside their objectives, measured.")
        self._ended = counter("ended_requests", "Requests that ended.")
        self._unjudged = counter("unjudged_requests", "Ended requests that cannot be judged.")
        self._expected = counter(
            "expected_good_requests",
            "Requests inside their objectives that the simulator expects under a setting.",
            "setting",
        )
        self._itl_s = gauge("itl_seconds", "Mean inter-token latency, measured.")
        self._expected_itl_s = gauge(
            "expected_itl_seconds",
            "Mean inter-token latency that the simulator expects under a setting.",
            "setting",
        )
        self._last = gauge("last_window_timestamp_seconds", "End of the last window, Unix time.")
        self._steered = True
        self._lock = threading.Lock()
        self._show_source(InControl.ENGINES)

    def add(self, report: Report, unix_s: float) -> None:
        """Adds a window that ended at ``unix_s``."""
        with self._lock:
            self._windows.labels(report.in_control).inc()
            self._last.set(unix_s)
            self._show_source(report.in_control)
            self._show_fault(report)
            _show(self._in_force, report.in_force)
            _show(self._command, report.command)
            if report.comparison is None:
                self._unread.inc()
            else:
                self._compare(report.comparison)

    def text(self) -> bytes:
        """All metrics in the exposition format."""
        with self._lock:
            return generate_latest(self._registry)

    def _show_source(self, in_control: InControl) -> None:
        for source in InControl:
            self._in_control.labels(source).set(source is in_control)

    def _show_fault(self, report: Report) -> None:
        _show(self._reason, {} if report.reason is None else {report.reason: 1.0})
        if report.mode in ("guarded", "free"):
            if self._steered and report.reason is not None:
                self._falls.inc()
            self._steered = report.reason is None

    def _compare(self, found: WindowComparison) -> None:
        self._good.inc(found.seen.good)
        self._ended.inc(found.ended)
        self._unjudged.inc(found.unjudged)
        self._itl_s.set(found.seen.itl_s)
        for setting in ("in_force", "policy", "static"):
            expected = getattr(found, setting)
            self._expected.labels(setting).inc(expected.good)
            self._expected_itl_s.labels(setting).set(expected.itl_s)


def _show(gauge: Gauge, values: Mapping[str, float]) -> None:
    """Shows values by label, and no earlier ones."""
    gauge.clear()
    for label, value in values.items():
        gauge.labels(label).set(value)


class Exporter:
    """ASGI application: ``GET /metrics``, and ``GET /log?from=BYTES``, the log from a byte on.

    Without a token, requests need a local ``Host``, and pages of browsers one of this machine's
    origins: no other site may read what a visitor's machine serves.
    """

    def __init__(self, metrics: ControllerMetrics, log: Path, token: str | None) -> None:
        """Args: the metrics, the log of the controller, and a token; None asks for none."""
        self._metrics, self._log, self._token = metrics, log, token
        self.app = Starlette(
            routes=[Route("/metrics", self._serve_metrics), Route("/log", self._serve_log)],
            exception_handlers={HTTPException: _refused, InputError: _refused},
        )

    async def _serve_metrics(self, request: Request) -> Response:
        return Response(
            self._metrics.text(), headers=self._admit(request), media_type=_METRICS_TYPE
        )

    async def _serve_log(self, request: Request) -> Response:
        """Whole lines of the log from a byte on; 416 beyond the end, as after another log began."""
        headers = self._admit(request)
        start = int(number_in(request, "from", 0.0, 2.0**53, 0.0))
        text = await asyncio.to_thread(self._lines, start)
        if text is None:
            return PlainTextResponse("the log is shorter", 416, headers)
        return Response(text, headers=headers, media_type="application/x-ndjson")

    def _lines(self, start: int) -> bytes | None:
        """Whole lines from a byte on; None if the log is shorter."""
        try:
            with self._log.open("rb") as file:
                if start > os.fstat(file.fileno()).st_size:
                    return None
                file.seek(start)
                text = file.read(_LOG_BYTES)
        except FileNotFoundError:
            return None if start else b""
        return text[: text.rfind(b"\n") + 1]

    def _admit(self, request: Request) -> dict[str, str]:
        """Headers that let a page of this machine read the answer.

        Raises:
          HTTPException: the request lacks the token, or comes from another site's page.
        """
        if self._token is not None:
            if not has_token(request.headers.raw, self._token):
                raise HTTPException(401, "the token is missing: Authorization: Bearer TOKEN")
            return {}
        origin = _local_origin(request.headers)
        return {} if origin is None else {"Access-Control-Allow-Origin": origin, "Vary": "Origin"}


def _local_origin(headers: Headers) -> str | None:
    """The origin of a page of this machine; None without a page.

    Raises:
      HTTPException: the page or the host is another machine's.
    """
    if not is_local(named_host(headers.get("host", ""))):
        raise HTTPException(403, "the host of the request is not this machine")
    origin = headers.get("origin")
    if origin is not None and not is_loopback(urlsplit(origin).hostname or ""):
        raise HTTPException(403, "pages of other machines may not read this address")
    return origin


async def _refused(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        return PlainTextResponse(error.detail, error.status_code, error.headers)
    return PlainTextResponse(str(error), 400)


@contextmanager
def exported(
    host: str, port: int, metrics: ControllerMetrics, log: Path, token: str | None
) -> Iterator[str]:
    """Serves metrics and log in a thread during the block; yields the address.

    Args:
      host: address to listen at; other than loopback needs a token.
      port: port to listen at; 0 takes a free one.
      metrics: metrics of the controller.
      log: log of the controller.
      token: token of readers on other machines; on loopback none is asked for.

    Raises:
      InputError: the port is taken, or other machines could read without a token.
    """
    here = is_loopback(host)
    if not here and token is None:
        raise InputError(
            f"--metrics-host is {host}, which other machines reach; set {CONTROL_TOKEN_VARIABLE}, "
            "or leave it at 127.0.0.1"
        )
    exporter = Exporter(metrics, log, None if here else token)
    with listen(host, port, "--metrics-port") as listening:
        server = CommandServer(
            exporter.app, http=limited_protocol(_LIMITS), timeout_graceful_shutdown=_STOP_S
        )
        # Outside the main thread uvicorn leaves the signals to the controller.
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        try:
            yield address(listening)
        finally:
            server.should_exit = True
            thread.join()
