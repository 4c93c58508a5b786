"""The mock engine as an ASGI application with vLLM's routes."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from jaxserve.checks import JsonObject
from jaxserve.engine_control.access import check_token
from jaxserve.engine_control.command import CommandError, parse_knobs
from jaxserve.engine_control.routes import Question, control_routes
from jaxserve.errors import InputError
from jaxserve.gateway.http.json_http import plain_json
from jaxserve.mock_engine import VERSION
from jaxserve.mock_engine.clock import Clock
from jaxserve.mock_engine.errors import VllmError, bad_request, plain
from jaxserve.mock_engine.loop import EngineLoop
from jaxserve.mock_engine.machine import Machine, leased_knobs
from jaxserve.mock_engine.outputs import PseudoModel
from jaxserve.mock_engine.requests import RequestReader
from jaxserve.mock_engine.responses import CompletionResponse, event
from jaxserve.mock_engine.sequences import SequenceGroup
from jaxserve.mock_engine.tokens import Vocabulary

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_STREAM_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8")]


class MockEngine:
    """The application."""

    def __init__(
        self, machine: Machine, clock: Clock, variables: Mapping[str, str] = os.environ
    ) -> None:
        """Args: the served machine, the engine's time, and the environment variables.

        Raises:
          InputError: ``JAXSERVE_STATIC`` or ``JAXSERVE_CONTROL_TOKEN`` is invalid.
        """
        settings = machine.settings
        try:
            static = parse_knobs(variables.get("JAXSERVE_STATIC", "{}").encode())
            knobs = leased_knobs(machine, static)
        except CommandError as error:
            raise InputError(f"JAXSERVE_STATIC: {error}") from None
        try:
            token = check_token(variables.get("JAXSERVE_CONTROL_TOKEN"))
        except ValueError as error:
            raise InputError(str(error)) from None
        self._name = settings.served_name
        self._max_model_len = settings.max_model_len
        self._created = int(time.time())
        self._vocabulary = Vocabulary(machine.vocab)
        self._model = PseudoModel(self._vocabulary, settings.mean_output_tokens, settings.seed)
        self._reader = RequestReader(self._name, self._vocabulary, settings.max_model_len)
        self._clock = clock
        self.loop = EngineLoop(machine, knobs, clock)
        self._app = Starlette(
            routes=[
                Route("/v1/chat/completions", _Inference(self, chat=True), methods=["POST"]),
                Route("/v1/completions", _Inference(self, chat=False), methods=["POST"]),
                Route("/v1/models", self._models),
                Route("/health", self._health),
                Route("/ping", self._health, methods=["GET", "POST"]),
                Route("/load", self._load),
                Route("/version", self._version),
                Route("/metrics", self._metrics),
                Route("/tokenize", self._tokenize, methods=["POST"]),
                Route("/detokenize", self._detokenize, methods=["POST"]),
                *control_routes(token, self._answer),
            ],
            exception_handlers={
                VllmError: _vllm_error,
                InputError: _input_error,
                HTTPException: _http_error,
            },
            lifespan=self._live,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one ASGI scope."""
        await self._app(scope, receive, send)

    async def infer(self, chat: bool, request: Request, receive: Receive, send: Send) -> None:
        """Answers a chat completion or a completion."""
        received_s = self._clock.now()  # parsing counts towards the front end's delay
        body = await _json_body(request)
        priority = request.headers.get("x-vllm-priority")
        group = SequenceGroup(self._reader.read(body, chat, priority), self._model)
        response = CompletionResponse(group, self._name, self._vocabulary)
        self.loop.submit(group, received_s)
        watch = asyncio.create_task(_watch(receive, group))
        try:
            if group.asked.stream:
                await _stream(group, response, self.loop, send)
            else:
                await group.new_spans()
                if group.finished:
                    await plain_json(response.whole())(request.scope, receive, send)
        finally:
            watch.cancel()
            if not group.finished:
                self.loop.abandon(group)

    async def _answer(self, question: Question) -> list[dict[str, Any]]:
        return [self.loop.answer(question)]

    @asynccontextmanager
    async def _live(self, app: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(self.loop.run())
        yield
        task.cancel()

    async def _models(self, request: Request) -> Response:
        card = {
            "id": self._name,
            "object": "model",
            "created": self._created,
            "owned_by": "vllm",
            "root": self._name,
            "parent": None,
            "max_model_len": self._max_model_len,
            "permission": [],
        }
        return plain_json({"object": "list", "data": [card]})

    async def _health(self, request: Request) -> Response:
        return Response(status_code=503 if self.loop.failed else 200)

    async def _load(self, request: Request) -> Response:
        state = self.loop.state()
        return plain_json({"server_load": state["running"] + state["waiting"]})

    async def _version(self, request: Request) -> Response:
        return plain_json({"version": VERSION})

    async def _metrics(self, request: Request) -> Response:
        return Response(self.loop.metrics.text(), media_type=_METRICS_TYPE)

    async def _tokenize(self, request: Request) -> Response:
        fields = await self._read_fields(request)
        if "messages" in fields:
            tokens = self._reader.chat_prompt(fields)
        else:
            tokens = self._vocabulary.prompt(fields.text("prompt"))
        texts = None
        if fields.get("return_token_strs"):
            texts = [self._vocabulary.text(token) for token in tokens]
        counted = {"count": len(tokens), "max_model_len": self._max_model_len}
        return plain_json({**counted, "tokens": tokens, "token_strs": texts})

    async def _detokenize(self, request: Request) -> Response:
        fields = await self._read_fields(request)
        return plain_json(
            {"prompt": self._vocabulary.texts(self._reader.ids(fields.get("tokens")))}
        )

    async def _read_fields(self, request: Request) -> JsonObject:
        fields = JsonObject(await _json_body(request), "request")
        self._reader.check_model(fields)
        return fields


class _Inference:
    """A route whose response may be a stream."""

    def __init__(self, engine: MockEngine, chat: bool) -> None:
        self._engine = engine
        self._chat = chat

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        with suppress(ClientDisconnect):  # in the middle of the request body
            await self._engine.infer(self._chat, request, receive, send)


async def _stream(
    group: SequenceGroup, response: CompletionResponse, loop: EngineLoop, send: Send
) -> None:
    """Sends events as tokens come; a slow client or host gets several iterations in one part."""
    await send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})
    try:
        finished = False
        while not finished:
            spans = await group.new_spans()
            if group.disconnected:
                return
            finished = group.finished
            part = response.events(spans)
            if finished:
                part += response.end()
            await send({"type": "http.response.body", "body": part, "more_body": not finished})
            for span in spans:
                if span.start == 0:
                    loop.delivered(group.sequences[span.index])
    except VllmError as error:
        await send({"type": "http.response.body", "body": event(error.body())})


async def _watch(receive: Receive, group: SequenceGroup) -> None:
    """Ends a group whose client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass
    group.disconnect()


async def _json_body(request: Request) -> Any:
    try:
        return orjson.loads(await request.body())
    except orjson.JSONDecodeError:
        raise bad_request("the request body is not JSON") from None


def _vllm_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, VllmError)
    return plain_json(error.body(), error.status)


def _input_error(request: Request, error: Exception) -> Response:
    return _vllm_error(request, bad_request(str(error)))


def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _vllm_error(request, plain(error.status_code))
