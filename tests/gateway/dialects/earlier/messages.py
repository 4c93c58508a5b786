"""Cases of Anthropic's messages; what the columns are says ``cases.py``."""

from __future__ import annotations

from typing import Any

from tests.gateway.dialects.earlier.parts import (
    ALL_OF_IT,
    ANTHROPIC_TOOL,
    ANTHROPIC_USE,
    BOTH,
    CACHED,
    CALLS_ONE,
    LOOKUP,
    MESSAGES,
    NAMED,
    PNG,
    SCHEMA,
    SPOKEN,
    TEN_FOUR,
    TEXT_AND_CALL,
    THINK_AND_CALL,
    THINKS,
    THOUGHT,
    USED,
    block,
    call,
    called,
    document,
    image,
    result,
    shown,
    text,
    tool,
    user,
)

REQUESTS: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    (
        "test_anthropic_request_maps_all_fields_and_image_input_to_chat",
        MESSAGES,
        {
            "system": "x-anthropic-billing-header: cch=unstable;\nBe direct.",
            "messages": [
                {"role": "user", "content": [text("Count."), {"type": "image", "source": PNG}]},
                {
                    "role": "assistant",
                    "content": [text("I call."), {**ANTHROPIC_USE, "id": "t1", "input": {"a": 2}}],
                },
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "tool_result",
                            "tool_use_id": "t1",
                            "content": [text("ok"), {"type": "image", "source": PNG}],
                        },
                        text("Thanks."),
                    ],
                },
            ],
            "max_tokens": 128,
            "temperature": 0.2,
            "top_p": 0.9,
            "top_k": 40,
            "stop_sequences": ["END"],
            "stream": True,
            "tools": [{**ANTHROPIC_TOOL, "description": "Look up"}],
            "tool_choice": {"type": "tool", "name": "lookup"},
        },
        {
            "messages": [
                {"role": "system", "content": "Be direct."},
                user([text("Count."), image()]),
                called(call("t1", "lookup", '{"a":2}'), content="I call."),
                result("t1", "ok"),
                user([image()]),
                user("Thanks."),
            ],
            "max_completion_tokens": 128,
            "temperature": 0.2,
            "top_p": 0.9,
            "top_k": 40,
            "stop": ["END"],
            "stream": True,
            "tools": [tool("lookup", description="Look up", parameters=SCHEMA)],
            "tool_choice": NAMED,
        },
    ),
    (
        "test_anthropic_request_maps_multi_turn_reasoning_and_parallel_tools",
        MESSAGES,
        {
            "messages": [
                user("plan"),
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "two lookups", "signature": "foreign"},
                        {**ANTHROPIC_USE, "id": "call-a", "input": {"q": "a"}},
                        {**ANTHROPIC_USE, "id": "call-b", "input": {"q": "b"}},
                    ],
                },
                user(
                    [
                        {"type": "tool_result", "tool_use_id": "call-a", "content": "A"},
                        {"type": "tool_result", "tool_use_id": "call-b", "content": [text("B")]},
                    ]
                ),
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "combine", "signature": "foreign"},
                        text("A and B"),
                    ],
                },
            ],
            "max_tokens": 256,
        },
        {"messages": BOTH},
    ),
    *(
        (
            "test_anthropic_tool_choice_variants_map_to_openai",
            MESSAGES,
            shown(tools=[ANTHROPIC_TOOL], tool_choice=given),
            {"tool_choice": expected},
        )
        for given, expected in (
            ({"type": "auto"}, "auto"),
            ({"type": "any"}, "required"),
            ({"type": "none"}, "none"),
            ({"type": "tool", "name": "lookup"}, NAMED),
        )
    ),
    (
        "test_anthropic_request_handles_url_image_source",
        MESSAGES,
        shown(
            text("What?"),
            {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}},
        ),
        {"messages": [user([text("What?"), image("https://example.com/a.png")])]},
    ),
    (
        "test_anthropic_request_handles_document_text_source",
        MESSAGES,
        shown(
            document({"type": "text", "media_type": "text/plain", "data": "Body."}), text("Sum up.")
        ),
        {"messages": [user("Body.\nSum up.")]},
    ),
    (
        "test_anthropic_request_handles_document_content_source",
        MESSAGES,
        shown(document({"type": "content", "content": [text("Page 1"), text("Page 2")]})),
        {"messages": [user("Page 1\nPage 2")]},
    ),
    (
        "test_anthropic_tool_result_is_error_marks_content",
        MESSAGES,
        shown(
            {"type": "tool_result", "tool_use_id": "t1", "content": "Denied", "is_error": True},
        ),
        {"messages": [result("t1", "Error: Denied")]},
    ),
    (
        "test_anthropic_request_drops_server_side_tools",
        MESSAGES,
        shown(
            tools=[
                ANTHROPIC_TOOL,
                {"type": "web_search_20250305", "name": "web_search"},
                {"type": "code_execution_20250522", "name": "code_execution"},
            ]
        ),
        {"tools": [LOOKUP]},
    ),
    (
        "test_anthropic_request_system_list_with_cache_control_annotations",
        MESSAGES,
        shown(system=[{**text("Careful."), "cache_control": {"type": "ephemeral"}}, text("Cite.")]),
        {"messages": [{"role": "system", "content": "Careful.\nCite."}, user("hi")]},
    ),
    (
        "test_anthropic_request_recovers_reasoning_from_thinking_block",
        MESSAGES,
        {
            "messages": [
                user("compute"),
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": THOUGHT, "signature": "foreign"},
                        text(SPOKEN),
                    ],
                },
                user("next"),
            ],
            "max_tokens": 100,
        },
        {
            "messages": [
                user("compute"),
                {"role": "assistant", "content": SPOKEN, "reasoning_content": THOUGHT},
                user("next"),
            ]
        },
    ),
]

ANSWERS: list[tuple[str, str, dict[str, Any], str, dict[str, Any], dict[str, Any]]] = [
    (
        "test_anthropic_response_maps_openai_content_and_usage_back",
        MESSAGES,
        CALLS_ONE,
        "tool_calls",
        TEN_FOUR,
        {
            "type": "message",
            "role": "assistant",
            "model": "m",
            "stop_reason": "tool_use",
            "usage": {"input_tokens": 10, "output_tokens": 4},
            "content": [{"type": "text", "text": "Two."}, USED],
        },
    ),
    (
        "test_anthropic_response_preserves_cached_usage_tokens",
        MESSAGES,
        {"content": "Done"},
        "stop",
        CACHED,
        {"usage": {"input_tokens": 6, "output_tokens": 4, "cache_read_input_tokens": 4}},
    ),
    (
        "test_anthropic_response_skips_empty_openai_content_with_tool_call",
        MESSAGES,
        {**CALLS_ONE, "content": []},
        "tool_calls",
        TEN_FOUR,
        {"content": [USED]},
    ),
    (
        "test_anthropic_response_maps_extended_stop_reasons",
        MESSAGES,
        {"content": "blocked"},
        "content_filter",
        TEN_FOUR,
        {"stop_reason": "refusal"},
    ),
    *(
        (
            case,
            MESSAGES,
            {**THINKS, **more},
            "stop",
            TEN_FOUR,
            {"content": [{"type": "thinking", "thinking": THOUGHT, "signature": ...}, last]},
        )
        for case, more, last in (
            ("test_anthropic_response_emits_thinking_block_before_text", {}, text(SPOKEN)),
            (
                "test_anthropic_response_emits_thinking_with_tool_use",
                {**CALLS_ONE, "content": None},
                USED,
            ),
        )
    ),
]

STREAMS: list[tuple[str, str, list[dict[str, Any]], str, list[dict[str, Any]]]] = [
    (
        "test_anthropic_stream_state_emits_ordered_text_tool_and_usage_events",
        MESSAGES,
        TEXT_AND_CALL,
        "tool_calls",
        [
            {"type": "message_start"},
            block("start", 0),
            block("delta", 0, delta={"type": "text_delta", "text": "Hi"}),
            block("stop", 0),
            block("start", 1, content_block={"type": "tool_use", "id": "c1", "name": "lookup"}),
            block("delta", 1, delta={"type": "input_json_delta", "partial_json": '{"q"'}),
            block("delta", 1, delta={"type": "input_json_delta", "partial_json": ': "x"}'}),
            block("stop", 1),
            {
                "type": "message_delta",
                "delta": {"stop_reason": "tool_use", "stop_sequence": None},
                "usage": {"output_tokens": 4},
            },
            {"type": "message_stop"},
        ],
    ),
    (
        "test_anthropic_stream_state_emits_parallel_tool_use_blocks",
        MESSAGES,
        [
            {"tool_calls": [{"index": 0, **call("t0", "lookup", '{"q":"a"}')}]},
            {"tool_calls": [{"index": 1, **call("t1", "other", '{"q":"b"}')}]},
        ],
        "tool_calls",
        [
            block("start", 0, content_block={"id": "t0", "name": "lookup"}),
            block("delta", 0, delta={"partial_json": '{"q":"a"}'}),
            block("stop", 0),
            block("start", 1, content_block={"id": "t1", "name": "other"}),
            block("delta", 1, delta={"partial_json": '{"q":"b"}'}),
            block("stop", 1),
            {"type": "message_delta", "delta": {"stop_reason": "tool_use"}},
            {"type": "message_stop"},
        ],
    ),
    (
        "test_anthropic_stream_state_closes_thinking_before_tool_use",
        MESSAGES,
        THINK_AND_CALL,
        "tool_calls",
        [
            block("start", 0),
            block("delta", 0, delta={"type": "thinking_delta"}),
            block("delta", 0, delta={"type": "signature_delta"}),
            block("stop", 0),
            block("start", 1),
        ],
    ),
    (
        "test_anthropic_streaming_emits_thinking_signature",
        MESSAGES,
        ALL_OF_IT,
        "stop",
        [
            block("delta", 0, delta={"type": "thinking_delta", "thinking": THOUGHT}),
            block("delta", 0, delta={"type": "signature_delta"}),
            block("delta", 1, delta={"type": "text_delta", "text": SPOKEN}),
        ],
    ),
]
