"""The proxy: one request for output from its arrival to the end of its response.

Whatever fails on the way, the client gets one clear error in its dialect, the engine's connection
is closed, and its place is free again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

import aiohttp
from starlette.types import Receive, Scope, Send

from jaxserve.gateway.app.queries import unreachable
from jaxserve.gateway.dialects.routes import dialect_of
from jaxserve.gateway.engines.admission import Pool, Replica
from jaxserve.gateway.engines.upstream import NotConnected, Upstream
from jaxserve.gateway.exchange.exchange import Exchange
from jaxserve.gateway.exchange.in_flight import (
    InFlight,
    InFlightRequest,
    body_timeout,
    first_byte_timeout,
    pause_timeout,
    queue_timeout,
)
from jaxserve.gateway.exchange.passthrough import Passthrough
from jaxserve.gateway.exchange.pause import InferencePause
from jaxserve.gateway.exchange.request import (
    ParsedRequest,
    parse_request,
    read_body,
    requested_pool,
)
from jaxserve.gateway.exchange.response import ResponseWriter
from jaxserve.gateway.http.errors import RequestError, client_left, outcome, stopping
from jaxserve.gateway.http.headers import CLASS, RawHeaders, engine_headers, first_value
from jaxserve.gateway.measure.ledger import Ledger
from jaxserve.gateway.measure.records import RequestRecord
from jaxserve.gateway.recording.recorded import RecordedExchange, RecordingContext
from jaxserve.gateway.settings import GatewaySettings

_LOG = logging.getLogger("jaxserve.gateway")


class Proxy:
    """Serves requests for output."""

    def __init__(
        self,
        settings: GatewaySettings,
        pools: Mapping[str, Pool],
        upstream: Upstream,
        ledger: Ledger,
        in_flight: InFlight,
        pause: InferencePause,
    ) -> None:
        """Args: the limits, the pools, the connections, the measurements, the requests in flight,
        and the pause of inference."""
        self._settings = settings
        self._pools = pools
        self._upstream = upstream
        self._ledger = ledger
        self._in_flight = in_flight
        self._pause = pause

    async def infer(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        context: RecordingContext | None = None,
    ) -> None:
        """Serves one request for output.

        Args:
          scope: ASGI scope of the request.
          receive: messages of the client.
          send: messages to the client.
          context: destination of the record; None passes the request through unrecorded.
        """
        path, query = scope["path"], scope["query_string"]
        record, dialect = self._new_record(path, scope["headers"]), dialect_of(path)
        response = ResponseWriter(scope, send, dialect, record)
        request = InFlightRequest(record, self._settings.total_s)
        parts = (self._settings, self._ledger, dialect, request, response, path, query)
        exchange = Passthrough(*parts) if context is None else RecordedExchange(context, *parts)
        self._in_flight.add(request)
        error: RequestError | None = None
        try:
            parsed = await self._read(exchange, scope["headers"], receive)
            priority = parsed.priority
            prefix = self._pools[record.pool].routing.prefix(parsed.fields)
            exchange.accept(parsed, self._pools[record.pool].replicas[0].spec.policy)
            del parsed  # may be megabytes
            await self._serve(exchange, priority, prefix, scope["headers"], receive)
        except asyncio.CancelledError:
            error = request.ended_by or stopping()
            _forget_cancellation()
        except RequestError as found:
            error = found
        except Exception:
            _LOG.exception("a request failed inside the gateway")
            error = RequestError(500, "gateway_error", "the gateway failed")
        finally:
            self._in_flight.remove(request)
        if error is not None:
            record.outcome, record.reason = outcome(error.reason), error.reason
            exchange.failed(error)
            await response.fail(error)
        self._ledger.ended(record)

    def refused(self, scope: Scope, error: RequestError) -> RequestRecord:
        """Notes a request for output that is refused before its body is read."""
        record = self._new_record(scope["path"], scope["headers"])
        record.status = error.status
        record.outcome, record.reason = outcome(error.reason), error.reason
        self._ledger.arrived(record)
        self._ledger.ended(record)
        return record

    def _new_record(self, path: str, headers: RawHeaders) -> RequestRecord:
        record = self._ledger.new_record(dialect_of(path).name)
        record.class_name = self._ledger.classes.name(first_value(headers, CLASS))
        return record

    async def _read(
        self, exchange: Exchange, headers: RawHeaders, receive: Receive
    ) -> ParsedRequest:
        record, settings = exchange.request.record, self._settings
        try:
            exchange.request.expect(body_timeout, settings.body_s)
            body = await read_body(receive, headers, settings.max_body_bytes)
            exchange.received(body)
            record.bytes_in = len(body)
            parsed = parse_request(body, headers)
            record.priority, record.streamed = parsed.priority, parsed.streamed
            record.parallel = parsed.parallel
            record.pool = requested_pool(headers, self._pools).name
        finally:
            self._ledger.arrived(record)
        return parsed

    async def _serve(
        self,
        exchange: Exchange,
        priority: int,
        prefix: Sequence[bytes],
        headers: RawHeaders,
        receive: Receive,
    ) -> None:
        pool = self._pools[exchange.request.record.pool]
        watcher = asyncio.create_task(_end_on_disconnect(receive, exchange.request))
        try:
            if not self._pause.is_open:
                exchange.request.expect(pause_timeout, self._settings.total_s)
            async with self._pause.entered():
                replica, answer = await self._open(exchange, pool, priority, prefix, headers)
                try:
                    await exchange.run(answer, replica.spec.name)
                finally:
                    answer.close()
                    pool.leave(replica)
        finally:
            watcher.cancel()

    async def _open(
        self,
        exchange: Exchange,
        pool: Pool,
        priority: int,
        prefix: Sequence[bytes],
        headers: RawHeaders,
    ) -> tuple[Replica, aiohttp.ClientResponse]:
        """A place at an engine, and its answer, whose headers have arrived; tries the next engine
        where no connection could be made."""
        request, settings = exchange.request, self._settings
        record, number = request.record, pool.number()
        while True:
            request.expect(queue_timeout, settings.queue_s)
            replica = await pool.enter(priority, number, prefix, again=record.attempts > 0)
            self._ledger.admitted(record)
            spec = replica.spec
            record.attempts += 1
            record.engine = spec.name
            sent = engine_headers(headers, spec.key, priority if spec.takes_priority else None)
            request.expect(first_byte_timeout, settings.first_byte_s)
            try:
                answer = await self._upstream.open(
                    spec, "POST", exchange.path, exchange.query, sent, exchange.body(spec)
                )
            except NotConnected as reason:
                exchange.not_connected()
                replica.unreachable()
                pool.leave(replica)
                _LOG.warning("engine %s cannot be reached: %s", spec.name, reason)
                if record.attempts >= len(pool.serving):
                    raise unreachable(spec.name) from None
            except BaseException:
                pool.leave(replica)
                raise
            else:
                replica.reached()
                return replica, answer


async def _end_on_disconnect(receive: Receive, request: InFlightRequest) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    request.end(client_left())


def _forget_cancellation() -> None:
    """Clears the cancellation by the gateway itself, so that the task can send its error."""
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()
