"""Cases of OpenAI's chat completions; what the columns are says ``cases.py``."""

from __future__ import annotations

from typing import Any

from tests.gateway.dialects.earlier.parts import (
    AS_GIVEN,
    BOTH,
    CHAT,
    NAMED,
    SCHEMA,
    TEN_FOUR,
    THINKS,
    image,
    text,
    tool,
    user,
)

REQUESTS: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    (
        "test_openai_chat_request_preserves_fields_and_image_content",
        CHAT,
        {
            "messages": [
                {"role": "developer", "content": "Be short."},
                {"role": "system", "content": "Be precise."},
                user([text("Count."), image(detail="low")]),
            ],
            **AS_GIVEN,
        },
        {
            "model": "m",
            "messages": [
                {"role": "system", "content": "Be short.\n\nBe precise."},
                user([text("Count."), image(detail="low")]),
            ],
            **AS_GIVEN,
        },
    ),
    (
        "test_openai_chat_preserves_tool_turns_and_reasoning_content",
        CHAT,
        {
            "messages": [{"role": "system", "content": "Use tools."}, *BOTH[:4], user("sum up")],
            "tools": [tool("lookup", parameters=SCHEMA, strict=True)],
            "tool_choice": NAMED,
        },
        {
            "messages": [{"role": "system", "content": "Use tools."}, *BOTH[:4], user("sum up")],
            "tools": [tool("lookup", parameters=SCHEMA, strict=True)],
            "tool_choice": NAMED,
        },
    ),
    (
        "test_openai_chat_preserves_reasoning_content_on_request",
        CHAT,
        {"messages": [user("plan"), BOTH[-1], user("explain")]},
        {"messages": [user("plan"), BOTH[-1], user("explain")]},
    ),
]

ANSWERS: list[tuple[str, str, dict[str, Any], str, dict[str, Any], dict[str, Any]]] = [
    (
        "test_openai_chat_response_and_stream_preserve_requested_model",
        CHAT,
        {"content": "Done"},
        "stop",
        TEN_FOUR,
        {
            "model": "m",
            "choices": [{"message": {"content": "Done"}, "finish_reason": "stop"}],
            "usage": TEN_FOUR,
        },
    ),
    (
        "test_openai_chat_preserves_reasoning_content_on_response",
        CHAT,
        THINKS,
        "stop",
        TEN_FOUR,
        {"choices": [{"message": THINKS}]},
    ),
]

STREAMS: list[tuple[str, str, list[dict[str, Any]], str, list[dict[str, Any]]]] = [
    (
        "test_openai_chat_response_and_stream_preserve_requested_model",
        CHAT,
        [{"content": "D"}],
        "stop",
        [{"model": "m", "choices": [{"delta": {"content": "D"}}]}],
    ),
]
