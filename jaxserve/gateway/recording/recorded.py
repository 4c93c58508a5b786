"""One request of a session: sent as chat, passed on as it comes, and recorded before its end.

A record is written before the last byte of its answer leaves, so that whoever has seen a whole
answer finds it in the records. Where the session is durable it is on the disk by then.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
import orjson

from jaxserve.gateway.dialects.canonical import Chat
from jaxserve.gateway.dialects.deltas import EventWriter, deltas_of
from jaxserve.gateway.dialects.dialect import CHAT, NO_USAGE
from jaxserve.gateway.dialects.engine_reader import engine_problem
from jaxserve.gateway.dialects.request_fields import object_in
from jaxserve.gateway.dialects.routes import translated, translates
from jaxserve.gateway.dialects.template_policy import TemplatePolicy
from jaxserve.gateway.engines.specs import EngineSpec
from jaxserve.gateway.engines.upstream import join
from jaxserve.gateway.exchange.events import EventReader
from jaxserve.gateway.exchange.in_flight import disk_wait, write_wait
from jaxserve.gateway.exchange.passthrough import Way, refuse_odd_status
from jaxserve.gateway.http.errors import Problem, outcome_of
from jaxserve.gateway.http.headers import first
from jaxserve.gateway.measure.ledger import TokenClock
from jaxserve.gateway.measure.records import RequestRecord
from jaxserve.gateway.recording import token_ids as engines
from jaxserve.gateway.recording.engine_answer import Answered
from jaxserve.gateway.recording.records import CompletionRecord
from jaxserve.gateway.recording.redaction import Redaction
from jaxserve.gateway.recording.session import NotRecorded, Session
from jaxserve.gateway.recording.store import Sessions


@dataclass(frozen=True)
class Place:
    """Where captured requests belong."""

    sessions: Sessions
    session: Session
    weight_version: Callable[[], str | None]
    """of the engines' weights, at this moment."""
    redaction: Redaction
    """of what no record may hold."""


async def record_refusal(place: Place, record: RequestRecord) -> None:
    """Records a request that was refused before anything of it was read.

    Raises:
      NotRecorded: it cannot be.
    """
    async with place.sessions.entered(place.session):
        place.session.add(_ended(_draft_of(place, record), record))


def _draft_of(place: Place, record: RequestRecord) -> CompletionRecord:
    """The record of a request of which nothing has been read."""
    return CompletionRecord(
        session=place.session.info.id,
        request_id=record.id,
        dialect=record.dialect,
        arrived_unix_s=record.arrival_unix_s,
        received=b"",
    )


def _ended(draft: CompletionRecord, record: RequestRecord) -> CompletionRecord:
    """The same with how the request ended."""
    return replace(
        draft,
        ended_unix_s=time.time(),
        outcome=record.outcome or "completed",
        reason=record.reason,
        status=record.status or draft.status,
    )


class Captured(Way):
    """One request's way there and back, recorded however far it comes."""

    path = "/v1/chat/completions"
    query = b""  # the agent's may have its key

    def __init__(self, way: Way, path: str, query: bytes, place: Place) -> None:
        """Args: what every request has, what the agent asked for, the session."""
        super().__init__(way.settings, way.ledger, way.dialect, way.call, way.answer)
        self._asked = path, query
        self._place = place
        self._policy: TemplatePolicy
        self._chat: Chat
        self._answerer: Any
        self._answered: Answered | None = None
        self._recorded = False
        self._draft = self._unsent = _draft_of(place, way.call.record)

    def came(self, body: bytes) -> None:
        """Its body has been read."""
        self._draft = self._unsent = replace(self._draft, received=body)

    def translate(self, policy: TemplatePolicy) -> None:
        """Says it as chat.

        Args:
          policy: what engines' templates take.

        Raises:
          Problem: the request cannot be recorded, is malformed, or cannot be said as chat.
        """
        record, (path, query) = self.call.record, self._asked
        if not translates(path):
            message = f"requests to {path} cannot be recorded in a session"
            raise Problem(400, "not_recordable", message)
        self._policy = policy
        self._chat, self._answerer = translated(
            path,
            query,
            self._draft.received,
            answer_id=record.id,
            unix_s=int(record.arrival_unix_s),
            policy=policy,
        )
        record.streamed = self._chat.streamed
        record.parallel = self._chat.parallel

    def body(self, spec: EngineSpec) -> bytes:
        """What this engine is sent."""
        if spec.policy != self._policy:
            self.translate(spec.policy)
        asked = engines.STRATEGIES[spec.kind].ask(self._chat.request)
        if spec.model is not None:
            asked["model"] = spec.model
        sent = orjson.dumps(asked)
        self._answered = Answered(spec.kind, self._chat.id)
        self._draft = replace(
            self._unsent,
            engine=spec.name,
            engine_kind=spec.kind,
            sent=sent,
            sampling=engines.sampling_of(asked),
            logprobs_meaning=spec.logprobs,
            weight_version=self._place.weight_version(),
        )
        return sent

    def not_begun(self) -> None:
        """The engine that it was meant for never got it."""
        self._draft, self._answered = self._unsent, None

    async def run(self, response: aiohttp.ClientResponse, engine: str) -> None:
        """Passes on what the engine answers, recorded before its end.

        Raises:
          Problem: the engine's answer is none, or broke off, or cannot be recorded.
        """
        assert self._answered is not None
        refuse_odd_status(response, engine)
        if response.status == 200 and response.content_type == "text/event-stream":
            await self._events(response, engine, self._answered)
            return
        limit = self.settings.max_answer_bytes
        body = await join(self.chunks(response, engine), engine, limit)
        if response.status != 200:
            await self._refused(response, body, engine)
        await self._whole(object_in(body) or {}, self._answered)

    def failed(self, problem: Problem) -> None:
        """Records how it ended, unless its record is written already."""
        self._draft = replace(self._draft, status=problem.status)
        with suppress(NotRecorded):  # said in the log, and the client gets its error anyway
            self._record()

    async def _whole(self, answer: dict[str, Any], answered: Answered) -> None:
        record = self.call.record
        completion = answered.whole(answer)
        record.count(CHAT.usage(answer))
        await self._keep()
        if self._chat.streamed:
            writer = self._answerer.events()
            TokenClock(self.ledger, record).tick(1)
            data = writer.feed(deltas_of(completion)) + writer.end()
            await self._start()
            await self.answer.write(data, more=False)
        else:
            self.call.expect(write_wait, self.settings.write_s)
            headers = [(b"content-type", b"application/json")]
            await self.answer.whole(200, headers, self._answerer.whole(completion))
        record.outcome = outcome_of("")

    async def _events(
        self, response: aiohttp.ClientResponse, engine: str, answered: Answered
    ) -> None:
        record = self.call.record
        reader = EventReader(self.settings.max_answer_bytes)
        writer = self._answerer.events()
        clock = TokenClock(self.ledger, record)
        usage, done = NO_USAGE, False
        try:
            async for chunk in self.chunks(response, engine):
                data, tokens = [], 0
                for event in reader.feed(chunk):
                    if event is None:
                        done = True
                        continue
                    tokens += CHAT.has_token(event)
                    usage = usage.updated(CHAT.usage(event))
                    data.append(writer.feed(answered.event(event)))
                if tokens:
                    clock.tick(tokens)
                await self._write(writer, b"".join(data))
        finally:
            record.count(usage)
        if not (done and answered.finished):
            raise Problem(502, "engine_broke", f"engine {engine} broke its answer off")
        record.outcome = outcome_of("")
        await self._keep()
        await self._start()
        await self.answer.write(writer.end(), more=False)

    async def _write(self, writer: EventWriter, data: bytes) -> None:
        if data:
            await self._start()
            self.answer.events = writer.events
            await self.answer.write(data)

    async def _refused(self, response: aiohttp.ClientResponse, body: bytes, engine: str) -> None:
        """Raises the engine's refusal as a problem, recorded."""
        record = self.call.record
        problem = engine_problem(response.status, body, engine)
        again = first([(k.lower(), v) for k, v in response.raw_headers], b"retry-after") or ""
        if again.isdecimal():
            problem.retry_after_s = int(again)
        record.reason, record.status = problem.reason, problem.status
        record.outcome = outcome_of(problem.reason)
        with suppress(orjson.JSONDecodeError):
            orjson.loads(body)
            self._draft = replace(self._draft, response=body)
        await self._keep()
        raise problem

    async def _start(self) -> None:
        """Sends status and headers of a stream, once."""
        self.call.expect(write_wait, self.settings.write_s)
        if not self.answer.started:
            headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
            await self.answer.start(200, headers)

    async def _keep(self) -> None:
        try:
            self._record()
            if self._place.session.info.durable:
                self.call.expect(disk_wait, self.settings.write_s)
                await self._place.sessions.synced(self._place.session)
        except NotRecorded:
            raise Problem(
                507, "not_recorded", "the completion cannot be recorded, so it is not answered"
            ) from None

    def _record(self) -> None:
        if self._recorded:
            return
        self._recorded = True
        draft, record, answered = self._draft, self.call.record, self._answered
        said: dict[str, Any] = {}
        if answered is not None and answered.begun:
            said = {
                "prompt_ids": answered.prompt_ids,
                "choices": answered.choices,
                "response": answered.body,
            }
        version = self._place.weight_version()
        ended = replace(_ended(draft, record), **said, weight_version_end=version)
        self._draft = self._place.redaction.record(ended)
        self._place.session.add(self._draft)
