"""One request from its arrival to its last byte: read, admitted, sent, passed on, booked.

Whatever goes wrong on the way, the client gets one clear error in its dialect, the engine's
connection is closed and its place is free again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping

import aiohttp
from starlette.types import Receive, Scope, Send

from jaxserve.gateway.dialects.dialect import dialect_of
from jaxserve.gateway.dialects.routes import translated
from jaxserve.gateway.engines.admission import Pool, Replica
from jaxserve.gateway.engines.scrape import Readings
from jaxserve.gateway.engines.specs import EngineSpec
from jaxserve.gateway.engines.upstream import NotBegun, Upstream, chunks, join
from jaxserve.gateway.exchange.in_flight import (
    Call,
    Calls,
    body_wait,
    first_byte_wait,
    pause_wait,
    queue_wait,
)
from jaxserve.gateway.exchange.passthrough import Relay, Way
from jaxserve.gateway.exchange.pause import Gate
from jaxserve.gateway.exchange.request import Incoming, asked_pool, read_body, understand
from jaxserve.gateway.exchange.response import Answer
from jaxserve.gateway.http import headers as names
from jaxserve.gateway.http.errors import Problem, client_left, outcome_of, stopping
from jaxserve.gateway.knobs.engine import EngineKnobs, engine_knobs
from jaxserve.gateway.measure.ledger import Ledger
from jaxserve.gateway.measure.records import RequestRecord
from jaxserve.gateway.recording import counting
from jaxserve.gateway.recording.recorded import Captured, Place
from jaxserve.gateway.settings import GatewaySettings

_LOG = logging.getLogger("jaxserve.gateway")
_LOOK_S = 10.0
"""Time that an engine has to say what it serves, or whether it is well."""


class Proxy:
    """Everything that requests go through."""

    def __init__(
        self,
        settings: GatewaySettings,
        pools: Mapping[str, Pool],
        ledger: Ledger,
        calls: Calls,
        gate: Gate,
    ) -> None:
        """Args: the limits, the engines, the books, what is in flight, and what may pause it."""
        self._settings = settings
        self._pools = pools
        self._ledger = ledger
        self._calls = calls
        self._gate = gate
        self._upstream: Upstream | None = None
        self.engine_knobs: tuple[EngineKnobs, ...] = ()
        """those of every engine, once it has begun."""
        self.readings: Readings | None = None
        """what engines say of themselves, likewise."""
        self._watch: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Opens the client side and starts the clock."""
        self._upstream = Upstream(self._settings.connect_s)
        self.engine_knobs = tuple(
            engine_knobs(replica.spec, self._upstream)
            for pool in self._pools.values()
            for replica in pool.replicas
        )
        self.readings = Readings(self._pools, self._upstream)
        self._watch = asyncio.create_task(self._calls.watch())

    async def close(self) -> None:
        """Closes all connections to engines."""
        if self._watch is not None:
            self._watch.cancel()
        if self._upstream is not None:
            await self._upstream.close()

    async def infer(
        self, path: str, scope: Scope, receive: Receive, send: Send, place: Place | None = None
    ) -> None:
        """Serves one request for output.

        It has one ``Way`` there and back. That of a session is ``Captured`` from the start; any
        other's becomes a ``Relay`` once it has been read.

        Args:
          place: the session that it is recorded in; None where its bytes pass as they are.
        """
        dialect = dialect_of(path)
        record = self._ledger.new_record(dialect.name)
        record.class_name = self._ledger.classes.name(names.first(scope["headers"], names.CLASS))
        answer = Answer(scope, send, dialect, record)
        call = Call(record, self._settings.total_s)
        way, query = Way(self._settings, self._ledger, dialect, call, answer), scope["query_string"]
        if place is not None:
            way = Captured(way, path, query, place)
        self._calls.add(call)
        problem: Problem | None = None
        try:
            incoming = await self._read(way, scope, receive, path)
            priority = incoming.priority
            if isinstance(way, Captured):
                way.translate(self._pools[record.pool].replicas[0].spec.policy)
            else:
                way = Relay(**vars(way), path=path, query=query, incoming=incoming)
            del incoming  # may be megabytes
            await self._serve(way, priority, scope, receive)
        except asyncio.CancelledError:
            problem = call.ended_by or stopping()
            _forget_cancellation()
        except Problem as found:
            problem = found
        except Exception:
            _LOG.exception("a request failed inside the gateway")
            problem = Problem(500, "gateway_error", "the gateway failed")
        finally:
            self._calls.remove(call)
        if problem is not None:
            record.outcome, record.reason = outcome_of(problem.reason), problem.reason
            way.failed(problem)
            await answer.fail(problem)
        self._ledger.ended(record)

    def turned_away(self, path: str, headers: names.RawHeaders, problem: Problem) -> RequestRecord:
        """Books a request for output that is refused before it is read."""
        record = self._ledger.new_record(dialect_of(path).name)
        record.class_name = self._ledger.classes.name(names.first(headers, names.CLASS))
        record.status = problem.status
        record.outcome, record.reason = outcome_of(problem.reason), problem.reason
        self._ledger.arrived(record)
        self._ledger.ended(record)
        return record

    def _default_pool(self) -> str:
        return next(name for name, pool in self._pools.items() if pool.default)

    async def look(self, path: str, query: bytes) -> tuple[int, names.RawHeaders, bytes]:
        """What the first engine that can be reached says of itself: status, headers, body.

        Raises:
          Problem: none can be, or it did not answer.
        """
        replicas = [one for pool in self._pools.values() for one in pool.in_order()]
        _, status, headers, body = await self._ask(replicas, "GET", path, query, lambda spec: None)
        return status, headers, body

    async def count(self, path: str, scope: Scope, receive: Receive) -> bytes:
        """The answer to a session's request that counts the tokens of its prompt.

        Raises:
          Problem: it is malformed, or no engine counts.
        """
        settings, headers = self._settings, scope["headers"]
        try:
            async with asyncio.timeout(settings.body_s):
                body = await read_body(receive, headers, settings.max_body_bytes)
        except TimeoutError:
            raise body_wait(settings.body_s) from None
        pool = self._pools[asked_pool(headers, self._pools) or self._default_pool()]
        policy = pool.replicas[0].spec.policy
        chat, answerer = translated(
            path, scope["query_string"], body, answer_id="count", unix_s=0, policy=policy
        )
        spec, status, _, said = await self._ask(
            pool.in_order(), "POST", counting.PATH, b"", lambda spec: counting.question(chat, spec)
        )
        return answerer.counted(counting.count(spec, status, said))

    async def _ask(
        self,
        replicas: Iterable[Replica],
        method: str,
        path: str,
        query: bytes,
        body_for: Callable[[EngineSpec], bytes | None],
    ) -> tuple[EngineSpec, int, names.RawHeaders, bytes]:
        """Asks the first engine that can be reached something that it answers at once."""
        assert self._upstream is not None
        try:
            async with asyncio.timeout(_LOOK_S):
                for replica in replicas:
                    spec, asked = replica.spec, body_for(replica.spec)
                    kind = [(b"content-type", b"application/json")] if asked is not None else []
                    headers = names.to_engine(kind, spec.key, None)
                    try:
                        response = await self._upstream.open(
                            spec, method, path, query, headers, asked
                        )
                    except NotBegun:
                        replica.unreachable()
                        continue
                    replica.reached()
                    try:
                        arriving = chunks(response, spec.name)
                        body = await join(arriving, spec.name, self._settings.max_answer_bytes)
                    finally:
                        response.close()
                    return spec, response.status, names.to_client(response.raw_headers), body
        except TimeoutError:
            raise first_byte_wait(_LOOK_S) from None
        raise _unreachable("any")

    async def _read(self, way: Way, scope: Scope, receive: Receive, path: str) -> Incoming:
        record, settings, headers = way.call.record, self._settings, scope["headers"]
        try:
            way.call.expect(body_wait, settings.body_s)
            body = await read_body(receive, headers, settings.max_body_bytes)
            way.came(body)
            record.bytes_in = len(body)
            incoming = understand(body, headers, dialect_of(path))
            record.priority, record.streamed = incoming.priority, incoming.streamed
            record.parallel = incoming.parallel
            record.pool = asked_pool(headers, self._pools) or self._default_pool()
        finally:
            self._ledger.arrived(record)
        return incoming

    async def _serve(
        self, way: Relay | Captured, priority: int, scope: Scope, receive: Receive
    ) -> None:
        call = way.call
        pool = self._pools[call.record.pool]
        watcher = asyncio.create_task(_end_when_client_leaves(receive, call))
        try:
            if not self._gate.is_open:
                call.expect(pause_wait, self._settings.total_s)
            async with self._gate.passage():
                replica, response = await self._open(way, pool, priority, scope)
                try:
                    await way.run(response, replica.spec.name)
                finally:
                    response.close()
                    pool.leave(replica)
        finally:
            watcher.cancel()

    async def _open(
        self, way: Relay | Captured, pool: Pool, asked: int, scope: Scope
    ) -> tuple[Replica, aiohttp.ClientResponse]:
        """A place and the beginning of an answer; goes on where an engine cannot have begun."""
        call = way.call
        assert self._upstream is not None
        record, settings = call.record, self._settings
        number = pool.number()
        while True:
            call.expect(queue_wait, settings.queue_s)
            replica = await pool.enter(asked, number, again=record.attempts > 0)
            self._ledger.admitted(record)
            spec = replica.spec
            record.attempts += 1
            record.engine = spec.name
            priority = asked if spec.takes_priority else None
            headers = names.to_engine(scope["headers"], spec.key, priority)
            call.expect(first_byte_wait, settings.first_byte_s)
            try:
                response = await self._upstream.open(
                    spec, "POST", way.path, way.query, headers, way.body(spec)
                )
            except NotBegun as reason:
                way.not_begun()
                replica.unreachable()
                pool.leave(replica)
                _LOG.warning("engine %s cannot be reached: %s", spec.name, reason)
                if record.attempts >= len(pool.replicas):
                    raise _unreachable(spec.name) from None
            except BaseException:
                pool.leave(replica)
                raise
            else:
                replica.reached()
                return replica, response


async def _end_when_client_leaves(receive: Receive, call: Call) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    call.end(client_left())


def _forget_cancellation() -> None:
    """The task was cancelled by the gateway itself, and goes on to say why."""
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()


def _unreachable(engine: str) -> Problem:
    return Problem(503, "engine_unreachable", f"engine {engine} cannot be reached", 2)
