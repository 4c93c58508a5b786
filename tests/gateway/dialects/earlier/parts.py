"""What cases of dialects are put together from."""

from __future__ import annotations

from typing import Any

from jaxserve.gateway.dialects.template_policy import TemplatePolicy

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
