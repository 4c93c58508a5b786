"""Passthrough: a request and its answer, byte for byte but for a wish for usage."""

from __future__ import annotations

import aiohttp

from jaxserve.gateway.dialects.dialect import GIVEN_UP
from jaxserve.gateway.dialects.template_policy import TemplatePolicy
from jaxserve.gateway.engines.specs import EngineSpec
from jaxserve.gateway.engines.upstream import join
from jaxserve.gateway.exchange.events import EventStream
from jaxserve.gateway.exchange.exchange import Exchange, refuse_odd_status
from jaxserve.gateway.exchange.in_flight import write_timeout
from jaxserve.gateway.exchange.request import ParsedRequest, with_usage
from jaxserve.gateway.http.errors import outcome
from jaxserve.gateway.http.headers import client_headers
from jaxserve.gateway.http.json_http import parse_object
from jaxserve.gateway.measure.ledger import TokenClock


class Passthrough(Exchange):
    """Exchange whose bytes pass as they are."""

    _body = b""
    _drops_usage = False

    def accept(self, parsed: ParsedRequest, policy: TemplatePolicy) -> None:
        """See ``Exchange``."""
        self._body, self._drops_usage = with_usage(parsed, self.dialect)

    def body(self, spec: EngineSpec) -> bytes:
        """See ``Exchange``."""
        return self._body

    async def run(self, answer: aiohttp.ClientResponse, engine: str) -> None:
        """See ``Exchange``."""
        self._body = b""  # may be megabytes, and an answer may take minutes
        refuse_odd_status(answer, engine)
        if answer.status == 200 and answer.content_type == "text/event-stream":
            await self._stream(answer, engine)
        else:
            await self._whole(answer, engine)

    async def _stream(self, answer: aiohttp.ClientResponse, engine: str) -> None:
        request, response, record = self.request, self.response, self.request.record
        record.streamed = True
        stream = EventStream(self.dialect, self._drops_usage, self.settings.max_answer_bytes)
        clock = TokenClock(self.ledger, record)
        headers = client_headers(answer.raw_headers)
        try:
            async for chunk in self.chunks(answer, engine):
                data, tokens = stream.feed(chunk)
                self.is_done = stream.is_done
                if tokens:
                    clock.tick(tokens)
                if data:
                    request.expect(write_timeout, self.settings.write_s)
                    # Start with the first data: until then an error has a status of its own.
                    if not response.started:
                        await response.start(200, headers)
                    response.events = stream.events
                    await response.write(data)
        finally:
            record.count(stream.usage)
        request.expect(write_timeout, self.settings.write_s)
        if not response.started:
            await response.start(200, headers)
        rest, tokens = stream.end()
        if tokens:
            clock.tick(tokens)
        record.count(stream.usage)
        await response.write(rest, more=False)
        record.reason = stream.failure
        record.outcome = outcome(record.reason)

    async def _whole(self, answer: aiohttp.ClientResponse, engine: str) -> None:
        record = self.request.record
        body = await join(self.chunks(answer, engine), engine, self.settings.max_answer_bytes)
        status = answer.status
        if status < 400:
            found = parse_object(body)
            if found is None:
                record.reason = "engine_garbage"
            else:
                record.count(self.dialect.usage(found))
                given_up = set(self.dialect.finishes(found).values()) & set(GIVEN_UP)
                if given_up or self.dialect.is_error(found):
                    record.reason = "engine_error"
        else:
            record.reason = "engine_429" if status == 429 else f"engine_{status // 100}xx"
        self.request.expect(write_timeout, self.settings.write_s)
        await self.response.whole(status, client_headers(answer.raw_headers), body)
        record.outcome = outcome(record.reason)
