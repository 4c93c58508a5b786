"""Cases of Google's contents; what the columns are says ``cases.py``."""

from __future__ import annotations

from typing import Any

from tests.gateway.dialects.earlier.parts import (
    ALL_OF_IT,
    BOTH,
    CACHED,
    CALLS_ONE,
    DATA,
    GOOGLE,
    GOOGLE_CALLED,
    GOOGLE_TOOL,
    LOOKUP,
    NAMED,
    SPOKEN,
    TEN_FOUR,
    TEXT_AND_CALL,
    THINKS,
    THOUGHT,
    call,
    called,
    function,
    image,
    parts,
    result,
    text,
    thinks,
    user,
)

REQUESTS: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
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
]

ANSWERS: list[tuple[str, str, dict[str, Any], str, dict[str, Any], dict[str, Any]]] = [
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
]

STREAMS: list[tuple[str, str, list[dict[str, Any]], str, list[dict[str, Any]]]] = [
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
]
