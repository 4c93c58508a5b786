"""Requests in Anthropic's dialect, to the letter."""

from __future__ import annotations

from typing import Any

import pytest

from jaxserve.gateway.dialects.anthropic_messages import requests as anthropic_messages
from jaxserve.gateway.dialects.sealed_reasoning import sealed
from jaxserve.gateway.dialects.template_policy import TemplatePolicy
from jaxserve.gateway.http.errors import RequestError
from tests.gateway.dialects.conversations import asked

ASK = [{"role": "user", "content": "hello"}]
TOOL = {"name": "f", "input_schema": {"type": "object"}}
CHOSEN = {"type": "function", "function": {"name": "f"}}
FUNCTION = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def sent(policy: TemplatePolicy | None = None, **fields: Any) -> dict[str, Any]:
    """The engine's request."""
    given = {"model": "m", "max_tokens": 9, "messages": ASK, **fields}
    return anthropic_messages.to_chat(asked(given), policy or TemplatePolicy()).request


def messages(*content: Any, role: str = "user") -> list[Any]:
    """The engine's messages of blocks between two others, which are left out."""
    return sent(messages=[*ASK, {"role": role, "content": list(content)}, *ASK])["messages"][1:-1]


def test_sampling() -> None:
    """Under the names of chat; what engines have no word for is left out."""
    fields = {"temperature": 0.5, "top_p": 0.9, "top_k": 4, "stop_sequences": ["END"]}
    more = {"metadata": {"user_id": "u"}, "service_tier": "auto", "speed": None, "container": None}
    assert sent(**fields, **more) == {
        "model": "m",
        "messages": ASK,
        "max_completion_tokens": 9,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 4,
        "stop": ["END"],
    }
    assert sent(stream=True)["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize(
    "line", ["x-anthropic-billing-header: cc_version=2.1.111; cch=b4f0d;", "no such line"]
)
def test_the_billing_header(line: str) -> None:
    """It is stripped, alone in a block or before its text; what is no such header stays."""
    kept = [] if line.startswith("x-") else [line]
    blocks = [{"type": "text", "text": line}, {"type": "text", "text": "You are an agent."}]
    system = sent(system=blocks)["messages"][0]
    assert system == {"role": "system", "content": "\n".join([*kept, "You are an agent."])}
    joined = sent(system=f"{line}\n\nYou are an agent.")["messages"][0]["content"]
    assert joined == "\n\n".join([*kept, "You are an agent."])
    later = f"a\n{line}"
    assert sent(system=later)["messages"][0]["content"] == later


def test_a_system_message_in_the_middle() -> None:
    """Stays where it is."""
    later = {"role": "system", "content": [{"type": "text", "text": "be quick"}]}
    found = sent(messages=[*ASK, later, *ASK])["messages"]
    assert found == [*ASK, {"role": "system", "content": "be quick"}, *ASK]


def test_the_assistants_blocks() -> None:
    """Text, thoughts and calls; blocks of servers are dropped, and foreign thoughts that are
    hidden."""
    found = messages(
        {"type": "thinking", "thinking": "seen", "signature": "foreign"},
        {"type": "thinking", "thinking": "", "signature": sealed(" sealed")},
        {"type": "redacted_thinking", "data": "foreign"},
        {"type": "redacted_thinking", "data": sealed(" hidden")},
        {"type": "text", "text": "I "},
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
        {"type": "web_search_tool_result", "tool_use_id": "s", "content": []},
        {"type": "text", "text": "call."},
        {"type": "tool_use", "id": "t", "name": "f", "input": {"a": [1, "é"]}},
        role="assistant",
    )
    function = {"name": "f", "arguments": '{"a":[1,"é"]}'}
    assert found == [
        {
            "role": "assistant",
            "content": "I call.",
            "reasoning_content": "seen sealed hidden",
            "tool_calls": [{"id": "t", "type": "function", "function": function}],
        }
    ]


def test_results_of_tools() -> None:
    """A message each, in order, before and after what the user says; images and failures too."""
    source = {"type": "base64", "media_type": "image/png", "data": "AA=="}
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    text = {"type": "text", "text": "seen"}
    result = {"type": "tool_result", "tool_use_id": "t"}
    found = messages(
        {**result, "content": "done"},
        {**result, "content": [text, {"type": "image", "source": source}]},
        {**result, "content": "no file", "is_error": True},
        {**result, "content": "Error: no file", "is_error": True},
        {**result, "is_error": True},
        {**result, "content": [{"type": "image", "source": source}], "is_error": True},
        {"type": "text", "text": "go on"},
    )
    tool = {"role": "tool", "tool_call_id": "t"}
    assert found == [
        {**tool, "content": "done"},
        {**tool, "content": [text, image]},
        {**tool, "content": "Error: no file"},
        {**tool, "content": "Error: no file"},
        {**tool, "content": "Error: "},
        {**tool, "content": [{"type": "text", "text": "Error:"}, image]},
        {"role": "user", "content": "go on"},
    ]


def test_what_users_show() -> None:
    """Images by address, documents of text, found passages."""
    pages = [{"type": "text", "text": page} for page in ("P1", "P2")]
    found = messages(
        {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}},
        {"type": "document", "title": "T", "source": {"type": "text", "data": "D"}},
        {"type": "document", "source": {"type": "content", "content": "C"}},
        {"type": "document", "source": {"type": "content", "content": pages}},
        {"type": "search_result", "title": "S", "source": "https://a.example", "content": pages},
    )
    image, *texts = found[0]["content"]
    assert image == {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    said = [part["text"] for part in texts]
    assert said == ["T", "D", "C", "P1", "P2", "S\nhttps://a.example", "P1", "P2"]


def test_cache_marks() -> None:
    """Say nothing to an engine, which finds prefixes by itself."""
    mark = {"cache_control": {"type": "ephemeral"}}
    system = [{"type": "text", "text": "Be careful.", **mark}, {"type": "text", "text": "Cite."}]
    ask = [{"role": "user", "content": [{"type": "text", "text": "hello", **mark}]}]
    found = sent(system=system, messages=ask, tools=[{**TOOL, **mark}])
    assert found["messages"] == [{"role": "system", "content": "Be careful.\nCite."}, *ASK]
    assert found["tools"] == [FUNCTION]


@pytest.mark.parametrize(
    ("choice", "fields"),
    [
        ({"type": "auto"}, {"tool_choice": "auto"}),
        ({"type": "any"}, {"tool_choice": "required"}),
        ({"type": "none"}, {"tool_choice": "none"}),
        (
            {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
            {"tool_choice": CHOSEN, "parallel_tool_calls": False},
        ),
    ],
)
def test_tools(choice: dict[str, Any], fields: dict[str, Any]) -> None:
    """The client's own; those that servers run are dropped."""
    server = {"type": "web_search_20250305", "name": "web_search"}
    found = sent(tools=[TOOL, server], tool_choice=choice)
    assert found["tools"] == [FUNCTION]
    assert fields.items() <= found.items()
    assert sent(tools=[server], tool_choice={"type": "auto"}).keys() == sent().keys()


def test_deferred_tools_come_when_a_search_has_found_them() -> None:
    """Claude Code keeps its deferred tools from the model until a result refers to them."""
    later = [{**TOOL, "name": name, "defer_loading": True} for name in ("found", "other")]
    reference = {"type": "tool_reference", "tool_name": "found"}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [reference]}
    tools = [later[0], TOOL, later[1]]
    assert [one["function"]["name"] for one in sent(tools=tools)["tools"]] == ["f"]
    assert "tools" not in sent(tools=later)
    searched = sent(tools=tools, messages=[*ASK, {"role": "user", "content": [result]}])
    assert [one["function"]["name"] for one in searched["tools"]] == ["found", "f"]
    assert searched["messages"][1]["content"] == "found"


def test_output_and_thinking() -> None:
    """A schema, how much to think, and a budget where the model's engine takes one."""
    wanted = {"type": "json_schema", "schema": {"type": "object"}}
    schema = {"name": "output", "schema": {"type": "object"}}
    for name, given in (("output_config", {"format": wanted}), ("output_format", wanted)):
        found = sent(**{name: given})["response_format"]
        assert found == {"type": "json_schema", "json_schema": schema}
    assert sent(output_config={"effort": "high"})["reasoning_effort"] == "high"
    assert sent(thinking={"type": "disabled"})["reasoning_effort"] == "none"
    enabled = {"type": "enabled", "budget_tokens": 2048}
    assert sent(thinking=enabled) == sent()
    policy = TemplatePolicy(thinking_budget_field="thinking_token_budget")
    assert sent(policy, thinking=enabled)["thinking_token_budget"] == 2048


def test_an_answer_that_the_client_begins() -> None:
    """The engine goes on with it."""
    begun = [*ASK, {"role": "assistant", "content": "The answer is ("}]
    found = sent(messages=begun)
    assert found["continue_final_message"] is True and found["add_generation_prompt"] is False
    assert "continue_final_message" not in sent()


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"max_tokens": None}, "max_tokens is None; it must be a whole number from 1 on"),
        ({"messages": "hi"}, "messages is 'hi'; it must be a list"),
        ({"messages": [{"role": "user"}]}, "content is None; it must be a text or a list"),
        ({"messages": [{"role": "tool", "content": ""}]}, "role is 'tool'; it must be one of user"),
        ({"mcp_servers": [{}]}, "mcp_servers is not supported"),
        ({"container": "c"}, "container is not supported"),
        ({"thread": {"type": "create"}}, "thread is not supported: nothing is stored here"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "has no input_schema"),
        ({"tools": [{"name": "f"}]}, "input_schema is missing; it must be a JSON object"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "g"}}, "name is 'g'"),
        ({"system": [{"type": "image"}]}, "system[0]: type is 'image'; it must be one of text"),
        ({"output_config": {"format": {"type": "xml"}}}, "type is 'xml'"),
    ],
)
def test_what_is_refused(fields: dict[str, Any], sentence: str) -> None:
    """One sentence each."""
    with pytest.raises(RequestError) as refused:
        sent(**fields)
    assert sentence in str(refused.value) and refused.value.status == 400


@pytest.mark.parametrize(
    ("block", "sentence"),
    [
        ({"type": "image", "source": {"type": "file", "file_id": "f"}}, "images by file_id"),
        ({"type": "document", "source": {"type": "base64", "data": ""}}, "of type base64"),
        ({"type": "tool_use", "id": "t", "name": "f", "input": {}}, "type of block that the user"),
        ({"type": "tool_result", "content": "a"}, "tool_use_id is missing"),
        ({"text": "a"}, "type is missing"),
        ("a", "content[0] is 'a'; it must be a JSON object"),
    ],
)
def test_blocks_that_are_refused(block: Any, sentence: str) -> None:
    """Likewise."""
    with pytest.raises(RequestError) as refused:
        messages(block)
    assert sentence in str(refused.value)
