"""Requests of a session that count the tokens of a prompt: the engine's ``/tokenize`` is asked.

They are neither queued nor recorded: no token is sampled.
"""

from __future__ import annotations

import orjson

from jaxserve.gateway.dialects import request_fields as reading
from jaxserve.gateway.dialects.canonical import Chat
from jaxserve.gateway.dialects.engine_reader import engine_problem
from jaxserve.gateway.engines.specs import EngineSpec
from jaxserve.gateway.http.errors import Problem

PATH = "/tokenize"
_RENDERED = (
    "messages",
    "tools",
    "chat_template",
    "chat_template_kwargs",
    "mm_processor_kwargs",
    "add_generation_prompt",
    "continue_final_message",
)
"""Fields of a chat request that change its prompt, and that vLLM's route takes."""


def question(chat: Chat, spec: EngineSpec) -> bytes:
    """What the engine is sent."""
    request = chat.request
    asked = {name: request[name] for name in _RENDERED if name in request}
    return orjson.dumps({"model": spec.model or chat.model, **asked})


def count(spec: EngineSpec, status: int, body: bytes) -> int:
    """What the engine counted.

    Raises:
      Problem: it does not count, or refused to.
    """
    if status in (404, 405) or (status >= 400 and spec.kind != "vllm"):
        # SGLang's route takes a text in place of messages.
        raise Problem(
            501, "counting_not_supported", f"engine {spec.name} does not count tokens of a chat"
        )
    if status != 200:
        raise engine_problem(status, body, spec.name)
    counted = reading.count((reading.object_in(body) or {}).get("count"))
    if counted is None:
        raise Problem(502, "engine_garbage", f"engine {spec.name} answered without a count")
    return counted
