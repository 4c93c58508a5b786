"""An HTTP server that answers in every dialect with what a script says, for official clients."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import orjson

from jaxserve.gateway.dialects.canonical import Chat, Completion
from jaxserve.gateway.dialects.deltas import Arguments, Delta, Reasoning, Text, deltas_of
from jaxserve.gateway.dialects.dialect import ModelCard
from jaxserve.gateway.dialects.routes import (
    AnswerTranslator,
    counts_tokens,
    dialect_of,
    models_response,
    translate,
    translates,
)
from jaxserve.gateway.http.errors import RequestError
from jaxserve.gateway.http.json_http import json_object

NOW_S = 1_700_000_000


class ScriptedGateway:
    """``with ScriptedGateway() as gateway: gateway.says(completion); ... gateway.chats``."""

    def __init__(self) -> None:
        self.chats: list[Chat] = []
        """as they were understood."""
        self.tokens = 0
        """that are counted."""
        self.fails_with: RequestError | None = None
        """in place of an answer, or in the middle of a stream."""
        self._completion = Completion(())
        gateway = self

        class Handler(BaseHTTPRequestHandler):
            """One request."""

            def do_GET(self) -> None:
                headers = [(name.lower().encode(), b"") for name in self.headers]
                cards = [ModelCard("m", NOW_S, 4096)]
                path = self.path.partition("?")[0]
                self._send(lambda: models_response(path, headers, cards))

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                path, _, query = self.path.partition("?")
                self._send(lambda: gateway._answer(path, query.encode(), body))

            def _send(self, answer: Callable[[], bytes]) -> None:
                status, kind = 200, "application/json"
                try:
                    data = answer()
                except RequestError as problem:
                    status = problem.status
                    data = orjson.dumps(dialect_of(self.path.partition("?")[0]).error(problem))
                if data.startswith((b"data:", b"event:")):
                    kind = "text/event-stream"
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:
                """Says nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> ScriptedGateway:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def says(self, completion: Completion) -> None:
        """The answer to all requests from now on."""
        self._completion = completion

    def _answer(self, path: str, query: bytes, body: bytes) -> bytes:
        if not translates(path):
            raise RequestError(404, "unknown_route", f"there is no route {path}")
        chat, answerer = translate(path, query, json_object(body), answer_id="id1", unix_s=NOW_S)
        self.chats.append(chat)
        if counts_tokens(path):
            return answerer.counted(self.tokens)
        if chat.streamed:
            return self._streamed(path, answerer)
        if self.fails_with is not None:
            raise self.fails_with
        return answerer.whole(self._completion)

    def _streamed(self, path: str, answerer: AnswerTranslator) -> bytes:
        events = answerer.events()
        pieces = list(_letters(deltas_of(self._completion)))
        if self.fails_with is None:
            return events.feed(pieces) + events.end()
        begun = events.feed(pieces[: len(pieces) // 2])
        return begun + dialect_of(path).error_event(self.fails_with, events.events)


def _letters(deltas: Iterable[Delta]) -> Iterable[Delta]:
    """Texts letter by letter."""
    for delta in deltas:
        match delta:
            case Arguments(choice, call, text):
                yield from (Arguments(choice, call, letter) for letter in text)
            case Reasoning() | Text():
                yield from (type(delta)(delta.choice, letter) for letter in delta.text)
            case _:
                yield delta
