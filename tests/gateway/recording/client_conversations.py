"""Official clients that hold one conversation, each in its own dialect.

The conversation: a question, a call of a tool with reasoning, its result, and a last word. What the
engine says in each turn stands in the header ``x-stub`` of the request.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.gateway.recording.session_agent import Agent

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"x": {"type": "integer"}}}
CALL = {"reply": "I look.", "reasoning": "which one?", "calls": ["find"]}
LAST = {"reply": "Done.", "reasoning": "that is it"}
ASKED = "look, please"


@dataclass(frozen=True)
class Talk:
    """What is said, and what is expected."""

    model: str = "m"
    """that is asked for."""
    tool: str = "find"
    """that is offered, and called."""
    schema: Mapping[str, Any] = field(default_factory=lambda: SCHEMA)
    """of its arguments."""
    expected: tuple[Mapping[str, Any], ...] = ({"x": 1},)
    """arguments of which the call has one or the other."""
    told: str = "seen"
    """the tool's result."""


SCRIPTED = Talk()


def told(stub: Mapping[str, Any]) -> dict[str, str]:
    """Headers for the engine."""
    return {"x-stub": json.dumps(stub)}


def openai_client(agent: Agent) -> Any:
    """Theirs, of the session."""
    openai = pytest.importorskip("openai", reason="the package openai is not installed")
    return openai.OpenAI(base_url=f"{agent.gateway.url}/v1", api_key=agent.key, max_retries=0)


def anthropic_client(agent: Agent) -> Any:
    """Likewise."""
    anthropic = pytest.importorskip("anthropic", reason="the package anthropic is not installed")
    return anthropic.Anthropic(base_url=agent.gateway.url, api_key=agent.key, max_retries=0)


def google_client(agent: Agent, version: str = "v1beta") -> Any:
    """Likewise; of one of the two versions of the interface."""
    genai = pytest.importorskip("google.genai", reason="the package google-genai is not installed")
    options: Any = {"base_url": agent.gateway.url, "api_version": version}
    return genai.Client(api_key=agent.key, http_options=options)


def chat(agent: Agent, stream: bool, talk: Talk = SCRIPTED) -> str:
    """OpenAI's chat. Returns the last word."""
    client = openai_client(agent)
    function = {"name": talk.tool, "parameters": talk.schema}
    asked: dict[str, Any] = {"model": talk.model}
    asked["tools"] = [{"type": "function", "function": function}]

    def say(messages: list[Any], stub: Mapping[str, Any]) -> dict[str, Any]:
        more = {**asked, "messages": messages, "extra_headers": told(stub)}
        if not stream:
            answer = client.chat.completions.create(**more)
            return answer.choices[0].message.model_dump(exclude_none=True)
        text, reasoning, calls = "", "", {}
        for chunk in client.chat.completions.create(**more, stream=True):
            delta = chunk.choices[0].delta
            text += delta.content or ""
            reasoning += getattr(delta, "reasoning_content", None) or ""
            for call in delta.tool_calls or ():
                one = calls.setdefault(call.index, {"id": call.id, "name": "", "arguments": ""})
                one["name"] += call.function.name or ""
                one["arguments"] += call.function.arguments or ""
        message = {"role": "assistant", "content": text, "reasoning_content": reasoning}
        listed = [
            {"id": one.pop("id"), "type": "function", "function": one} for one in calls.values()
        ]
        return message | ({"tool_calls": listed} if listed else {})

    messages: list[Any] = [{"role": "user", "content": ASKED}]
    messages.append(say(messages, CALL))
    (call,) = messages[-1]["tool_calls"]
    assert call["function"]["name"] == talk.tool
    assert json.loads(call["function"]["arguments"]) in talk.expected
    messages.append({"role": "tool", "tool_call_id": call["id"], "content": talk.told})
    return say(messages, LAST)["content"]


def messages(agent: Agent, stream: bool, talk: Talk = SCRIPTED) -> str:
    """Anthropic's messages."""
    client = anthropic_client(agent)
    asked: dict[str, Any] = {
        "model": talk.model,
        "max_tokens": 2000,
        "tools": [{"name": talk.tool, "input_schema": talk.schema}],
        "thinking": {"type": "enabled", "budget_tokens": 1024},
    }

    def say(history: list[Any], stub: Mapping[str, Any]) -> list[Any]:
        more = {**asked, "messages": history, "extra_headers": told(stub)}
        if not stream:
            return client.messages.create(**more).content
        with client.messages.stream(**more) as events:
            return events.get_final_message().content

    history: list[Any] = [{"role": "user", "content": ASKED}]
    content = say(history, CALL)
    (call,) = [block for block in content if block.type == "tool_use"]
    assert call.name == talk.tool and call.input in talk.expected
    result = {"type": "tool_result", "tool_use_id": call.id, "content": talk.told}
    history.append({"role": "assistant", "content": content})
    history.append({"role": "user", "content": [result]})
    return "".join(block.text for block in say(history, LAST) if block.type == "text")


def responses(agent: Agent, stream: bool, talk: Talk = SCRIPTED) -> str:
    """OpenAI's responses, without state: all reasoning comes back with the client."""
    client = openai_client(agent)
    tool = {"type": "function", "name": talk.tool, "parameters": talk.schema, "strict": False}
    asked: dict[str, Any] = {
        "model": talk.model,
        "tools": [tool],
        "include": ["reasoning.encrypted_content"],
        "store": False,
    }

    def say(items: list[Any], stub: Mapping[str, Any]) -> Any:
        more = {**asked, "input": items, "extra_headers": told(stub)}
        if not stream:
            return client.responses.create(**more)
        with client.responses.stream(**more) as events:
            return events.get_final_response()

    items: list[Any] = [{"role": "user", "content": ASKED}]
    output = say(items, CALL).output
    (call,) = [item for item in output if item.type == "function_call"]
    assert call.name == talk.tool and json.loads(call.arguments) in talk.expected
    items += [item.to_dict() for item in output]
    for item in items:
        item.pop("parsed_arguments", None)
    items.append({"type": "function_call_output", "call_id": call.call_id, "output": talk.told})
    return say(items, LAST).output_text


def google(agent: Agent, stream: bool, talk: Talk = SCRIPTED, version: str = "v1beta") -> str:
    """Google's generateContent."""
    client = google_client(agent, version)
    from google.genai import types

    tool = {"function_declarations": [{"name": talk.tool, "parameters_json_schema": talk.schema}]}

    def say(contents: list[Any], stub: Mapping[str, Any]) -> list[Any]:
        config: Any = {
            "tools": [tool],
            "automatic_function_calling": {"disable": True},
            "http_options": {"headers": told(stub)},
        }
        more = {"model": talk.model, "contents": contents, "config": config}
        if not stream:
            return client.models.generate_content(**more).candidates[0].content.parts
        chunks = client.models.generate_content_stream(**more)
        return [part for chunk in chunks for part in chunk.candidates[0].content.parts or ()]

    contents: list[Any] = [types.Content(role="user", parts=[types.Part(text=ASKED)])]
    parts = say(contents, CALL)
    (call,) = [part.function_call for part in parts if part.function_call]
    assert call.name == talk.tool and call.args in talk.expected
    answer = types.FunctionResponse(id=call.id, name=talk.tool, response={"output": talk.told})
    contents.append(types.Content(role="model", parts=parts))
    contents.append(types.Content(role="user", parts=[types.Part(function_response=answer)]))
    return "".join(part.text or "" for part in say(contents, LAST) if not part.thought)


def google_v1(agent: Agent, stream: bool, talk: Talk = SCRIPTED) -> str:
    """The same at the other version's routes."""
    return google(agent, stream, talk, "v1")


DIALECTS: Mapping[str, Callable[..., str]] = {
    "chat": chat,
    "messages": messages,
    "responses": responses,
    "google": google,
    "google_v1": google_v1,
}
