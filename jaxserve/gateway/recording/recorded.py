"""Recorded exchanges: a session's request, translated to chat, with a record of its tokens.

A record is written before the last byte of its response leaves, so that a client with a complete
answer finds it in the records. In a durable session the record is on the disk by then.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
import orjson

from jaxserve.gateway.dialects.canonical import Chat
from jaxserve.gateway.dialects.deltas import EventWriter, deltas_of
from jaxserve.gateway.dialects.dialect import NO_USAGE
from jaxserve.gateway.dialects.engine_reader import engine_error
from jaxserve.gateway.dialects.openai_chat import CHAT
from jaxserve.gateway.dialects.routes import AnswerTranslator, translate, translates
from jaxserve.gateway.dialects.template_policy import TemplatePolicy
from jaxserve.gateway.engines.specs import EngineSpec
from jaxserve.gateway.engines.upstream import join
from jaxserve.gateway.exchange.exchange import Exchange, refuse_odd_status
from jaxserve.gateway.exchange.in_flight import disk_timeout, write_timeout
from jaxserve.gateway.exchange.pause import InferencePause
from jaxserve.gateway.exchange.request import ParsedRequest
from jaxserve.gateway.http.auth import request_keys
from jaxserve.gateway.http.errors import RequestError, outcome
from jaxserve.gateway.http.events import EventReader, StreamEvent
from jaxserve.gateway.http.headers import RawHeaders, first_value
from jaxserve.gateway.http.json_http import json_object, parse_object
from jaxserve.gateway.measure.ledger import TokenClock
from jaxserve.gateway.measure.records import RequestRecord
from jaxserve.gateway.recording.engine_answer import EngineAnswer
from jaxserve.gateway.recording.records import CompletionRecord
from jaxserve.gateway.recording.redaction import Redaction
from jaxserve.gateway.recording.session import NotRecorded, RecordedSession
from jaxserve.gateway.recording.store import SessionStore
from jaxserve.gateway.recording.token_ids import FORMATS, sampling_parameters


@dataclass(frozen=True)
class RecordingContext:
    """Destination of a request's record."""

    sessions: SessionStore
    """store of all sessions."""
    session: RecordedSession
    """session of the request."""
    pause: InferencePause
    """holder of the current version of the engines' weights."""
    redaction: Redaction
    """secrets that no record may hold."""


@dataclass(frozen=True)
class SessionRecorder:
    """Finds the session of a request by its key."""

    sessions: SessionStore
    """store of all sessions."""
    pause: InferencePause
    """holder of the current version of the engines' weights."""
    redaction: Redaction
    """secrets of the gateway itself."""

    def context(self, headers: RawHeaders, query: bytes) -> RecordingContext | None:
        """Destination of a request's record; None for a request without the key of an open
        session."""
        session = self.sessions.of(headers, query)
        if session is None:
            return None
        redaction = self.redaction.with_secrets(request_keys(headers, query))
        return RecordingContext(self.sessions, session, self.pause, redaction)


async def record_refusal(context: RecordingContext, record: RequestRecord) -> None:
    """Records a request that was refused before its body was read.

    Raises:
      NotRecorded: the record cannot be written.
    """
    async with context.sessions.entered(context.session):
        context.session.add(_ended(_draft_of(context, record), record))


async def _batches(
    chunks: AsyncIterator[bytes], max_event_bytes: int
) -> AsyncIterator[list[StreamEvent]]:
    """Events of each chunk, and at last the event that was left without its blank line.

    Raises:
      RequestError: an event is larger than ``max_event_bytes``.
    """
    reader = EventReader()
    async for chunk in chunks:
        yield reader.feed(chunk)
        if len(reader.rest) > max_event_bytes:
            raise RequestError(502, "answer_too_large", "an event of the engine is too large")
    yield reader.end()


def _draft_of(context: RecordingContext, record: RequestRecord) -> CompletionRecord:
    """Record of a request whose body has not been read."""
    return CompletionRecord(
        session=context.session.info.id,
        request_id=record.id,
        dialect=record.dialect,
        arrived_unix_s=record.arrival_unix_s,
        received=b"",
    )


def _ended(draft: CompletionRecord, record: RequestRecord) -> CompletionRecord:
    """The draft with the end of its request."""
    return replace(
        draft,
        ended_unix_s=time.time(),
        outcome=record.outcome or "completed",
        reason=record.reason,
        status=record.status or draft.status,
    )


class RecordedExchange(Exchange):
    """Exchange of a session, recorded even if it fails."""

    def __init__(self, context: RecordingContext, *parts: Any) -> None:
        """Args: the destination of the record, and the arguments of ``Exchange``."""
        super().__init__(*parts)
        self._client_path, self._client_query = self.path, self.query
        # The client's query may have its key, so none is sent to the engine.
        self.path, self.query = "/v1/chat/completions", b""
        self._context = context
        self._policy: TemplatePolicy
        self._chat: Chat
        self._translator: AnswerTranslator
        self._answer: EngineAnswer | None = None
        self._recorded = False
        self._draft = self._unsent = _draft_of(context, self.request.record)

    def received(self, body: bytes) -> None:
        """See ``Exchange``."""
        self._draft = self._unsent = replace(self._draft, received=body)

    def accept(self, parsed: ParsedRequest, policy: TemplatePolicy) -> None:
        """See ``Exchange``."""
        if not translates(self._client_path):
            message = f"requests to {self._client_path} cannot be recorded in a session"
            raise RequestError(400, "not_recordable", message)
        self._translate(parsed.fields, policy)

    def _translate(self, fields: Mapping[str, Any], policy: TemplatePolicy) -> None:
        record = self.request.record
        self._policy = policy
        self._chat, self._translator = translate(
            self._client_path,
            self._client_query,
            fields,
            answer_id=record.id,
            unix_s=int(record.arrival_unix_s),
            policy=policy,
        )
        record.streamed = self._chat.streamed
        record.parallel = self._chat.parallel

    def body(self, spec: EngineSpec) -> bytes:
        """See ``Exchange``."""
        if spec.policy != self._policy:
            self._translate(json_object(self._unsent.received), spec.policy)
        request = FORMATS[spec.kind].ask(self._chat.request)
        if spec.model is not None:
            request["model"] = spec.model
        sent = orjson.dumps(request)
        self._answer = EngineAnswer(spec.kind, self._chat.id)
        self._draft = replace(
            self._unsent,
            engine=spec.name,
            engine_kind=spec.kind,
            sent=sent,
            sampling=sampling_parameters(request),
            logprobs_meaning=spec.logprobs,
            weight_version=self._context.pause.weight_version,
        )
        return sent

    def not_connected(self) -> None:
        """See ``Exchange``."""
        self._draft, self._answer = self._unsent, None

    async def run(self, answer: aiohttp.ClientResponse, engine: str) -> None:
        """See ``Exchange``; the record is written before the end of the response."""
        assert self._answer is not None
        refuse_odd_status(answer, engine)
        if answer.status == 200 and answer.content_type == "text/event-stream":
            await self._stream(answer, engine, self._answer)
            return
        body = await join(self.chunks(answer, engine), engine, self.settings.max_answer_bytes)
        if answer.status != 200:
            await self._refused(answer, body, engine)
        await self._whole(parse_object(body) or {}, self._answer)

    def failed(self, error: RequestError) -> None:
        """See ``Exchange``; writes the record, unless that has been done."""
        self._draft = replace(self._draft, status=error.status)
        with suppress(NotRecorded):  # logged already, and the client gets its error anyway
            self._record()

    async def _whole(self, content: dict[str, Any], answer: EngineAnswer) -> None:
        record = self.request.record
        completion = answer.whole(content)
        record.count(CHAT.usage(content))
        await self._keep()
        if self._chat.streamed:
            writer = self._translator.events()
            TokenClock(self.ledger, record).tick(1)
            data = writer.feed(deltas_of(completion)) + writer.end()
            await self._start()
            await self.response.write(data, more=False)
        else:
            self.request.expect(write_timeout, self.settings.write_s)
            headers = [(b"content-type", b"application/json")]
            await self.response.whole(200, headers, self._translator.whole(completion))
        record.outcome = outcome("")

    async def _stream(
        self, stream: aiohttp.ClientResponse, engine: str, answer: EngineAnswer
    ) -> None:
        record = self.request.record
        writer = self._translator.events()
        clock = TokenClock(self.ledger, record)
        usage, chunks = NO_USAGE, self.chunks(stream, engine)
        try:
            async for events in _batches(chunks, self.settings.max_answer_bytes):
                data, tokens = [], 0
                for event in events:
                    if event.failure is not None and not self.is_done:
                        raise event.failure
                    if event.is_done:
                        self.is_done = answer.finished
                    if event.content is not None:
                        tokens += CHAT.has_token(event.content)
                        usage = usage.updated(CHAT.usage(event.content))
                        data.append(writer.feed(answer.event(event.content)))
                if tokens:
                    clock.tick(tokens)
                await self._write(writer, b"".join(data))
        finally:
            record.count(usage)
        if not answer.finished:
            raise RequestError(502, "engine_broke", f"engine {engine} broke its answer off")
        record.outcome = outcome("")
        await self._keep()
        await self._start()
        await self.response.write(writer.end(), more=False)

    async def _write(self, writer: EventWriter, data: bytes) -> None:
        if data:
            await self._start()
            self.response.events = writer.events
            await self.response.write(data)

    async def _refused(self, answer: aiohttp.ClientResponse, body: bytes, engine: str) -> None:
        """Records an engine's refusal, and raises it as an error."""
        record = self.request.record
        error = engine_error(answer.status, body, engine)
        headers = [(name.lower(), value) for name, value in answer.raw_headers]
        retry_after = first_value(headers, b"retry-after") or ""
        if retry_after.isdecimal():
            error.retry_after_s = int(retry_after)
        record.reason, record.status = error.reason, error.status
        record.outcome = outcome(error.reason)
        with suppress(orjson.JSONDecodeError):
            orjson.loads(body)
            self._draft = replace(self._draft, response=body)
        await self._keep()
        raise error

    async def _start(self) -> None:
        """Sends status and headers of a stream, once."""
        self.request.expect(write_timeout, self.settings.write_s)
        if not self.response.started:
            headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
            await self.response.start(200, headers)

    async def _keep(self) -> None:
        """Writes the record; in a durable session waits for the disk."""
        try:
            self._record()
            if self._context.session.info.durable:
                self.request.expect(disk_timeout, self.settings.write_s)
                await self._context.sessions.synced(self._context.session)
        except NotRecorded:
            raise RequestError(
                507, "not_recorded", "the completion cannot be recorded, so it is not answered"
            ) from None

    def _record(self) -> None:
        if self._recorded:
            return
        self._recorded = True
        answer, content = self._answer, {}
        if answer is not None and answer.begun:
            content = {
                "prompt_ids": answer.prompt_ids,
                "choices": answer.choices,
                "response": answer.body,
            }
        version = self._context.pause.weight_version
        ended = replace(
            _ended(self._draft, self.request.record), **content, weight_version_end=version
        )
        self._draft = self._context.redaction.record(ended)
        self._context.session.add(self._draft)
