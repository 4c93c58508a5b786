"""One request of a session: sent as chat, passed on as it comes, and recorded before its end.

A record is written before the last byte of its answer leaves, so that whoever has seen a whole
answer finds it in the records. Where the session is durable it is on the disk by then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
import orjson

from jaxserve.gateway.calls import disk_wait, write_wait
from jaxserve.gateway.dialects import CHAT, NO_USAGE
from jaxserve.gateway.engines import EngineSpec
from jaxserve.gateway.events import EventReader
from jaxserve.gateway.headers import RawHeaders, to_client
from jaxserve.gateway.ledger import TokenClock
from jaxserve.gateway.problems import Problem, outcome_of
from jaxserve.gateway.relay import Way, refuse_odd_status
from jaxserve.gateway.sessions import engines
from jaxserve.gateway.sessions.assembly import Assembly, events_of
from jaxserve.gateway.sessions.forms import FORMS, Form
from jaxserve.gateway.sessions.records import CompletionRecord
from jaxserve.gateway.sessions.store import NotRecorded, Session, Sessions
from jaxserve.gateway.upstream import join


@dataclass(frozen=True)
class Place:
    """Where captured requests belong."""

    sessions: Sessions
    session: Session
    weight_version: Callable[[], str | None]
    """of the engines' weights, at this moment."""


class Captured(Way):
    """One request's way there and back."""

    path = "/v1/chat/completions"
    query = b""  # of another dialect, where there is any

    def __init__(self, way: Way, received: bytes, place: Place) -> None:
        """Args: what every request has, the body, which is JSON, and the session.

        Raises:
          Problem: the dialect cannot be captured, or the request cannot be said as chat.
        """
        super().__init__(way.settings, way.ledger, way.dialect, way.call, way.answer)
        form = FORMS.get(way.dialect.name)
        if form is None:
            raise Problem(
                400,
                "dialect_not_captured",
                f"{way.dialect.name} cannot be recorded in a session; {', '.join(FORMS)} can",
            )
        self._form: Form = form
        self._place = place
        self._chat = form.chat(orjson.loads(received))
        self._assembly = Assembly()
        self._recorded = False
        record = way.call.record
        self._draft = CompletionRecord(
            session=place.session.info.id,
            request_id=record.id,
            dialect=way.dialect.name,
            arrived_unix_s=record.arrival_unix_s,
            received=received,
        )

    def body(self, spec: EngineSpec) -> bytes:
        """What this engine is sent."""
        asked = engines.STRATEGIES[spec.kind].ask(self._chat)
        sent = orjson.dumps(asked)
        self._draft = replace(
            self._draft,
            engine=spec.name,
            engine_kind=spec.kind,
            sent=sent,
            sampling=engines.sampling_of(asked),
            logprobs_meaning=spec.logprobs,
            weight_version=self._place.weight_version(),
        )
        return sent

    async def run(self, response: aiohttp.ClientResponse, engine: str) -> None:
        """Passes on what the engine answers, recorded before its end.

        Raises:
          Problem: the engine's answer is none, or broke off, or cannot be recorded.
        """
        refuse_odd_status(response, engine)
        headers = to_client(response.raw_headers)
        if response.status == 200 and response.content_type == "text/event-stream":
            await self._events(response, engine, headers)
            return
        limit = self.settings.max_answer_bytes
        body = await join(self.chunks(response, engine), engine, limit)
        if response.status != 200:
            await self._refused(response.status, headers, body)
            return
        answer = _parsed(body)
        if answer is None or not engines.choices(answer):
            raise Problem(502, "engine_garbage", f"engine {engine} answered with other than chat")
        await self._whole(answer, headers)

    def failed(self, problem: Problem) -> None:
        """Records how it ended, unless its record is written already."""
        self._draft = replace(self._draft, status=problem.status)
        with suppress(NotRecorded):  # said in the log, and the client gets its error anyway
            self._record(self._assembly.answer())

    async def _whole(self, answer: dict[str, Any], headers: RawHeaders) -> None:
        record = self.call.record
        record.prompt_tokens, record.output_tokens = CHAT.usage(answer)
        await self._keep(answer)
        shown = engines.shown(answer, self._chat)
        if self._chat.get("stream") is True:
            record.streamed = True
            headers = [(name, value) for name, value in headers if name != b"content-type"]
            headers.append((b"content-type", b"text/event-stream; charset=utf-8"))
            writer = self._form.events(self._chat)
            clock = TokenClock(self.ledger, record)
            clock.tick(1)
            data = b"".join(writer.feed(event) for event in events_of(shown))
            await self.start(headers)
            await self.answer.write(data + writer.end(), more=False)
        else:
            self.call.expect(write_wait, self.settings.write_s)
            body = orjson.dumps(self._form.answer(shown, self._chat))
            await self.answer.whole(200, list(headers), body)
        record.outcome = outcome_of("")

    async def _events(
        self, response: aiohttp.ClientResponse, engine: str, headers: RawHeaders
    ) -> None:
        record, answer = self.call.record, self.answer
        record.streamed = True
        reader = EventReader(self.settings.max_answer_bytes)
        writer = self._form.events(self._chat)
        clock = TokenClock(self.ledger, record)
        usage, done, failed = NO_USAGE, False, False
        try:
            async for chunk in self.chunks(response, engine):
                data, tokens = [], 0
                for event in reader.feed(chunk):
                    if event is None:
                        done = True
                        continue
                    self._assembly.add(event)
                    tokens += CHAT.has_token(event)
                    failed = failed or CHAT.is_error(event)
                    usage = usage.updated(CHAT.usage(event))
                    data += self._said(writer, event)
                if tokens:
                    clock.tick(tokens)
                if data:
                    await self.start(headers)
                    answer.events += len(data)
                    await answer.write(b"".join(data))
        finally:
            record.prompt_tokens, record.output_tokens = usage
        if not failed and not (done and self._assembly.finished):
            raise Problem(502, "engine_broke", f"engine {engine} broke its answer off")
        record.reason = "engine_error" if failed else ""
        record.outcome = outcome_of(record.reason)
        await self._keep(self._assembly.answer())
        await self.start(headers)
        await answer.write(writer.end(), more=False)

    def _said(self, writer: Any, event: dict[str, Any]) -> Iterator[bytes]:
        """What the client gets of an event, if that is anything."""
        shown = engines.shown(event, self._chat)
        if _is_empty(shown) and not _is_empty(event):
            return
        if data := writer.feed(shown):
            yield data

    async def _refused(self, status: int, headers: RawHeaders, body: bytes) -> None:
        record = self.call.record
        record.reason = "engine_429" if status == 429 else f"engine_{status // 100}xx"
        record.outcome = outcome_of(record.reason)
        record.status = status
        self._draft = replace(self._draft, response=body if _parsed(body) is not None else None)
        await self._keep(None)
        if not self._form.passes_refusals:
            body = orjson.dumps(self.dialect.error(Problem(status, record.reason, _message(body))))
        self.call.expect(write_wait, self.settings.write_s)
        await self.answer.whole(status, list(headers), body)

    async def start(self, headers: RawHeaders) -> None:
        """Sends status and headers, once."""
        self.call.expect(write_wait, self.settings.write_s)
        if not self.answer.started:
            await self.answer.start(200, list(headers))

    async def _keep(self, answer: dict[str, Any] | None) -> None:
        try:
            self._record(answer)
            if self._place.session.info.durable:
                self.call.expect(disk_wait, self.settings.write_s)
                await self._place.sessions.synced(self._place.session)
        except NotRecorded:
            raise Problem(
                507, "not_recorded", "the completion cannot be recorded, so it is not answered"
            ) from None

    def _record(self, answer: dict[str, Any] | None) -> None:
        if self._recorded:
            return
        self._recorded = True
        draft, record = self._draft, self.call.record
        if answer is not None and draft.engine_kind and engines.choices(answer):
            prompt_ids, choices = engines.read(draft.engine_kind, answer)
            response = orjson.dumps(engines.bare(answer))
            draft = replace(draft, prompt_ids=prompt_ids, choices=choices, response=response)
        self._draft = replace(
            draft,
            ended_unix_s=time.time(),
            outcome=record.outcome or "completed",
            reason=record.reason,
            status=record.status or draft.status,
            weight_version_end=self._place.weight_version(),
        )
        self._place.session.add(self._draft)


def _is_empty(event: dict[str, Any]) -> bool:
    """Whether an event says nothing: neither text nor role, end, usage or error."""
    if event.get("usage") is not None or event.get("error") is not None:
        return False
    for choice in engines.choices(event):
        beside = {name: value for name, value in choice.items() if name not in ("index", "delta")}
        if choice.get("delta") or any(value is not None for value in beside.values()):
            return False
    return True


def _parsed(body: bytes) -> dict[str, Any] | None:
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None


def _message(body: bytes) -> str:
    """What an engine says of its error."""
    error = (_parsed(body) or {}).get("error")
    message = error.get("message") if isinstance(error, dict) else None
    return message if isinstance(message, str) else "the engine refused the request"
