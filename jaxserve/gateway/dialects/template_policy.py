"""What a model and its chat template take, and messages fitted to them in their order.

Whatever is decided here for a message depends on it and on the message right behind it, which an
agent's history keeps: the prompt of a later request therefore begins like that of the earlier one.
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
    """One model's template. The defaults are right for most open models."""

    knows_developer: bool = False
    """whether it has the role ``developer``; otherwise that becomes ``system``."""
    later_system: Literal["keep", "fold"] = "keep"
    """what happens to system messages after the leading ones: kept where they are, or folded into
    the user message right behind them; where none is, they become one."""
    joins_text: bool = True
    """whether content that is text only is sent as one text: engines join parts differently."""
    tool_images: Literal["keep", "follow"] = "keep"
    """images in results of tools: kept there, or in a user message behind the results."""
    reasoning_fields: tuple[str, ...] = ("reasoning_content",)
    """under which names assistant messages have their reasoning. Current vLLM and SGLang read
    ``reasoning_content``; vLLM before it did so reads ``reasoning`` only."""
    thinking_budget_field: str | None = None
    """field of the request that limits tokens of reasoning, as vLLM's ``thinking_token_budget``
    where the server is configured for it; None: clients' budgets are not passed on."""
    max_output_tokens: int | None = None
    """the most that a request may ask for; more is lowered to it, since engines refuse what their
    context does not hold and agents ask for what their own models hold. None: as it is asked."""


def fitted(messages: Sequence[Message], policy: TemplatePolicy) -> list[Message]:
    """Messages as the template takes them: new objects where something changes, in their order."""
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
    """Fields of a request that ask for no more output than the policy allows."""
    most = policy.max_output_tokens
    wished = [name for name in _LIMITS if isinstance(fields.get(name), int)]
    if most is None:
        return dict(fields)
    return {**fields, **{name: min(fields[name], most) for name in wished}}


def text_of(content: Any) -> str | None:
    """Content as one text, None if it is more than text."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not all(_is_text(part) for part in content):
        return None
    return _LINE.join(part["text"] for part in content)


_SYSTEM = ("system", "developer")


def _renamed(message: Message, policy: TemplatePolicy) -> Message:
    """With the role and the names of fields that the template has."""
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
    """Leading messages of one role as one."""
    for _, group in groupby(messages, key=lambda message: message["role"]):
        same = list(group)
        yield same[0] if len(same) == 1 else {**same[0], "content": _joined(same)}


def _folded(messages: Sequence[Message]) -> Iterator[Message]:
    """Without system messages: each is put before what the user says right behind it."""
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
    """With images of a run of tool results in a user message behind the run."""
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
    """Contents of several messages as one: a text if all are."""
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
