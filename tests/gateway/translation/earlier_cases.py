"""What the earlier project's tests of dialects feed, in words of our own, and what becomes of it.

The page ``docs/rollout_cases.md`` says of each case whether ours holds it; a test checks that every
case which it calls held stands here, under the name that it has there.
"""

from __future__ import annotations

from typing import Any

from jaxserve.gateway.translation.policy import TemplatePolicy
from jaxserve.gateway.translation.sealed import sealed

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
GOOGLE = "/v1beta/models/m:generateContent"
DATA = "abc123"
URL = f"data:image/png;base64,{DATA}"
SCHEMA = {"type": "object"}
COUNTED = {"type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"]}
THOUGHT, SPOKEN = "one and one are two", "It is 2."
POLICY = TemplatePolicy(tool_images="follow")
"""Polar moves images in results behind them, which is an option here."""


def text(words: str) -> dict[str, Any]:
    """A part of chat."""
    return {"type": "text", "text": words}


def image(url: str = URL, **more: Any) -> dict[str, Any]:
    """A part of chat."""
    return {"type": "image_url", "image_url": {"url": url, **more}}


def call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    """A call in chat."""
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def called(*calls: dict[str, Any], content: str | None = None, **more: Any) -> dict[str, Any]:
    """The assistant's message in chat."""
    return {"role": "assistant", "content": content, "tool_calls": [*calls], **more}


def tool(name: str, **more: Any) -> dict[str, Any]:
    """A function in chat."""
    return {"type": "function", "function": {"name": name, **more}}


def user(content: Any) -> dict[str, Any]:
    """A message in chat."""
    return {"role": "user", "content": content}


def result(call_id: str, content: Any) -> dict[str, Any]:
    """A message in chat."""
    return {"role": "tool", "tool_call_id": call_id, "content": content}


NAMED = {"type": "function", "function": {"name": "lookup"}}
LOOKUP = tool("lookup", parameters=SCHEMA)
AS_GIVEN: dict[str, Any] = {
    "max_tokens": 64,
    "temperature": 0.2,
    "top_p": 0.9,
    "stream": True,
    "stop": ["END"],
    "tools": [LOOKUP],
    "tool_choice": "auto",
    "chat_template_kwargs": {"foo": "bar"},
}
"""Fields of chat that go on as they came."""
CALLS = call("call-a", "lookup", '{"q":"a"}'), call("call-b", "lookup", '{"q":"b"}')
PNG = {"type": "base64", "media_type": "image/png", "data": DATA}
BOTH = [user("plan"), called(*CALLS, reasoning_content="two lookups")]
BOTH += [result("call-a", "A"), result("call-b", "B")]
BOTH += [{"role": "assistant", "content": "A and B", "reasoning_content": "combine"}]

ANTHROPIC_TOOL = {"name": "lookup", "input_schema": SCHEMA}
ANTHROPIC_USE = {"type": "tool_use", "name": "lookup"}
GOOGLE_TOOL = {"functionDeclarations": [{"name": "lookup", "parameters": {"type": "OBJECT"}}]}
RESPONSES_TOOL = {"type": "function", "name": "lookup", "parameters": SCHEMA}
RESPONSES_CALL = {"type": "function_call", "name": "lookup"}
RESPONSES_OUTPUT = {"type": "function_call_output"}


def shown(*blocks: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A request to Anthropic."""
    return {"messages": [{"role": "user", "content": [*blocks] or "hi"}], "max_tokens": 16, **more}


def document(source: dict[str, Any]) -> dict[str, Any]:
    """A block."""
    return {"type": "document", "source": source}


def function(part: str, name: str, **more: Any) -> dict[str, Any]:
    """A part of Google's."""
    return {part: {"name": name, **more}}


def thinks(words: str) -> dict[str, Any]:
    """A part of Google's, with a signature that is not ours."""
    return {"thought": True, "text": words, "thoughtSignature": "foreign"}


def summary(words: str) -> dict[str, Any]:
    """An item of Responses."""
    return {"type": "reasoning", "summary": [{"type": "summary_text", "text": words}]}


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
        "test_google_request_maps_all_fields_and_image_input_to_chat",
        GOOGLE,
        {
            "systemInstruction": {"parts": [{"text": "Be direct."}]},
            "generationConfig": {
                "maxOutputTokens": 128,
                "temperature": 0.2,
                "topP": 0.9,
                "topK": 40,
                "candidateCount": 2,
                "presencePenalty": 0.1,
                "frequencyPenalty": 0.2,
                "seed": 123,
                "stopSequences": ["END"],
                "responseMimeType": "application/json",
                "responseSchema": {"type": "OBJECT", "properties": {"count": {"type": "INTEGER"}}},
            },
            "tools": [GOOGLE_TOOL],
            "toolConfig": {
                "functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["lookup"]}
            },
            "contents": [
                {
                    "role": "user",
                    "parts": [
                        {"text": "Count."},
                        {"inlineData": {"mimeType": "image/png", "data": DATA}},
                        {
                            "fileData": {
                                "mimeType": "image/jpeg",
                                "fileUri": "https://example.com/a.jpg",
                            }
                        },
                    ],
                },
                {
                    "role": "model",
                    "parts": [
                        {"text": "I call."},
                        function("functionCall", "lookup", id="c1", args={"a": 2}),
                    ],
                },
                {
                    "role": "user",
                    "parts": [
                        function("functionResponse", "lookup", id="c1", response={"ok": True})
                    ],
                },
            ],
        },
        {
            "messages": [
                {"role": "system", "content": "Be direct."},
                user([text("Count."), image(), image("https://example.com/a.jpg")]),
                called(call("c1", "lookup", '{"a":2}'), content="I call."),
                result("c1", '{"ok":true}'),
            ],
            "max_completion_tokens": 128,
            "temperature": 0.2,
            "top_p": 0.9,
            "top_k": 40,
            "n": 2,
            "presence_penalty": 0.1,
            "frequency_penalty": 0.2,
            "seed": 123,
            "stop": ["END"],
            "response_format": {
                "type": "json_schema",
                "json_schema": {
                    "name": "output",
                    "schema": {"type": "object", "properties": {"count": {"type": "integer"}}},
                },
            },
            "tools": [LOOKUP],
            "tool_choice": NAMED,
        },
    ),
    *(
        (
            "test_google_request_maps_tool_choice_modes",
            GOOGLE,
            {
                "contents": [{"role": "user", "parts": [{"text": "hi"}]}],
                "tools": [
                    {
                        "functionDeclarations": [
                            {"name": "lookup", "parametersJsonSchema": {"type": "object"}}
                        ]
                    }
                ],
                "toolConfig": {"functionCallingConfig": config},
            },
            {"tool_choice": expected, "tools": [LOOKUP]},
        )
        for config, expected in (
            ({"mode": "NONE"}, "none"),
            ({"mode": "ANY"}, "required"),
            ({"mode": "ANY", "allowedFunctionNames": ["lookup"]}, NAMED),
        )
    ),
    (
        "test_google_request_maps_multi_turn_reasoning_and_parallel_tools",
        GOOGLE,
        {
            "contents": [
                {"role": "user", "parts": [{"text": "plan"}]},
                {
                    "role": "model",
                    "parts": [
                        thinks("two lookups"),
                        function("functionCall", "lookup", id="call-a", args={"q": "a"}),
                        function("functionCall", "lookup", id="call-b", args={"q": "b"}),
                    ],
                },
                {
                    "role": "user",
                    "parts": [
                        function("functionResponse", "lookup", id="call-a", response={"text": "A"}),
                        function("functionResponse", "lookup", id="call-b", response={"text": "B"}),
                    ],
                },
                {"role": "model", "parts": [thinks("combine"), {"text": "A and B"}]},
            ]
        },
        {
            "messages": [
                *BOTH[:2],
                result("call-a", '{"text":"A"}'),
                result("call-b", '{"text":"B"}'),
                BOTH[-1],
            ]
        },
    ),
    (
        "test_google_request_drops_server_side_tools",
        GOOGLE,
        {
            "contents": [{"role": "user", "parts": [{"text": "search"}]}],
            "tools": [GOOGLE_TOOL, {"googleSearch": {}}, {"codeExecution": {}}, {"urlContext": {}}],
        },
        {"tools": [LOOKUP]},
    ),
    (
        "test_gemini_request_recovers_reasoning_from_thought_part",
        GOOGLE,
        {
            "contents": [
                {"role": "user", "parts": [{"text": "compute"}]},
                {"role": "model", "parts": [thinks(THOUGHT), {"text": SPOKEN}]},
                {"role": "user", "parts": [{"text": "ok"}]},
            ]
        },
        {
            "messages": [
                user("compute"),
                {"role": "assistant", "content": SPOKEN, "reasoning_content": THOUGHT},
                user("ok"),
            ]
        },
    ),
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
"""Case, path, body without its model, and fields of the engine's request; None for one that is not
there."""

ASKS: dict[str, dict[str, Any]] = {
    CHAT: {"model": "m", "messages": [user("hi")]},
    MESSAGES: {"model": "m", **shown()},
    RESPONSES: {"model": "m", "input": "hi", "include": ["reasoning.encrypted_content"]},
    GOOGLE: {
        "contents": [{"parts": [{"text": "hi"}]}],
        "generationConfig": {"thinkingConfig": {"includeThoughts": True}},
    },
}
THINKS = {"content": SPOKEN, "reasoning_content": THOUGHT}
CALLS_ONE = {"content": "Two.", "tool_calls": [call("c1", "lookup", '{"q": "x"}')]}
TEN_FOUR = {"prompt_tokens": 10, "completion_tokens": 4, "total_tokens": 14}
CACHED = {**TEN_FOUR, "prompt_tokens_details": {"cached_tokens": 4}}
USED = {"type": "tool_use", "id": "c1", "name": "lookup", "input": {"q": "x"}}
GOOGLE_CALLED = {"functionCall": {"id": "c1", "name": "lookup", "args": {"q": "x"}}}
RESPONSES_SAID = {
    "type": "message",
    "status": "completed",
    "content": [{"type": "output_text", "text": "Two."}],
}
RESPONSES_CALLED = {"type": "function_call", "call_id": "c1", "arguments": '{"q": "x"}'}

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
    (
        "test_google_response_maps_openai_content_tools_finish_and_usage_back",
        GOOGLE,
        CALLS_ONE,
        "length",
        TEN_FOUR,
        {
            "candidates": [
                {
                    "content": {"parts": [{"text": "Two."}, GOOGLE_CALLED], "role": "model"},
                    "finishReason": "MAX_TOKENS",
                    "index": 0,
                }
            ],
            "usageMetadata": {
                "promptTokenCount": 10,
                "candidatesTokenCount": 4,
                "totalTokenCount": 14,
            },
        },
    ),
    *(
        (
            "test_google_response_maps_extended_finish_reasons",
            GOOGLE,
            {"content": "x"},
            reason,
            TEN_FOUR,
            {"candidates": [{"finishReason": "STOP"}]},
        )
        for reason in ("stop_sequence", "weird_reason")
    ),
    (
        "test_google_response_preserves_cached_usage_tokens",
        GOOGLE,
        {"content": "x"},
        "stop",
        CACHED,
        {"usageMetadata": {"cachedContentTokenCount": 4}},
    ),
    (
        "test_gemini_response_emits_thought_part_before_text",
        GOOGLE,
        THINKS,
        "stop",
        TEN_FOUR,
        {
            "candidates": [
                {
                    "content": {
                        "parts": [
                            {"thought": True, "text": THOUGHT},
                            {"text": SPOKEN, "thoughtSignature": ...},
                        ]
                    }
                }
            ]
        },
    ),
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
"""Case, path, the engine's message, why it ended, its usage, and what the client reads of it."""

STARTED = {"index": 0, **call("c1", "lookup", '{"q"')}
GROWN = {"index": 0, "function": {"arguments": ': "x"}'}}
WHOLE = {"index": 0, **call("c1", "lookup", '{"q": "x"}')}
TEXT_AND_CALL = [{"content": "Hi"}, {"tool_calls": [STARTED]}, {"tool_calls": [GROWN]}]
HELLO = [{"content": "Hel"}, {"content": "lo."}]
THINKING = [{"reasoning_content": "Think "}, {"reasoning_content": "harder."}]
THINK_AND_CALL = [{"reasoning_content": "Look.", "tool_calls": [WHOLE]}]
ALL_OF_IT = [{"reasoning_content": THOUGHT, "content": SPOKEN}]
LAST_ITEM = "response.output_item.done"


def block(kind: str, index: int, **more: Any) -> dict[str, Any]:
    """An event of Anthropic's."""
    return {"type": f"content_block_{kind}", "index": index, **more}


def parts(*found: dict[str, Any], **more: Any) -> dict[str, Any]:
    """An event of Google's."""
    return {"candidates": [{"content": {"parts": [*found]}, **more}]}


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
    (
        "test_google_stream_state_accumulates_tool_deltas_and_usage",
        GOOGLE,
        TEXT_AND_CALL,
        "tool_calls",
        [
            parts({"text": "Hi"}),
            {
                **parts(GOOGLE_CALLED, finishReason="STOP"),
                "usageMetadata": {
                    "promptTokenCount": 10,
                    "candidatesTokenCount": 4,
                    "totalTokenCount": 14,
                },
            },
        ],
    ),
    (
        "test_google_stream_state_preserves_text_finish_reason",
        GOOGLE,
        [{"content": "Done."}],
        "stop",
        [parts({"text": "Done."}), parts(finishReason="STOP")],
    ),
    (
        "test_google_stream_state_emits_finish_only_text_event",
        GOOGLE,
        [],
        "length",
        [{**parts(finishReason="MAX_TOKENS"), "usageMetadata": {"candidatesTokenCount": 4}}],
    ),
    (
        "test_google_direct_stream_chunk_handles_reasoning_content",
        GOOGLE,
        ALL_OF_IT,
        "stop",
        [
            parts({"thought": True, "text": THOUGHT}),
            parts({"text": SPOKEN}),
            parts(finishReason="STOP"),
        ],
    ),
    (
        "test_openai_chat_response_and_stream_preserve_requested_model",
        CHAT,
        [{"content": "D"}],
        "stop",
        [{"model": "m", "choices": [{"delta": {"content": "D"}}]}],
    ),
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
"""Case, path, the engine's deltas, why it ended, and events that the client reads among others, in
order."""

CASES = {row[0] for table in (REQUESTS, ANSWERS, STREAMS) for row in table}
