"""Official clients that hold conversations, each in its own dialect.

The engine's words of a turn stand in the header ``x-stub`` of the request.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

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


class Said(NamedTuple):
    """An answer as a client understands it."""

    text: str
    """the refusal included."""
    calls: list[tuple[str, str, Any]]
    """id, name and arguments."""
    finish: str | None
    tokens: int
    """of the output."""
    history: list[Any]
    """what the client sends back for it."""


class DialectClient(Protocol):
    """An official client in a session."""

    def user(self, text: str) -> Any:
        """A message of the user."""

    def result(self, call: tuple[str, str, Any], text: str) -> Any:
        """The result of a call."""

    def ask(self, history: list[Any], stub: Mapping[str, Any], stream: bool) -> Said:
        """The answer to a history; its parts are valid by the client's own types."""


def told(stub: Mapping[str, Any]) -> dict[str, str]:
    """Headers for the engine."""
    return {"x-stub": json.dumps(stub)}


def strict(found: Any) -> Any:
    """Checks what a client made without a check."""
    type(found).model_validate(found.model_dump(by_alias=True, warnings=False))
    return found


def openai_client(agent: Agent) -> Any:
    """OpenAI's client with the session's key."""
    openai = pytest.importorskip("openai", reason="the package openai is not installed")
    return openai.OpenAI(base_url=f"{agent.gateway.url}/v1", api_key=agent.key, max_retries=0)


def anthropic_client(agent: Agent) -> Any:
    """Anthropic's client with the session's key."""
    anthropic = pytest.importorskip("anthropic", reason="the package anthropic is not installed")
    return anthropic.Anthropic(base_url=agent.gateway.url, api_key=agent.key, max_retries=0)


def google_client(agent: Agent, version: str = "v1beta") -> Any:
    """Google's client with the session's key; ``version`` is a version of the interface."""
    genai = pytest.importorskip("google.genai", reason="the package google-genai is not installed")
    options: Any = {"base_url": agent.gateway.url, "api_version": version}
    return genai.Client(api_key=agent.key, http_options=options)


class ChatClient:
    """OpenAI's chat."""

    def __init__(self, agent: Agent, talk: Talk) -> None:
        self._create = openai_client(agent).chat.completions.create
        function = {"name": talk.tool, "parameters": talk.schema}
        self._asked = {"model": talk.model, "tools": [{"type": "function", "function": function}]}

    def user(self, text: str) -> Any:
        return {"role": "user", "content": text}

    def result(self, call: tuple[str, str, Any], text: str) -> Any:
        return {"role": "tool", "tool_call_id": call[0], "content": text}

    def ask(self, history: list[Any], stub: Mapping[str, Any], stream: bool) -> Said:
        from openai.lib.streaming.chat import ChatCompletionStreamState

        asked = {**self._asked, "messages": history, "extra_headers": told(stub)}
        if stream:
            state = ChatCompletionStreamState()
            for chunk in self._create(**asked, stream=True, stream_options={"include_usage": True}):
                state.handle_chunk(strict(chunk))
            answer: Any = state.current_completion_snapshot
        else:
            answer = strict(self._create(**asked))
        (choice,) = answer.choices
        message = choice.message.model_dump(exclude_none=True)
        calls = []
        for one in message.get("tool_calls", ()):
            one.pop("index", None)  # by which the client put pieces together
            function = one["function"]
            calls.append((one["id"], function["name"], json.loads(function["arguments"])))
        text = message.get("content", "") + message.get("refusal", "")
        return Said(text, calls, choice.finish_reason, answer.usage.completion_tokens, [message])


class MessagesClient:
    """Anthropic's messages."""

    def __init__(self, agent: Agent, talk: Talk) -> None:
        self._messages = anthropic_client(agent).messages
        self._asked = {
            "model": talk.model,
            "max_tokens": 2000,
            "tools": [{"name": talk.tool, "input_schema": talk.schema}],
            "thinking": {"type": "enabled", "budget_tokens": 1024},
        }

    def user(self, text: str) -> Any:
        return {"role": "user", "content": text}

    def result(self, call: tuple[str, str, Any], text: str) -> Any:
        return self.user([{"type": "tool_result", "tool_use_id": call[0], "content": text}])

    def ask(self, history: list[Any], stub: Mapping[str, Any], stream: bool) -> Said:
        asked = {**self._asked, "messages": history, "extra_headers": told(stub)}
        if stream:
            with self._messages.stream(**asked) as events:
                for event in events:
                    strict(event)
                answer = events.get_final_message()
        else:
            answer = strict(self._messages.create(**asked))
        text = "".join(block.text for block in answer.content if block.type == "text")
        calls = [
            (block.id, block.name, block.input)
            for block in answer.content
            if block.type == "tool_use"
        ]
        back = [{"role": "assistant", "content": answer.content}]
        return Said(text, calls, answer.stop_reason, answer.usage.output_tokens, back)


class ResponsesClient:
    """OpenAI's responses, without state: all reasoning comes back with the client."""

    def __init__(self, agent: Agent, talk: Talk) -> None:
        self._responses = openai_client(agent).responses
        tool = {"type": "function", "name": talk.tool, "parameters": talk.schema, "strict": False}
        self._asked = {
            "model": talk.model,
            "tools": [tool],
            "include": ["reasoning.encrypted_content"],
            "store": False,
        }

    def user(self, text: str) -> Any:
        return {"role": "user", "content": text}

    def result(self, call: tuple[str, str, Any], text: str) -> Any:
        return {"type": "function_call_output", "call_id": call[0], "output": text}

    def ask(self, history: list[Any], stub: Mapping[str, Any], stream: bool) -> Said:
        asked = {**self._asked, "input": history, "extra_headers": told(stub)}
        if stream:
            events = [strict(event) for event in self._responses.create(**asked, stream=True)]
            answer = events[-1].response
        else:
            answer = strict(self._responses.create(**asked))
        items = [item.to_dict() for item in answer.output]
        calls, refused = [], ""
        for item in items:
            if item["type"] == "function_call":
                calls.append((item["call_id"], item["name"], json.loads(item["arguments"])))
            elif item["type"] == "message":
                refused += "".join(part.get("refusal", "") for part in item["content"])
        text = answer.output_text + refused
        return Said(text, calls, answer.status, answer.usage.output_tokens, items)


class GoogleClient:
    """Google's generateContent."""

    version = "v1beta"

    def __init__(self, agent: Agent, talk: Talk) -> None:
        self._client, self._model = google_client(agent, self.version), talk.model
        self._tool = {"name": talk.tool, "parameters_json_schema": talk.schema}

    def user(self, text: str) -> Any:
        return {"role": "user", "parts": [{"text": text}]}

    def result(self, call: tuple[str, str, Any], text: str) -> Any:
        answer = {"id": call[0], "name": call[1], "response": {"output": text}}
        return {"role": "user", "parts": [{"function_response": answer}]}

    def ask(self, history: list[Any], stub: Mapping[str, Any], stream: bool) -> Said:
        config: Any = {
            "tools": [{"function_declarations": [self._tool]}],
            "automatic_function_calling": {"disable": True},
            "thinking_config": {"include_thoughts": True},
            "http_options": {"headers": told(stub)},
        }
        models, asked = self._client.models, {"model": self._model, "config": config}
        if stream:
            answers = list(models.generate_content_stream(**asked, contents=history))
        else:
            answers = [models.generate_content(**asked, contents=history)]
        parts = [part for one in answers for part in one.candidates[0].content.parts or () if part]
        text = "".join(part.text or "" for part in parts if not part.thought)
        calls = [(call.id, call.name, call.args) for part in parts if (call := part.function_call)]
        usage = answers[-1].usage_metadata
        tokens = usage.total_token_count - usage.prompt_token_count
        finish = answers[-1].candidates[0].finish_reason
        return Said(text, calls, finish, tokens, [{"role": "model", "parts": parts}])


class GoogleV1Client(GoogleClient):
    """The same at the other version's routes."""

    version = "v1"


DIALECTS: Mapping[str, Any] = {
    "chat": ChatClient,
    "messages": MessagesClient,
    "responses": ResponsesClient,
    "google": GoogleClient,
    "google_v1": GoogleV1Client,
}
"""Class of the client, called with the agent and the talk."""


def converse(dialect: str, agent: Agent, stream: bool, talk: Talk | None = None) -> str:
    """A question, a call of a tool with reasoning, its result, and the last word, returned."""
    talk = talk or Talk()
    client: DialectClient = DIALECTS[dialect](agent, talk)
    history = [client.user(ASKED)]
    said = client.ask(history, CALL, stream)
    (call,) = said.calls
    assert call[1] == talk.tool and call[2] in talk.expected
    history += [*said.history, client.result(call, talk.told)]
    return client.ask(history, LAST, stream).text
