"""An engine that counts what it is sent as a bill would, and misbehaves as it is told."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.gateway.stub_engine import event
from tests.patience import PATIENCE_S
from tests.server_thread import ServerThread


class PaidEngine:
    """``with PaidEngine() as engine: ... engine.bill``.

    ``mode`` is what it does from now on:

    - ``well``: answers with as many tokens as were asked for.
    - ``garbage``: streams what is no stream.
    - ``uncounted``: tells no usage.
    - ``endless``: streams without an end.
    - ``greedy``: says that it counted a hundred times as many tokens.
    - ``cut``: breaks the connection in the stream.
    - ``full``: has no room (429).
    - ``telltale``: refuses and repeats every header that it was sent.
    - ``silent``: never answers.
    """

    def __init__(self, mode: str = "well") -> None:
        self.mode = mode
        self.bill = 0
        """tokens of prompts, and of outputs as far as they were allowed to be."""
        self.requests: list[dict[str, Any]] = []
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        routes = [
            Route("/v1/models", self._models),
            Route("/v1/completions", self._answer, methods=["POST"]),
            Route("/v1/chat/completions", self._answer, methods=["POST"]),
        ]
        config = uvicorn.Config(
            Starlette(routes=routes), log_level="critical", lifespan="off", ws="none"
        )
        self._thread = ServerThread(uvicorn.Server(config), [self._socket])

    def __enter__(self) -> PaidEngine:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Dies."""
        self._thread.stop(at_once=True)

    async def _models(self, request: Request) -> Response:
        return JSONResponse({"data": [{"id": "paid", "max_model_len": 4096}]})

    async def _answer(self, request: Request) -> Response:
        asked = json.loads(await request.body())
        self.requests.append(asked)
        chat = "messages" in asked
        prompt = asked["messages"][0]["content"] if chat else asked["prompt"]
        # Words of letters: the dearest tokenizer has a token for each byte.
        tokens, output = len(prompt), asked["max_tokens"]
        self.bill += tokens + output
        if self.mode == "silent":
            await asyncio.sleep(PATIENCE_S)
        if self.mode == "full":
            return JSONResponse({"error": "busy"}, 429)
        if self.mode == "telltale":
            return JSONResponse({"error": str(dict(request.headers))}, 401)
        return StreamingResponse(self._stream(tokens, output, chat), media_type="text/event-stream")

    async def _stream(self, prompt: int, output: int, chat: bool) -> AsyncIterator[bytes]:
        if self.mode == "garbage":
            yield b"\x00\xff" * 200_000
            return
        token = event({"choices": [{"delta": {"content": "x"}} if chat else {"text": "x"}]})
        for place in range(10**9 if self.mode == "endless" else output):
            yield token
            if self.mode == "cut" and place == 0:
                raise RuntimeError("as asked")
            await asyncio.sleep(0)
        if self.mode != "uncounted":
            factor = 100 if self.mode == "greedy" else 1
            counts = {"prompt_tokens": factor * prompt, "completion_tokens": factor * output}
            yield event({"choices": [], "usage": counts})
        yield b"data: [DONE]\n\n"
