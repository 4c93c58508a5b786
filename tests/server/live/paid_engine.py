"""An engine that counts what it is sent as a bill would, and misbehaves as it is told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.gateway.stub_engine import event
from tests.patience import PATIENCE_S
from tests.server_thread import FakeServer


class PaidEngine(FakeServer):
    """``with PaidEngine() as engine: ... engine.bill``.

    ``mode`` is what it does from now on:

    - ``well``: answers with as many tokens as were asked for.
    - ``garbage``: streams what is no stream.
    - ``uncounted``: tells no usage.
    - ``endless``: streams without an end.
    - ``greedy``: says that it counted three times as many tokens; ``absurd``, a million times.
    - ``reasoning``: refuses ``max_tokens`` and a temperature, and says nothing but that it ended.
    - a number: answers with that HTTP status.
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
        routes = [
            Route("/v1/models", self._models),
            Route("/v1/completions", self._answer, methods=["POST"]),
            Route("/v1/chat/completions", self._answer, methods=["POST"]),
        ]
        super().__init__(routes)

    async def _models(self, request: Request) -> Response:
        return JSONResponse({"data": [{"id": "paid", "max_model_len": 4096}]})

    async def _answer(self, request: Request) -> Response:
        asked = json.loads(await request.body())
        self.requests.append(asked)
        chat = "messages" in asked
        prompt = asked["messages"][0]["content"] if chat else asked["prompt"]
        # Words of letters: the dearest tokenizer has a token for each byte.
        if self.mode.isdecimal():
            return JSONResponse({"error": "no"}, int(self.mode))
        wrong = [name for name in ("max_tokens", "temperature") if name in asked]
        if self.mode == "reasoning" and wrong:
            return JSONResponse({"error": f"Unsupported parameter: '{wrong[0]}'"}, 400)
        tokens = len(prompt)
        output = asked["max_completion_tokens" if "max_tokens" not in asked else "max_tokens"]
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
        token = {"delta": {"content": "x"}} if chat else {"text": "x"}
        for place in range(10**9 if self.mode == "endless" else output):
            finish = "length" if place + 1 == output else None
            if self.mode != "reasoning":
                yield event({"choices": [token | {"finish_reason": finish}]})
            if self.mode == "cut" and place == 0:
                raise RuntimeError("as asked")
            await asyncio.sleep(0)
        if self.mode != "uncounted":
            if self.mode == "reasoning":
                yield event({"choices": [{"delta": {}, "finish_reason": "length"}]})
            factor = {"greedy": 3, "absurd": 10**6}.get(self.mode, 1)
            counts = {"prompt_tokens": factor * prompt, "completion_tokens": factor * output}
            yield event({"choices": [], "usage": counts})
        yield b"data: [DONE]\n\n"
