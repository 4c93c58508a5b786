"""An engine's answer on its way to the client: in events as they come, or whole."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

import aiohttp

from jaxserve.gateway.dialects.dialect import NO_USAGE, Dialect, Usage
from jaxserve.gateway.dialects.request_fields import object_in
from jaxserve.gateway.engines.specs import EngineSpec
from jaxserve.gateway.engines.upstream import chunks, join
from jaxserve.gateway.exchange.events import EventStream
from jaxserve.gateway.exchange.in_flight import Call, idle_wait, write_wait
from jaxserve.gateway.exchange.request import Incoming
from jaxserve.gateway.exchange.response import Answer
from jaxserve.gateway.http.errors import Problem, outcome_of
from jaxserve.gateway.http.headers import to_client
from jaxserve.gateway.measure.ledger import Ledger, TokenClock
from jaxserve.gateway.settings import GatewaySettings


@dataclass(frozen=True)
class Way:
    """What every request has on its way to an engine and back; it takes one of two kinds, ``Relay``
    or ``sessions.capture.Captured``."""

    settings: GatewaySettings
    ledger: Ledger
    dialect: Dialect
    call: Call
    answer: Answer

    async def chunks(self, response: aiohttp.ClientResponse, engine: str) -> AsyncIterator[bytes]:
        """The engine's body as it arrives, on time."""
        async for chunk in chunks(response, engine):
            if self.call.record.first_byte_s is None:
                self.call.record.first_byte_s = time.monotonic()
            yield chunk
            self.call.expect(idle_wait, self.settings.idle_s)

    def came(self, body: bytes) -> None:
        """Its body has been read."""

    def not_begun(self) -> None:
        """The engine that it was meant for never got it."""

    def failed(self, problem: Problem) -> None:
        """It ended otherwise than with the engine's answer; the record of it says so."""


@dataclass(frozen=True)
class Relay(Way):
    """The way of a request whose bytes pass as they are."""

    path: str
    """that the client asked for."""
    query: bytes
    """likewise."""
    incoming: Incoming

    def body(self, spec: EngineSpec) -> bytes:
        """What an engine is sent."""
        return self.incoming.body

    async def run(self, response: aiohttp.ClientResponse, engine: str) -> None:
        """Passes on what the engine answers, and notes how it ended.

        Args:
          engine: its name.

        Raises:
          Problem: the engine's answer is none, or broke off.
        """
        self.incoming.body = b""  # may be megabytes, and an answer may take minutes
        refuse_odd_status(response, engine)
        if response.status == 200 and response.content_type == "text/event-stream":
            await self._events(response, engine)
        else:
            await self._whole(response, engine)

    async def _events(self, response: aiohttp.ClientResponse, engine: str) -> None:
        call, answer, record, settings = self.call, self.answer, self.call.record, self.settings
        record.streamed = True
        stream = EventStream(self.dialect, self.incoming.drops_usage, settings.max_answer_bytes)
        clock = TokenClock(self.ledger, record)
        headers = to_client(response.raw_headers)
        try:
            async for chunk in self.chunks(response, engine):
                data, tokens = stream.feed(chunk)
                if tokens:
                    clock.tick(tokens)
                if data:
                    call.expect(write_wait, settings.write_s)
                    # Not before there is something to say: until then an error has its own status.
                    if not answer.started:
                        await answer.start(200, headers)
                    answer.events = stream.events
                    await answer.write(data)
        finally:
            record.count(stream.usage)
        call.expect(write_wait, settings.write_s)
        if not answer.started:
            await answer.start(200, headers)
        await answer.write(stream.end(), more=False)
        record.reason = "engine_error" if stream.failed else ""
        record.outcome = outcome_of(record.reason)

    async def _whole(self, response: aiohttp.ClientResponse, engine: str) -> None:
        call, answer, record, settings = self.call, self.answer, self.call.record, self.settings
        body = await join(self.chunks(response, engine), engine, settings.max_answer_bytes)
        status = response.status
        if status < 400:
            record.count(_usage(self.dialect, body))
        else:
            record.reason = "engine_429" if status == 429 else f"engine_{status // 100}xx"
        call.expect(write_wait, settings.write_s)
        await answer.whole(status, to_client(response.raw_headers), body)
        record.outcome = outcome_of(record.reason)


def refuse_odd_status(response: aiohttp.ClientResponse, engine: str) -> None:
    """Raises Problem where the engine's answer is none for the client."""
    if response.status == 401:
        # Otherwise the client would take its own token for wrong.
        raise Problem(502, "engine_refused_key", f"engine {engine} refused the gateway's key")
    if not (200 <= response.status < 300 or 400 <= response.status < 600):
        raise Problem(
            502, "engine_garbage", f"engine {engine} answered with status {response.status}"
        )


def _usage(dialect: Dialect, body: bytes) -> Usage:
    found = object_in(body)
    return NO_USAGE if found is None else dialect.usage(found)
