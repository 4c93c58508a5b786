"""Requests in Google's dialect, to the letter."""

from __future__ import annotations

import re
from typing import Any

import pytest

from jaxserve.gateway.dialects.google_generate import requests as google_generate
from jaxserve.gateway.dialects.sealed_reasoning import sealed
from jaxserve.gateway.dialects.template_policy import TemplatePolicy
from jaxserve.gateway.http.errors import RequestError
from tests.gateway.dialects.conversations import asked

ASK = {"role": "user", "parts": [{"text": "hello"}]}
DECLARED = {
    "name": "f",
    "description": "F",
    "parameters": {"type": "OBJECT", "properties": {"a_b": {"type": "STRING"}}},
}


def sent(policy: TemplatePolicy | None = None, **fields: Any) -> dict[str, Any]:
    """The engine's request."""
    given = asked({"contents": [ASK], **fields}, model="m")
    return google_generate.to_chat(given, policy or TemplatePolicy()).request


def configured(**config: Any) -> dict[str, Any]:
    """The fields of the engine's request that a ``generationConfig`` makes."""
    found = sent(generationConfig=config)
    return {name: found[name] for name in found if name not in ("model", "messages")}


def messages(*contents: Any) -> list[Any]:
    """The engine's messages."""
    return sent(contents=list(contents))["messages"]


def test_sampling() -> None:
    """Under the names of chat, from either spelling."""
    config = {
        "temperature": 0.5,
        "topP": 0.9,
        "topK": 4,
        "maxOutputTokens": 9,
        "candidateCount": 2,
        "stopSequences": ["END"],
        "seed": 1,
        "presencePenalty": 0.1,
        "frequencyPenalty": 0.2,
    }
    expected = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 4,
        "max_completion_tokens": 9,
        "n": 2,
        "stop": ["END"],
        "seed": 1,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.2,
    }
    assert configured(**config) == expected
    snake = {
        re.sub("[A-Z]", lambda found: f"_{found[0].lower()}", name): config[name] for name in config
    }
    found = sent(generation_config=snake, safety_settings=[{"category": "a"}])
    assert found == sent(generationConfig=config)


def test_the_path_says_how() -> None:
    """Model and streaming; a body may name the model where the path does not."""
    given = asked({"contents": [ASK]}, model="m", streamed=True)
    chat = google_generate.to_chat(given, TemplatePolicy())
    assert chat.streamed and chat.request["stream_options"] == {"include_usage": True}
    named = asked({"contents": [ASK], "model": "models/other"})
    assert google_generate.to_chat(named, TemplatePolicy()).model == "other"


def test_contents() -> None:
    """Roles, several texts, images of both kinds; a single content or part needs no list."""
    inline = {"inlineData": {"mimeType": "image/png", "data": "-_8="}}
    linked = {"fileData": {"fileUri": "https://example.com/a.png", "mimeType": "image/png"}}
    system = {"parts": [{"text": "be"}, {"text": "brief"}]}
    found = sent(
        systemInstruction=system,
        contents=[{"parts": [{"text": "a"}, inline, linked]}, {"role": "model", "parts": []}, ASK],
    )["messages"]
    assert found == [
        {"role": "system", "content": "be\nbrief"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "a"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,+/8="}},
                {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
            ],
        },
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "hello"},
    ]
    assert sent(contents={"parts": {"text": "hello"}}) == sent()
    assert sent(systemInstruction="x")["messages"][0] == {"role": "system", "content": "x"}


def test_the_models_parts() -> None:
    """Text, thoughts by signature or as told, calls; what servers did is dropped."""
    answer = {
        "role": "model",
        "parts": [
            {"text": "not this", "thought": True},
            {"text": "I ", "thoughtSignature": sealed("first")},
            {"executableCode": {"code": "1"}},
            {"text": "call."},
            {
                "functionCall": {"name": "f", "args": {"a_b": 1}},
                "thoughtSignature": sealed(", second"),
            },
        ],
    }
    function = {"name": "f", "arguments": '{"a_b":1}'}
    assert messages(answer, ASK)[0] == {
        "role": "assistant",
        "content": "I call.",
        "reasoning_content": "first, second",
        "tool_calls": [{"id": "call_0_4", "type": "function", "function": function}],
    }
    told = {"role": "model", "parts": [{"text": "t", "thought": True}, {"text": "a"}]}
    told["parts"][1]["thoughtSignature"] = "skip_thought_signature_validator"
    assert messages(told, ASK)[0]["reasoning_content"] == "t"


def test_results_find_their_calls() -> None:
    """By id, else the first that is open of the function; else they are known by the function."""
    calls = [{"functionCall": {"name": name}} for name in ("f", "g", "f")]
    calls.append({"functionCall": {"name": "h", "id": "own"}})
    results = [
        {"functionResponse": {"name": name, "response": {"output": text}}}
        for name, text in (("f", "1"), ("f", "2"), ("g", "3"), ("k", "4"))
    ]
    results.append({"functionResponse": {"name": "h", "id": "own", "response": {}}})
    found = messages({"role": "model", "parts": calls}, {"role": "user", "parts": results})[1:]
    assert [(one["tool_call_id"], one["content"]) for one in found] == [
        ("call_0_0", "1"),
        ("call_0_2", "2"),
        ("call_0_1", "3"),
        ("k", "4"),
        ("own", "{}"),
    ]


@pytest.mark.parametrize(
    ("response", "content"),
    [
        ({"output": "done"}, "done"),
        ({"output": {"a_b": 1}}, '{"a_b":1}'),
        ({"error": "no file"}, "Error: no file"),
        ({"output": "a", "code": 1}, '{"output":"a","code":1}'),
        ({"a": 1}, '{"a":1}'),
    ],
)
def test_what_functions_answer(response: dict[str, Any], content: str) -> None:
    """By their convention, or as the object that it is."""
    result = {"name": "f", "response": response}
    (found,) = messages({"role": "function", "parts": [{"functionResponse": result}]})
    assert found == {"role": "tool", "tool_call_id": "f", "content": content}
    image = {"inlineData": {"mimeType": "image/png", "data": "AA=="}}
    with_image = {"functionResponse": {**result, "parts": [image]}}
    (found,) = messages({"role": "user", "parts": [with_image]})
    assert found["content"][0] == {"type": "text", "text": content}
    assert found["content"][1]["image_url"]["url"] == "data:image/png;base64,AA=="


def test_tools() -> None:
    """Functions, with schemas of either kind; the rest is run by servers, and dropped."""
    json_schema = {"type": "object", "properties": {"c_d": {"type": "string"}}}
    other = {"name": "g", "parametersJsonSchema": json_schema}
    found = sent(tools=[{"functionDeclarations": [DECLARED, other]}, {"googleSearch": {}}])
    assert [tool["function"] for tool in found["tools"]] == [
        {
            "name": "f",
            "description": "F",
            "parameters": {"type": "object", "properties": {"a_b": {"type": "string"}}},
        },
        {"name": "g", "parameters": json_schema},
    ]
    assert "tool_choice" not in found
    assert "tools" not in sent(tools=[{"codeExecution": {}}])


@pytest.mark.parametrize(
    ("config", "choice", "offered"),
    [
        ({"mode": "AUTO"}, "auto", ["f", "g", "h"]),
        ({"mode": "NONE"}, "none", ["f", "g", "h"]),
        ({"mode": "ANY"}, "required", ["f", "g", "h"]),
        (
            {"mode": "ANY", "allowedFunctionNames": ["g"]},
            {"type": "function", "function": {"name": "g"}},
            ["f", "g", "h"],
        ),
        ({"mode": "ANY", "allowedFunctionNames": ["g", "f"]}, "required", ["f", "g"]),
        ({"mode": "VALIDATED", "allowedFunctionNames": ["g"]}, "auto", ["g"]),
    ],
)
def test_tool_choice(config: dict[str, Any], choice: Any, offered: list[str]) -> None:
    """In the form of chat; engines that cannot forbid tools are not told of the others."""
    tools = [{"functionDeclarations": [{"name": name} for name in "fgh"]}]
    found = sent(tools=tools, toolConfig={"functionCallingConfig": config})
    assert found["tool_choice"] == choice
    assert [tool["function"]["name"] for tool in found["tools"]] == offered


def test_thinking() -> None:
    """None, a level, or a budget where the model's engine takes one."""
    assert configured(thinkingConfig={"thinkingBudget": 0}) == {"reasoning_effort": "none"}
    assert configured(thinkingConfig={"thinkingBudget": -1}) == {}
    assert configured(thinkingConfig={"thinkingBudget": 99, "includeThoughts": True}) == {}
    assert configured(thinkingConfig={"thinkingLevel": "LOW"}) == {"reasoning_effort": "low"}
    policy = TemplatePolicy(thinking_budget_field="thinking_token_budget")
    config = {"thinkingConfig": {"thinkingBudget": 99}}
    assert sent(policy, generationConfig=config)["thinking_token_budget"] == 99


def test_formats() -> None:
    """Of the output."""
    assert configured(responseMimeType="text/plain") == {}
    loose = configured(responseMimeType="application/json")
    assert loose == {"response_format": {"type": "json_object"}}
    schema = {"type": "object", "properties": {"a_b": {"type": "string"}}}
    google = {"type": "OBJECT", "properties": {"a_b": {"type": "STRING"}}}
    for name, given in (("responseJsonSchema", schema), ("responseSchema", google)):
        found = configured(responseMimeType="application/json", **{name: given})
        assert found["response_format"]["json_schema"] == {"name": "output", "schema": schema}


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"contents": []}, "contents is []; it must be a list with at least one entry"),
        ({"contents": [{"role": "system"}]}, "role is 'system'; it must be user or model"),
        ({"contents": [{"parts": [{}]}]}, "it must be a part with text, inlineData"),
        ({"cachedContent": "c"}, "cachedContent is not supported"),
        ({"config": {"temperature": 0}}, "config is not supported: put generationConfig, system"),
        ({"generationConfig": {"logprobs": 4}}, "logprobs is not supported: ask for log-prob"),
        ({"tools": [{"computerUse": {}}]}, "tools of type computerUse are not supported"),
        ({"generationConfig": {"responseLogprobs": True}}, "responseLogprobs is not supported"),
        ({"generationConfig": {"responseModalities": ["AUDIO"]}}, "other than TEXT"),
        ({"generationConfig": {"responseMimeType": "text/x.enum"}}, "responseMimeType text/x.enum"),
        ({"generationConfig": {"responseSchema": {}}}, "it must be application/json beside"),
        ({"generationConfig": {"thinkingConfig": {"thinkingBudget": "a"}}}, "Budget is 'a'"),
        (
            {"contents": [{"parts": [{"inlineData": {"mimeType": "audio/wav", "data": "a"}}]}]},
            "data of type audio/wav is not supported",
        ),
        ({"contents": [{"parts": [{"functionResponse": {}}]}]}, "name is missing"),
        (
            {
                "tools": [{"functionDeclarations": [DECLARED]}],
                "toolConfig": {"functionCallingConfig": {"mode": "SOME"}},
            },
            "mode is 'SOME'; it must be one of AUTO",
        ),
    ],
)
def test_what_is_refused(fields: dict[str, Any], sentence: str) -> None:
    """One sentence each."""
    with pytest.raises(RequestError) as refused:
        sent(**fields)
    assert sentence in str(refused.value) and refused.value.status == 400
