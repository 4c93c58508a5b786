"""Policy of a model's chat template, and messages rewritten for it.

The rewriting of a message depends only on that message and the next one, and an agent's history
keeps both: the prompt of a later request therefore begins like that of the earlier one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

_PARAGRAPH = "\n\n"
_LINE = "\n"
_LIMITS = ("max_completion_tokens", "max_tokens")

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class TemplatePolicy:
    """Features of a model's chat template. The defaults are right for most open models."""

    knows_developer: bool = False
    """whether the template has the role ``developer``; otherwise the role becomes ``system``."""
    later_system: Literal["keep", "fold"] = "keep"
    """system messages after the leading ones: kept in place, or folded into the user message right
    behind them; without one they become a user message."""
    joins_text: bool = True
    """whether parts of text are joined into one text: engines join parts differently."""
    tool_images: Literal["keep", "follow"] = "keep"
    """images in results of tools: kept in place, or moved to a user message behind the results."""
    reasoning_fields: tuple[str, ...] = ("reasoning_content",)
    """fields for the reasoning of assistant messages. Current vLLM and SGLang read
    ``reasoning_content``; earlier vLLM reads ``reasoning`` only."""
    thinking_budget_field: str | None = None
    """request field that limits reasoning tokens, such as vLLM's ``thinking_token_budget`` on a
    server configured for it; None drops the budgets of clients."""
    max_output_tokens: int | None = None
    """limit of the output tokens of a request; None sets no limit. Larger requests are lowered:
    agents ask for what their own models hold, and engines refuse more than their context."""


def fitted(messages: Sequence[Message], policy: TemplatePolicy) -> list[Message]:
    """Messages rewritten for the template, in their order; a changed message is a new object."""
    found = [_renamed(message, policy) for message in messages]
    leading = next(
        (at for at, message in enumerate(found) if message["role"] not in _SYSTEM), len(found)
    )
    head, rest = _merged_head(found[:leading]), found[leading:]
    if policy.later_system == "fold":
        rest = list(_folded(rest))
    if policy.tool_images == "follow":
        rest = list(_with_images_behind(rest))
    return [_flat(message) if policy.joins_text else message for message in (*head, *rest)]


def limited(fields: Mapping[str, Any], policy: TemplatePolicy) -> dict[str, Any]:
    """Fields of a request with output limits lowered to the policy's."""
    limit = policy.max_output_tokens
    names = [name for name in _LIMITS if isinstance(fields.get(name), int)]
    if limit is None:
        return dict(fields)
    return {**fields, **{name: min(fields[name], limit) for name in names}}


def text_of(content: Any) -> str | None:
    """Content as one text; None if it has other parts than text."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not all(_is_text(part) for part in content):
        return None
    return _LINE.join(part["text"] for part in content)


_SYSTEM = ("system", "developer")


def _renamed(message: Message, policy: TemplatePolicy) -> Message:
    """A message with the template's role and names of fields."""
    if message["role"] == "developer" and not policy.knows_developer:
        return {**message, "role": "system"}
    reasoning = message.get("reasoning_content")
    if message["role"] != "assistant" or policy.reasoning_fields == ("reasoning_content",):
        return message
    others = {name: value for name, value in message.items() if name != "reasoning_content"}
    return (
        others if reasoning is None else others | dict.fromkeys(policy.reasoning_fields, reasoning)
    )


def _merged_head(messages: Sequence[Message]) -> Iterator[Message]:
    """Leading messages, those of one role merged."""
    for _, group in groupby(messages, key=lambda message: message["role"]):
        same = list(group)
        yield same[0] if len(same) == 1 else {**same[0], "content": _joined(same)}


def _folded(messages: Sequence[Message]) -> Iterator[Message]:
    """Messages with each system message folded into the user message right behind it."""
    waiting: list[Message] = []
    for message in messages:
        if message["role"] in _SYSTEM:
            waiting.append(message)
            continue
        if waiting and message["role"] == "user":
            yield {**message, "content": _joined([*waiting, message])}
        elif waiting:
            yield {"role": "user", "content": _joined(waiting)}
            yield message
        else:
            yield message
        waiting = []
    if waiting:
        yield {"role": "user", "content": _joined(waiting)}


def _with_images_behind(messages: Sequence[Message]) -> Iterator[Message]:
    """Messages with the images of consecutive tool results in a user message behind them."""
    for is_tool, group in groupby(messages, key=lambda message: message["role"] == "tool"):
        if not is_tool:
            yield from group
            continue
        images: list[Any] = []
        for message in group:
            parts = message.get("content")
            if isinstance(parts, list) and not all(_is_text(part) for part in parts):
                images += [part for part in parts if not _is_text(part)]
                message = {**message, "content": [part for part in parts if _is_text(part)]}
            yield message
        if images:
            yield {"role": "user", "content": images}


def _joined(messages: Sequence[Message]) -> Any:
    """Contents of several messages as one: a text if all are texts."""
    texts = [text_of(message.get("content") or "") for message in messages]
    if all(text is not None for text in texts):
        return _PARAGRAPH.join(text for text in texts if text)
    parts: list[Any] = []
    for message in messages:
        content = message.get("content") or []
        parts += [{"type": "text", "text": content}] if isinstance(content, str) else content
    return parts


def _flat(message: Message) -> Message:
    content = message.get("content")
    text = text_of(content) if isinstance(content, list) else None
    return message if text is None else {**message, "content": text}


def _is_text(part: Any) -> bool:
    return (
        isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
    )
