"""A chat engine that computes nothing and tells token ids as vLLM does; it fails as often as asked.

``uvicorn benchmarks.chat_engine:app``. A token is a character of a prompt, or one of an answer. The
variable ``CHAT_ENGINE_FAULTS`` is the share of requests that end in 429, 500, garbage, half an
answer, or an answer with a log-probability of -9999, which vLLM writes for a missing one. A
streamed request with ``stamps`` gets so many events, one every ``every_s``, each of which says when
it was sent, in s of the machine's monotonic clock.
"""

from __future__ import annotations

import asyncio
import os
import random
import time

import orjson
from starlette.types import Receive, Scope, Send

_FAULTS = float(os.environ.get("CHAT_ENGINE_FAULTS", "0"))
_RANDOM = random.Random(os.getpid())
_KINDS = ("refused", "failed", "garbage", "half", "filler")
_TEXT = "All is well with it."
_IDS = [ord(letter) for letter in _TEXT]
_LOGPROB, _FILLER = -0.5, -9999.0
_FILLED = 3
"""Place of the token without a log-probability."""


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers every path alike."""
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    asked = orjson.loads(body) if body else {}
    fault = _RANDOM.choice(_KINDS) if _RANDOM.random() < _FAULTS else ""
    if fault in ("refused", "failed"):
        status = 429 if fault == "refused" else 500
        await _whole(send, status, {"error": {"message": f"{fault}, as asked", "code": status}})
    elif fault == "garbage":
        await _whole(send, 200, {"what": "is this"})
    elif asked.get("stream"):
        await _stream(send, asked, fault)
    elif fault == "half":
        head = [(b"content-type", b"application/json"), (b"content-length", b"1000")]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await send({"type": "http.response.body", "body": b'{"id": "x', "more_body": True})
        raise RuntimeError("the connection breaks, as asked")
    else:
        await _whole(send, 200, _answer(_prompt(asked), fault))


def _prompt(asked: dict) -> list[int]:
    """A template whose prompts extend each other turn by turn."""
    found = []
    for message in asked.get("messages", ()):
        found += [1, *map(ord, str(message.get("content") or ""))]
    return [*found, 1]


def _logprob(place: int, fault: str) -> float:
    return _FILLER if fault == "filler" and place == _FILLED else _LOGPROB


def _answer(prompt: list[int], fault: str) -> dict:
    logprobs = [
        {"token": letter, "logprob": _logprob(place, fault)} for place, letter in enumerate(_TEXT)
    ]
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": _TEXT},
        "logprobs": {"content": logprobs},
        "finish_reason": "stop",
        "token_ids": _IDS,
    }
    usage = {"prompt_tokens": len(prompt), "completion_tokens": len(_IDS)}
    return {
        "id": "chatcmpl-0",
        "object": "chat.completion",
        "created": 1,
        "model": "stub",
        "choices": [choice],
        "usage": {**usage, "total_tokens": sum(usage.values())},
        "prompt_token_ids": prompt,
    }


async def _whole(send: Send, status: int, said: dict) -> None:
    body = orjson.dumps(said)
    head = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body})


async def _stream(send: Send, asked: dict, fault: str) -> None:
    prompt, stamps = _prompt(asked), asked.get("stamps")
    head = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    last = (stamps or len(_TEXT)) - 1
    for place in range(last + 1):
        await asyncio.sleep(asked.get("every_s", 0.0))
        letter = f"{time.monotonic():.6f}" if stamps else _TEXT[place]
        if fault == "half" and place > last // 2:
            raise RuntimeError("the connection breaks, as asked")
        choice = {
            "index": 0,
            "delta": {"role": "assistant", "content": letter},
            "logprobs": {"content": [{"token": letter, "logprob": _logprob(place, fault)}]},
            "finish_reason": "stop" if place == last else None,
            "token_ids": [place if stamps else _IDS[place]],
        }
        event = {
            "id": "chatcmpl-0",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "stub",
            "choices": [choice],
            **({} if place else {"prompt_token_ids": prompt}),
        }
        body = b"data: %b\n\n" % orjson.dumps(event)
        await send({"type": "http.response.body", "body": body, "more_body": True})
    await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})
