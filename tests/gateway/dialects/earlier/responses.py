"""Cases of OpenAI's responses; what the columns are says ``cases.py``."""

from __future__ import annotations

from typing import Any

from jaxserve.gateway.dialects.sealed_reasoning import sealed
from tests.gateway.dialects.earlier.parts import (
    ALL_OF_IT,
    CALLS,
    CALLS_ONE,
    COUNTED,
    HELLO,
    LAST_ITEM,
    LOOKUP,
    NAMED,
    RESPONSES,
    RESPONSES_CALL,
    RESPONSES_CALLED,
    RESPONSES_OUTPUT,
    RESPONSES_SAID,
    RESPONSES_TOOL,
    SCHEMA,
    SPOKEN,
    TEN_FOUR,
    TEXT_AND_CALL,
    THINK_AND_CALL,
    THINKING,
    THINKS,
    THOUGHT,
    URL,
    call,
    called,
    image,
    result,
    summary,
    text,
    tool,
    user,
)

REQUESTS: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    (
        "test_responses_request_maps_all_fields_and_image_input_to_chat",
        RESPONSES,
        {
            "instructions": "You are an agent.",
            "input": [
                {
                    "type": "message",
                    "role": "user",
                    "content": [
                        {"type": "input_text", "text": "Count."},
                        {"type": "input_image", "image_url": URL, "detail": "low"},
                    ],
                },
                {**RESPONSES_CALL, "call_id": "c1", "arguments": '{"q": "a"}'},
                {**RESPONSES_OUTPUT, "call_id": "c1", "output": "failed"},
                {"type": "input_text", "text": "Again."},
                {"type": "input_image", "image_url": URL},
            ],
            "max_output_tokens": 128,
            "temperature": 0.2,
            "top_p": 0.9,
            "parallel_tool_calls": False,
            "stream": True,
            "text": {
                "format": {"type": "json_schema", "name": "n", "schema": COUNTED, "strict": True}
            },
            "tool_choice": "auto",
            "tools": [{"name": "lookup", "description": "L", "parameters": SCHEMA, "strict": True}],
        },
        {
            "messages": [
                {"role": "system", "content": "You are an agent."},
                user([text("Count."), image(detail="low")]),
                called(call("c1", "lookup", '{"q": "a"}')),
                result("c1", "failed"),
                user([text("Again."), image()]),
            ],
            "max_completion_tokens": 128,
            "temperature": 0.2,
            "top_p": 0.9,
            "parallel_tool_calls": False,
            "stream": True,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "n", "schema": COUNTED, "strict": True},
            },
            "tools": [tool("lookup", description="L", parameters=SCHEMA, strict=True)],
            "tool_choice": "auto",
        },
    ),
    (
        "test_responses_request_moves_image_function_output_to_user_message",
        RESPONSES,
        {
            "input": [
                {"type": "message", "role": "user", "content": "Look."},
                {**RESPONSES_CALL, "call_id": "c1", "arguments": "{}"},
                {
                    **RESPONSES_OUTPUT,
                    "call_id": "c1",
                    "output": {
                        "body": [{"type": "input_image", "image_url": URL, "detail": "high"}],
                        "success": True,
                    },
                },
            ]
        },
        {
            "messages": [
                user("Look."),
                called(call("c1", "lookup", "{}")),
                result("c1", ""),
                user([image(detail="high")]),
            ]
        },
    ),
    (
        "test_responses_request_drops_tool_choice_when_tools_are_empty",
        RESPONSES,
        {"input": "hello", "tool_choice": "auto", "tools": []},
        {"messages": [user("hello")], "tool_choice": None, "tools": None},
    ),
    (
        "test_responses_request_converts_nested_function_schema_and_preserves_strict",
        RESPONSES,
        {
            "input": "use a tool",
            "tools": [
                {
                    "type": "function",
                    "name": "lookup",
                    "description": "L",
                    "input_schema": {"jsonSchema": COUNTED},
                    "strict": True,
                },
                {"type": "web_search"},
            ],
            "tool_choice": "required",
        },
        {
            "tools": [tool("lookup", description="L", parameters=COUNTED, strict=True)],
            "tool_choice": "required",
        },
    ),
    (
        "test_responses_request_normalizes_flat_function_tool_choice",
        RESPONSES,
        {
            "input": "use a tool",
            "tools": [{"type": "function", "name": "lookup", "parameters": {}}],
            "tool_choice": {"type": "function", "name": "lookup"},
        },
        {"tool_choice": NAMED},
    ),
    (
        "test_responses_text_format_text_is_omitted_for_sglang",
        RESPONSES,
        {"input": "plain", "text": {"format": {"type": "text"}}},
        {"response_format": None},
    ),
    (
        "test_responses_reasoning_effort_none_does_not_enable_thinking",
        RESPONSES,
        {"input": "answer", "reasoning": {"effort": "none"}},
        {"reasoning_effort": "none", "chat_template_kwargs": None},
    ),
    (
        "test_responses_request_recovers_reasoning_from_encrypted_content_only",
        RESPONSES,
        {
            "input": [
                {"type": "message", "role": "user", "content": "go on"},
                {
                    "type": "reasoning",
                    "id": "rs_1",
                    "summary": [],
                    "content": [],
                    "encrypted_content": sealed(THOUGHT),
                },
                {"type": "message", "role": "assistant", "content": "ok"},
            ]
        },
        {
            "messages": [
                user("go on"),
                {"role": "assistant", "content": "ok", "reasoning_content": THOUGHT},
            ]
        },
    ),
    (
        "test_responses_request_keeps_reasoning_with_each_tool_turn",
        RESPONSES,
        {
            "input": [
                {"type": "message", "role": "user", "content": "two steps"},
                summary("first"),
                {**RESPONSES_CALL, "call_id": "a", "arguments": '{"step": 1}'},
                {**RESPONSES_OUTPUT, "call_id": "a", "output": "one"},
                summary("second"),
                {**RESPONSES_CALL, "call_id": "b", "arguments": '{"step": 2}'},
                {**RESPONSES_OUTPUT, "call_id": "b", "output": "two"},
                {
                    "type": "message",
                    "role": "assistant",
                    "content": [{"type": "output_text", "text": "done"}],
                },
            ]
        },
        {
            "messages": [
                user("two steps"),
                called(call("a", "lookup", '{"step": 1}'), reasoning_content="first"),
                result("a", "one"),
                called(call("b", "lookup", '{"step": 2}'), reasoning_content="second"),
                result("b", "two"),
                {"role": "assistant", "content": "done"},
            ]
        },
    ),
    (
        "test_responses_request_groups_parallel_function_calls_and_outputs",
        RESPONSES,
        {
            "input": [
                {"type": "message", "role": "user", "content": "parallel"},
                {**RESPONSES_CALL, "call_id": "call-a", "arguments": '{"q":"a"}'},
                {**RESPONSES_CALL, "call_id": "call-b", "arguments": '{"q":"b"}'},
                {**RESPONSES_OUTPUT, "call_id": "call-a", "output": {"body": "A"}},
                {
                    **RESPONSES_OUTPUT,
                    "call_id": "call-b",
                    "output": {"content": [{"type": "output_text", "text": "B"}]},
                },
            ]
        },
        {
            "messages": [
                user("parallel"),
                called(*CALLS),
                result("call-a", "A"),
                result("call-b", "B"),
            ]
        },
    ),
    (
        "test_responses_request_drops_server_side_tools",
        RESPONSES,
        {
            "input": "search",
            "tools": [
                RESPONSES_TOOL,
                {"type": "web_search"},
                {"type": "file_search"},
                {"type": "mcp", "server_url": "https://example.com"},
                {"type": "code_interpreter"},
                {"type": "image_generation"},
            ],
            "tool_choice": "auto",
        },
        {"tools": [LOOKUP], "tool_choice": "auto"},
    ),
    (
        "test_responses_request_recovers_reasoning_attached_to_assistant",
        RESPONSES,
        {
            "input": [
                {"type": "message", "role": "user", "content": "compute"},
                {
                    **summary(THOUGHT),
                    "content": [{"type": "reasoning_text", "text": THOUGHT}],
                    "encrypted_content": "polar:LWE=",
                },
                {"type": "message", "role": "assistant", "content": SPOKEN},
                {"type": "message", "role": "user", "content": "explain"},
            ]
        },
        {
            "messages": [
                user("compute"),
                {"role": "assistant", "content": SPOKEN, "reasoning_content": THOUGHT},
                user("explain"),
            ]
        },
    ),
    (
        "test_responses_request_attaches_reasoning_to_function_call",
        RESPONSES,
        {
            "input": [
                {"type": "message", "role": "user", "content": "use tool"},
                summary(THOUGHT),
                {**RESPONSES_CALL, "call_id": "c1", "arguments": '{"x": 2}'},
            ]
        },
        {
            "messages": [
                user("use tool"),
                called(call("c1", "lookup", '{"x": 2}'), reasoning_content=THOUGHT),
            ]
        },
    ),
]

ANSWERS: list[tuple[str, str, dict[str, Any], str, dict[str, Any], dict[str, Any]]] = [
    (
        "test_responses_response_maps_chat_result_back_to_response_shape",
        RESPONSES,
        CALLS_ONE,
        "tool_calls",
        TEN_FOUR,
        {
            "object": "response",
            "status": "completed",
            "model": "m",
            "output": [RESPONSES_SAID, {**RESPONSES_CALLED, "name": "lookup"}],
            "usage": {"input_tokens": 10, "output_tokens": 4, "total_tokens": 14},
        },
    ),
    (
        "test_responses_response_emits_reasoning_item_first",
        RESPONSES,
        THINKS,
        "stop",
        TEN_FOUR,
        {
            "output": [
                {
                    "type": "reasoning",
                    "content": [{"text": THOUGHT}],
                    "encrypted_content": ...,
                },
                {"type": "message"},
            ]
        },
    ),
]

STREAMS: list[tuple[str, str, list[dict[str, Any]], str, list[dict[str, Any]]]] = [
    (
        "test_responses_stream_state_emits_response_events_for_text_and_tools",
        RESPONSES,
        TEXT_AND_CALL,
        "tool_calls",
        [
            {"type": "response.created"},
            {"type": "response.output_text.delta", "delta": "Hi"},
            {"type": "response.function_call_arguments.delta", "delta": '{"q"'},
            {
                "type": "response.completed",
                "response": {
                    "model": "m",
                    "output": [{"content": [{"text": "Hi"}]}, RESPONSES_CALLED],
                },
            },
        ],
    ),
    (
        "test_responses_stream_state_emits_text_only_response",
        RESPONSES,
        HELLO,
        "stop",
        [
            {"type": "response.created"},
            {"type": "response.output_item.added", "item": {"type": "message"}},
            {"type": LAST_ITEM},
            {
                "type": "response.completed",
                "response": {
                    "output": [{"type": "message", "content": [{"text": "Hello."}]}],
                    "usage": {"output_tokens": 4},
                },
            },
        ],
    ),
    (
        "test_responses_stream_state_emits_reasoning_only_response",
        RESPONSES,
        THINKING,
        "stop",
        [
            {"type": "response.output_item.added", "item": {"type": "reasoning"}},
            {"type": "response.reasoning_text.delta", "delta": "Think "},
            {"type": "response.reasoning_text.done", "text": "Think harder."},
            {"type": LAST_ITEM},
            {
                "type": "response.completed",
                "response": {
                    "output": [
                        {
                            "type": "reasoning",
                            "content": [{"text": "Think harder."}],
                            "encrypted_content": ...,
                        }
                    ]
                },
            },
        ],
    ),
    (
        "test_responses_stream_state_orders_reasoning_before_tool_without_text",
        RESPONSES,
        THINK_AND_CALL,
        "tool_calls",
        [
            {"type": LAST_ITEM, "output_index": 0, "item": {"type": "reasoning"}},
            {"type": LAST_ITEM, "output_index": 1, "item": {"type": "function_call"}},
            {
                "type": "response.completed",
                "response": {"output": [{"type": "reasoning"}, {"type": "function_call"}]},
            },
        ],
    ),
    (
        "test_responses_streaming_emits_reasoning_item_events",
        RESPONSES,
        ALL_OF_IT,
        "stop",
        [
            {"type": "response.output_item.added", "item": {"type": "reasoning"}},
            {"type": "response.reasoning_text.delta", "delta": THOUGHT},
            {"type": "response.reasoning_text.done", "text": THOUGHT},
            {"type": "response.output_item.added", "item": {"type": "message"}},
            {
                "type": "response.completed",
                "response": {"output": [{"type": "reasoning"}, {"type": "message"}]},
            },
        ],
    ),
]
