"""An engine that does what a request's field ``stub`` says, for tests of the gateway.

It is a real HTTP server in a thread, with the routes and the streams of vLLM. ``stub`` may have:

- ``tokens``: how many to answer with (3).
- ``gated``: True makes every token wait for ``Seen.allow``; "head" the answer's headers as well.
- ``status``: of an error in place of an answer.
- ``cut``: the connection breaks after so many tokens.
- ``usage``: False tells none in a stream although it was asked for.
- ``error``: True fails inside the stream, as vLLM does.
- ``pad``: bytes that each token is longer; ``blank``: True gives tokens without text.
- ``headers``: more headers of the answer.
"""

from __future__ import annotations

import asyncio
import json
import socket
import socketserver
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.patience import wait_until
from tests.server_thread import FakeServer

PROMPT_TOKENS = 7


@dataclass
class Seen:
    """A request as the engine saw it."""

    path: str
    query: str
    headers: dict[str, str]
    body: bytes
    loop: asyncio.AbstractEventLoop
    outcome: str = "running"
    """``done``, or ``left`` when the client was gone first."""
    gate: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))

    @property
    def json(self) -> Any:
        """The body."""
        return json.loads(self.body)

    def allow(self, tokens: int = 1_000_000) -> None:
        """Lets a gated answer go on."""

        def release() -> None:
            for _ in range(min(tokens, 10_000)):
                self.gate.release()

        self.loop.call_soon_threadsafe(release)


class StubEngine(FakeServer):
    """``with StubEngine() as engine: ... engine.url, engine.seen``."""

    def __init__(self, port: int = 0, more: Sequence[Route] = ()) -> None:
        """Args: port to listen on, 0 takes a free one; and routes beside those of inference."""
        self.seen: list[Seen] = []
        """in the order in which they arrived."""
        self.running = 0
        self.most_running = 0
        routes = [
            Route("/v1/chat/completions", self._answer, methods=["POST"]),
            Route("/v1/completions", self._answer, methods=["POST"]),
            Route("/v1/messages", self._answer, methods=["POST"]),
            Route("/v1/responses", self._answer, methods=["POST"]),
            Route("/v1/models", self._models),
            Route("/health", lambda request: Response()),
            *more,
        ]
        super().__init__(routes, port)

    def stop(self) -> None:
        """Lets gated answers go on, and stops at once."""
        for seen in self.seen:
            seen.allow()
        super().stop()

    def wait_for(self, count: int) -> None:
        """Returns when so many requests have arrived."""
        wait_until(lambda: len(self.seen) >= count, f"request {count}")

    async def _models(self, request: Request) -> Response:
        key = request.headers.get("authorization", "none")
        return JSONResponse({"object": "list", "data": [{"id": "stub"}], "asked_with": key})

    async def _answer(self, request: Request) -> Response:
        try:
            body = await request.body()
        except ClientDisconnect:
            return Response()
        url, loop = request.url, asyncio.get_running_loop()
        seen = Seen(url.path, url.query, dict(request.headers), body, loop)
        self.seen.append(seen)
        asked = self._asked(seen)
        stub = asked.get("stub", {})
        headers = stub.get("headers")
        if "status" in stub:
            seen.outcome = "done"
            return JSONResponse({"error": {"message": "as asked"}}, stub["status"], headers)
        if refusal := self._refusal(asked):
            return refusal
        waits = stub.get("gated") == "head" or (stub.get("gated") and not asked.get("stream"))
        if waits and not await self._goes_on(request, seen):
            return Response()
        if asked.get("stream"):
            parts = self._counted(seen, self._stream(asked, seen))
            return StreamingResponse(parts, media_type="text/event-stream", headers=headers)
        seen.outcome = "done"
        return JSONResponse(self._whole(asked, seen.path), headers=headers)

    def _asked(self, seen: Seen) -> dict[str, Any]:
        """The body, with its field ``stub``."""
        return seen.json

    def _refusal(self, asked: dict[str, Any]) -> Response | None:
        """What is answered to a request that is not served."""
        return None

    def _whole(self, asked: dict[str, Any], path: str) -> dict[str, Any]:
        return whole_of(path, asked)

    def _stream(self, asked: dict[str, Any], seen: Seen) -> AsyncIterator[bytes]:
        return stream_of(seen.path, asked, seen)

    async def _goes_on(self, request: Request, seen: Seen) -> bool:
        """Waits to be allowed; False when the client is gone."""
        self._begin()
        going = asyncio.ensure_future(seen.gate.acquire())
        while not going.done() and not await request.is_disconnected():
            await asyncio.wait([going], timeout=0.02)
        self.running -= 1
        if going.done():
            return True
        seen.outcome = "left"
        going.cancel()
        return False

    async def _counted(self, seen: Seen, parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        self._begin()
        try:
            async for part in parts:
                yield part
            seen.outcome = "done"
        finally:
            self.running -= 1
            if seen.outcome == "running":
                seen.outcome = "left"

    def _begin(self) -> None:
        self.running += 1
        self.most_running = max(self.most_running, self.running)


def event(data: dict[str, Any], name: str | None = None) -> bytes:
    """One server-sent event."""
    head = b"" if name is None else f"event: {name}\n".encode()
    return head + b"data: " + json.dumps(data, separators=(",", ":")).encode() + b"\n\n"


def usage_of(tokens: int) -> dict[str, int]:
    """As chat and completions tell it."""
    counts = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": tokens}
    return {**counts, "total_tokens": PROMPT_TOKENS + tokens}


def whole_of(path: str, asked: dict[str, Any]) -> dict[str, Any]:
    """An answer that is not streamed."""
    tokens = asked.get("stub", {}).get("tokens", 3)
    text = "".join(f"t{place} " for place in range(tokens))
    if path in ("/v1/messages", "/v1/responses"):
        usage = {"input_tokens": PROMPT_TOKENS, "output_tokens": tokens}
        return {"content": [{"type": "text", "text": text}], "usage": usage}
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "text": text}
    return {"choices": [choice], "usage": usage_of(tokens)}


async def stream_of(path: str, asked: dict[str, Any], seen: Seen | None) -> AsyncIterator[bytes]:
    """A streamed answer, event by event."""
    stub = asked.get("stub", {})
    tokens = stub.get("tokens", 3)
    first, token, last = _EVENTS[path]
    for part in first():
        yield part
    for place in range(tokens):
        if stub.get("gated") is True and seen is not None:
            await seen.gate.acquire()
        if place == stub.get("cut"):
            raise RuntimeError("the connection breaks, as asked")
        yield token("" if stub.get("blank") else f"t{place} " + "x" * stub.get("pad", 0))
    if stub.get("error"):
        yield event({"error": {"message": "the engine failed", "code": 500}})
    include = (asked.get("stream_options") or {}).get("include_usage")
    for part in last(tokens, bool(include) and stub.get("usage", True)):
        yield part


def _chat_token(text: str) -> bytes:
    return event({"id": "c", "choices": [{"index": 0, "delta": {"content": text}}]})


def _chat_last(tokens: int, usage: bool) -> list[bytes]:
    finish = event({"id": "c", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    counted = [event({"id": "c", "choices": [], "usage": usage_of(tokens)})] if usage else []
    return [finish, *counted, b"data: [DONE]\n\n"]


def _chat_first() -> list[bytes]:
    return [event({"id": "c", "choices": [{"delta": {"role": "assistant", "content": ""}}]})]


def _completions_token(text: str) -> bytes:
    return event({"id": "c", "choices": [{"index": 0, "text": text}]})


def _messages_first() -> list[bytes]:
    usage = {"input_tokens": PROMPT_TOKENS, "output_tokens": 0}
    return [event({"type": "message_start", "message": {"usage": usage}}, "message_start")]


def _messages_token(text: str) -> bytes:
    delta = {"type": "text_delta", "text": text}
    return event({"type": "content_block_delta", "index": 0, "delta": delta}, "content_block_delta")


def _messages_last(tokens: int, usage: bool) -> list[bytes]:
    end = {"type": "message_delta", "delta": {}, "usage": {"output_tokens": tokens}}
    return [event(end, "message_delta"), event({"type": "message_stop"}, "message_stop")]


def _responses_token(text: str) -> bytes:
    name = "response.output_text.delta"
    return event({"type": name, "delta": text}, name)


def _responses_last(tokens: int, usage: bool) -> list[bytes]:
    counts = {"input_tokens": PROMPT_TOKENS, "output_tokens": tokens}
    end = {"type": "response.completed", "response": {"usage": counts}}
    return [event(end, "response.completed")]


_EVENTS: dict[str, tuple[Any, Any, Any]] = {
    "/v1/chat/completions": (_chat_first, _chat_token, _chat_last),
    "/v1/completions": (list, _completions_token, _chat_last),
    "/v1/messages": (_messages_first, _messages_token, _messages_last),
    "/v1/responses": (
        lambda: [event({"type": "response.created", "response": {}}, "response.created")],
        _responses_token,
        _responses_last,
    ),
}


@contextmanager
def nobody_there() -> Iterator[str]:
    """The address of an engine that is gone; held, so that nobody else takes its port."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{held.getsockname()[1]}"


class RawServer(socketserver.ThreadingTCPServer):
    """Says some bytes to whoever connects and sends a request, whatever it was."""

    daemon_threads, block_on_close = True, False

    def __init__(self, says: bytes = b"", *, stays: bool = False) -> None:
        """Args: what is said, and whether the connection then stays open."""
        super().__init__(("127.0.0.1", 0), _RawAnswer)
        # An answer that ends before its connection does must say that the connection ends too: a
        # client that keeps it may write its next request into it while it is being closed.
        self.says = says.replace(
            b"\r\ncontent-length:", b"\r\nconnection: close\r\ncontent-length:", 1
        )
        self.requests = 0
        """for output: a gateway also asks for knobs when it starts."""
        self.ends = threading.Event()
        if not stays:
            self.ends.set()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that is gone is none."""

    def __exit__(self, *exception: object) -> None:
        self.ends.set()
        self.shutdown()
        self.server_close()


class _RawAnswer(socketserver.StreamRequestHandler):
    server: RawServer

    def handle(self) -> None:
        # The whole request: what is left unread when a connection is closed resets it, and the
        # client may lose what was said.
        size, asks = 0, False
        for line in iter(self.rfile.readline, b"\r\n"):
            if not line:
                return
            asks = asks or line.startswith(b"POST ")
            name, _, value = line.partition(b":")
            size = int(value) if name.lower() == b"content-length" else size
        self.rfile.read(size)
        self.server.requests += asks
        self.wfile.write(self.server.says)
        self.server.ends.wait()
