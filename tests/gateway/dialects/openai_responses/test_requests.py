"""Requests in the dialect of OpenAI's responses, to the letter."""

from __future__ import annotations

from typing import Any

import pytest

from jaxserve.gateway.dialects.openai_responses import requests as openai_responses
from jaxserve.gateway.dialects.sealed_reasoning import sealed
from jaxserve.gateway.dialects.template_policy import TemplatePolicy
from jaxserve.gateway.http.errors import RequestError
from tests.gateway.dialects.conversations import asked

TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}
OTHER = {"type": "function", "name": "g"}
CALLED = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "c"}


def sent(**fields: Any) -> dict[str, Any]:
    """The engine's request."""
    given = asked({"model": "m", "input": "hello", **fields})
    return openai_responses.to_chat(given, TemplatePolicy()).request


def messages(*items: Any) -> list[Any]:
    """The engine's messages of input items."""
    return sent(input=list(items))["messages"]


def call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    """A call as the engine has it."""
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def test_fields() -> None:
    """Under the names of chat."""
    found = sent(
        instructions="be brief",
        max_output_tokens=9,
        temperature=0.5,
        top_p=0.9,
        parallel_tool_calls=False,
        reasoning={"effort": "low", "summary": "auto"},
        text={"verbosity": "low", "format": {"type": "text"}},
        store=False,
        stream=True,
        metadata={"a": "b"},
        prompt_cache_key="k",
        truncation="auto",
    )
    assert found == {
        "model": "m",
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "hello"},
        ],
        "max_completion_tokens": 9,
        "temperature": 0.5,
        "top_p": 0.9,
        "parallel_tool_calls": False,
        "reasoning_effort": "low",
        "verbosity": "low",
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert sent(reasoning={"effort": "none"})["reasoning_effort"] == "none"


def test_instructions_and_leading_messages() -> None:
    """Are one system message; a later one stays where it is."""
    later = {"role": "developer", "content": [{"type": "input_text", "text": "c"}]}
    user = {"role": "user", "content": "x"}
    found = sent(instructions="a", input=[{"role": "system", "content": "b"}, user, later])
    system, same, last = found["messages"]
    assert system == {"role": "system", "content": "a\n\nb"} and same == user
    assert last == {"role": "system", "content": "c"}


def test_the_assistants_items_in_a_row() -> None:
    """Are one message; new reasoning, or a second text in a row, begins another."""
    thought = {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "s"}]}
    text = {"type": "output_text", "text": "t", "annotations": []}
    said = {"type": "message", "role": "assistant", "content": [text]}
    found = messages(thought, said, CALLED, CALLED, thought, CALLED, said, said)
    whole = {"role": "assistant", "content": "t", "reasoning_content": "s"}
    assert found == [
        {**whole, "tool_calls": [call("c", "f", "{}")] * 2},
        {**whole, "tool_calls": [call("c", "f", "{}")]},
        {"role": "assistant", "content": "t"},
    ]


def test_an_assistants_message_of_plain_text() -> None:
    """Content may be a text in place of parts."""
    item = {"type": "message", "role": "assistant", "content": "t"}
    assert messages(item) == [{"role": "assistant", "content": "t"}]


@pytest.mark.parametrize(
    ("item", "text"),
    [
        ({"encrypted_content": sealed("a"), "content": [{"text": "b"}]}, "a"),
        ({"encrypted_content": "foreign", "content": [{"text": "b"}, {"text": "c"}]}, "bc"),
        ({"content": None, "summary": [{"text": "d"}]}, "d"),
        ({"encrypted_content": None, "summary": []}, ""),
    ],
)
def test_reasoning(item: dict[str, Any], text: str) -> None:
    """What is sealed, else what is told, else the summary."""
    (_, found) = messages({"role": "user", "content": "x"}, {"type": "reasoning", **item})
    assert found.get("reasoning_content", "") == text


def test_results_images_and_what_servers_did() -> None:
    """Results as text or parts; items of servers are dropped, and do not part a turn."""
    image = {"type": "input_image", "image_url": "https://example.com/a.png", "detail": "low"}
    text = {"type": "input_text", "text": "seen"}
    part = {"type": "image_url", "image_url": {"url": image["image_url"], "detail": "low"}}
    found = messages(
        {"type": "message", "role": "user", "content": [text, image]},
        {"type": "web_search_call", "id": "w", "status": "completed"},
        CALLED,
        {"type": "function_call_output", "call_id": "c", "output": [text, image]},
    )
    parts = [{"type": "text", "text": "seen"}, part]
    assert found[0] == {"role": "user", "content": parts}
    assert found[2] == {"role": "tool", "tool_call_id": "c", "content": parts}
    (finest,) = messages({"role": "user", "content": [text, {**image, "detail": "original"}]})
    assert finest["content"][1]["image_url"] == {"url": "https://example.com/a.png"}


def test_parts_among_the_items() -> None:
    """Of one message of the user, as long as nothing else comes between them."""
    text = {"type": "input_text", "text": "seen"}
    image = {"type": "input_image", "image_url": "https://example.com/a.png"}
    found = messages(text, image, CALLED, text)
    part = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    assert found[0] == {"role": "user", "content": [{"type": "text", "text": "seen"}, part]}
    assert found[1]["role"] == "assistant"
    assert found[2:] == [{"role": "user", "content": "seen"}]


@pytest.mark.parametrize(
    ("output", "content"),
    [
        ({"body": "A"}, "A"),
        ({"content": [{"type": "output_text", "text": "B"}], "success": True}, "B"),
        ({"content": "no file", "success": False}, "Error: no file"),
        ({"body": ""}, ""),
    ],
)
def test_results_that_are_objects(output: dict[str, Any], content: str) -> None:
    """What they hold, and whether it is a failure."""
    (found,) = messages({"type": "function_call_output", "call_id": "c", "output": output})
    assert found == {"role": "tool", "tool_call_id": "c", "content": content}


def test_functions_as_other_dialects_describe_them() -> None:
    """Without a type, and with their schema under another name: the answer repeats them as
    functions of its own dialect."""
    schema = {"type": "object", "properties": {"q": {"type": "string"}}}
    function = {"type": "function", "function": {"name": "f", "parameters": schema}}
    plain = {"name": "f", "parameters": schema}
    others: list[dict[str, Any]] = [
        plain,
        {"type": "function", "name": "f", "input_schema": schema},
        {"name": "f", "input_schema": {"jsonSchema": schema}},
    ]
    for tool in others:
        given = asked({"model": "m", "input": "hello", "tools": [tool]})
        chat = openai_responses.to_chat(given, TemplatePolicy())
        assert chat.request["tools"] == [function]
        (told,) = chat.noted["repeated"]["tools"]
        assert told == {"type": "function", "description": None, "strict": None, **plain}


def test_custom_and_named_tools() -> None:
    """Are functions to the engine: a text is their one argument, a namespace a part of the name."""
    grammar = {"type": "grammar", "syntax": "lark", "definition": "start: a"}
    custom = {"type": "custom", "name": "patch", "description": "P", "format": grammar}
    space = {"type": "namespace", "name": "mcp__env", "description": "E", "tools": [TOOL]}
    found = sent(
        tools=[custom, space, {"type": "web_search"}],
        input=[
            {"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": "a\nb"},
            {"type": "custom_tool_call_output", "call_id": "c", "output": "done"},
            {**CALLED, "namespace": "mcp__env"},
        ],
    )
    patch, inner = found["tools"]
    assert patch["function"]["description"] == "P\n\nGrammar of input:\nstart: a"
    assert patch["function"]["parameters"]["required"] == ["input"]
    assert inner["function"]["name"] == "mcp__env__f"
    first, result, second = found["messages"]
    assert first["tool_calls"] == [call("c", "patch", '{"input":"a\\nb"}')]
    assert result["content"] == "done"
    assert second["tool_calls"] == [call("c", "mcp__env__f", "{}")]


@pytest.mark.parametrize(
    ("choice", "told"),
    [
        ("required", "required"),
        ({"type": "function", "name": "f"}, {"type": "function", "function": {"name": "f"}}),
    ],
)
def test_tool_choice(choice: Any, told: Any) -> None:
    """In the form of chat."""
    found = sent(tools=[TOOL, OTHER], tool_choice=choice)
    assert found["tool_choice"] == told and len(found["tools"]) == 2


def test_tools() -> None:
    """The client's own, as strict as it says; those that servers run are dropped, and with them
    the choice between none."""
    kinds = ("web_search", "file_search", "code_interpreter", "image_generation", "mcp")
    servers = [{"type": kind, "name": "f"} for kind in kinds]
    found = sent(tools=[TOOL, *servers], tool_choice="auto")
    function = {"name": "f", "parameters": {"type": "object"}, "strict": True}
    assert found["tools"] == [{"type": "function", "function": function}]
    for none in ([], servers):
        assert sent(tools=none, tool_choice="auto") == sent()


def test_allowed_tools() -> None:
    """Engines that cannot forbid tools are not told of the others."""
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"name": "g"}]}
    found = sent(tools=[TOOL, OTHER], tool_choice=choice)
    assert found["tool_choice"] == "required"
    assert [tool["function"]["name"] for tool in found["tools"]] == ["g"]


def test_formats() -> None:
    """Of the output."""
    wanted = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}
    schema = {"name": "n", "schema": {"type": "object"}, "strict": True}
    found = sent(text={"format": wanted})["response_format"]
    assert found == {"type": "json_schema", "json_schema": schema}
    loose = sent(text={"format": {"type": "json_object"}})["response_format"]
    assert loose == {"type": "json_object"}


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id is not supported: responses"),
        ({"conversation": "c"}, "conversation is not supported"),
        ({"prompt": {"id": "p"}}, "prompt is not supported"),
        ({"background": True}, "background is not supported: ask for a stream"),
        ({"include": ["message.output_text.logprobs"]}, "/v1/chat/completions"),
        ({"input": None}, "input is None; it must be a text or a list of items"),
        ({"input": []}, "input is []; it must be a text or a list of items"),
        ({"input": [{"type": "item_reference", "id": "i"}]}, "nothing is stored here"),
        ({"input": [{"type": "dream"}]}, "input[0]: type is 'dream'"),
        ({"input": [{"role": "tool"}]}, "role is 'tool'; it must be one of user"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "type input_file"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "by file_id"),
        ({"tools": [{"type": "local_shell"}]}, "tools of type local_shell are not supported"),
        (
            {"tools": [{"type": "computer_use_preview"}]},
            "tools of type computer_use_preview are not supported: describe it as a function",
        ),
        ({"tools": [{"type": "computer_use", "name": "c"}]}, "tools of type computer_use are not"),
        ({"tools": [{"description": "d"}]}, "tools[0]: type is missing"),
        ({"tools": [{**TOOL, "input_schema": {}}]}, "it must be left out beside parameters"),
        ({"top_logprobs": 3}, "top_logprobs is not supported: ask for log-probabilities on"),
        ({"input": [{"type": "input_file"}]}, "content of type input_file is not supported"),
        ({"input": [{**RESULT, "output": {}}]}, "it must be a text, a list, or an object with"),
        ({"input": [{**RESULT, "output": {"text": "a"}}]}, "field 'text' is unknown"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "h"}}, "is 'h'; it must"),
        ({"tools": [TOOL], "tool_choice": "any"}, "tool_choice is 'any'; it must be one of auto"),
        ({"model": 3}, "model is 3; it must be a text"),
    ],
)
def test_what_is_refused(fields: dict[str, Any], sentence: str) -> None:
    """One sentence each."""
    with pytest.raises(RequestError) as refused:
        sent(**fields)
    assert sentence in str(refused.value) and refused.value.status == 400
