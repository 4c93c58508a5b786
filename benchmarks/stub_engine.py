"""An engine that computes nothing: whole answers at once, streams at a pace.

``uvicorn benchmarks.stub_engine:app``. A request's ``max_tokens`` says how many events it gets, its
``every_s`` how long before each.
"""

from __future__ import annotations

import asyncio

import orjson
from starlette.types import Receive, Scope, Send

_EVENT = (
    b'data: {"id":"cmpl-0","object":"text_completion","created":1700000000,"model":"stub",'
    b'"choices":[{"index":0,"text":" token","logprobs":null,"finish_reason":null}]}\n\n'
)
_WHOLE = (
    b'{"id":"cmpl-0","object":"text_completion","model":"stub","choices":[{"index":0,"text":"%b",'
    b'"finish_reason":"length"}],"usage":{"prompt_tokens":8,"completion_tokens":%d}}'
)
_USAGE = (
    b'data: {"id":"cmpl-0","object":"text_completion","choices":[],'
    b'"usage":{"prompt_tokens":8,"completion_tokens":%d}}\n\n'
)
_DONE = b"data: [DONE]\n\n"


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers every path alike."""
    body = b""
    more = True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    asked = orjson.loads(body) if body else {}
    tokens = asked.get("max_tokens", 16)
    streamed = asked.get("stream", False)
    kind = b"text/event-stream" if streamed else b"application/json"
    headers = [(b"content-type", kind)]
    if not streamed:
        whole = _WHOLE % (b" token" * tokens, tokens)
        headers.append((b"content-length", str(len(whole)).encode()))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": whole})
        return
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for _ in range(tokens):
        await asyncio.sleep(asked.get("every_s", 0.0))
        await send({"type": "http.response.body", "body": _EVENT, "more_body": True})
    last = _DONE
    if asked.get("stream_options", {}).get("include_usage"):
        last = _USAGE % tokens + _DONE
    await send({"type": "http.response.body", "body": last})
