"""A chat answer and its events: one made of the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from jaxserve.gateway.sessions.engines import choices, objects

_HEAD = ("id", "created", "model", "system_fingerprint")
_TEXTS = ("content", "reasoning", "reasoning_content", "refusal")


class Assembly:
    """The answer that a stream's events make up; what it has seen so far is always one."""

    def __init__(self) -> None:
        """Nothing has come."""
        self._head: dict[str, Any] = {}
        self._choices: dict[int, _Choice] = {}

    def add(self, event: Mapping[str, Any]) -> None:
        """One more event; the engine's own errors and strangers add nothing."""
        for name in (*_HEAD, "prompt_token_ids", "usage"):
            if event.get(name) is not None:
                self._head[name] = event[name]
        for choice in choices(event):
            index = choice.get("index")
            index = index if isinstance(index, int) else 0
            if index not in self._choices:
                self._choices[index] = _Choice()
            self._choices[index].add(choice)

    @property
    def finished(self) -> bool:
        """Whether every choice has said why it ended."""
        return bool(self._choices) and all(
            one.finish_reason is not None for one in self._choices.values()
        )

    def answer(self) -> dict[str, Any]:
        """As if it had not been streamed."""
        return {
            **self._head,
            "object": "chat.completion",
            "choices": [
                {"index": index, **one.whole()} for index, one in sorted(self._choices.items())
            ],
        }


class _Choice:
    def __init__(self) -> None:
        self.finish_reason: str | None = None
        self._more: dict[str, Any] = {}
        self._texts: dict[str, list[str]] = {}
        self._calls: dict[int, dict[str, Any]] = {}
        self._ids: list[int] | None = None
        self._logprobs: list[Any] | None = None

    def add(self, choice: Mapping[str, Any]) -> None:
        delta = choice.get("delta")
        delta = delta if isinstance(delta, dict) else {}
        for name in _TEXTS:
            if isinstance(delta.get(name), str):
                self._texts.setdefault(name, []).append(delta[name])
        for call in objects(delta.get("tool_calls")):
            self._add_call(call)
        if isinstance(choice.get("token_ids"), list):
            self._ids = self._ids or []
            self._ids += choice["token_ids"]
        logprobs = choice.get("logprobs")
        if isinstance(logprobs, dict) and isinstance(logprobs.get("content"), list):
            self._logprobs = self._logprobs or []
            self._logprobs += logprobs["content"]
        for name in ("stop_reason", "matched_stop"):
            if choice.get(name) is not None:
                self._more[name] = choice[name]
        if choice.get("finish_reason") is not None:
            self.finish_reason = choice["finish_reason"]

    def _add_call(self, part: Mapping[str, Any]) -> None:
        index = part.get("index")
        index = index if isinstance(index, int) else 0
        call = self._calls.setdefault(
            index, {"id": None, "type": "function", "function": {"name": "", "arguments": ""}}
        )
        for name in ("id", "type"):
            if part.get(name):
                call[name] = part[name]
        function = part.get("function")
        if isinstance(function, dict):
            for name in ("name", "arguments"):
                if isinstance(function.get(name), str):
                    call["function"][name] += function[name]

    def whole(self) -> dict[str, Any]:
        texts = {name: "".join(parts) for name, parts in self._texts.items()}
        message: dict[str, Any] = {"role": "assistant", "content": None, **texts}
        if self._calls:
            message["tool_calls"] = [call for _, call in sorted(self._calls.items())]
        choice: dict[str, Any] = {"message": message, "finish_reason": self.finish_reason}
        if self._ids is not None:
            choice["token_ids"] = self._ids
        if self._logprobs is not None:
            choice["logprobs"] = {"content": self._logprobs}
        return choice | self._more


def events_of(answer: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The events that make up an answer, few and large: role, what was said, its end, usage."""
    head = {name: answer[name] for name in _HEAD if answer.get(name) is not None}
    head["object"] = "chat.completion.chunk"
    none = {"finish_reason": None}
    for choice in choices(answer):
        place = {"index": choice.get("index", 0)}
        message = choice.get("message")
        message = message if isinstance(message, dict) else {}
        yield {
            **head,
            "choices": [{**place, "delta": {"role": "assistant", "content": ""}, **none}],
        }
        said = {name: message[name] for name in reversed(_TEXTS) if message.get(name)}
        calls = objects(message.get("tool_calls"))
        if calls:
            said["tool_calls"] = [{**call, "index": number} for number, call in enumerate(calls)]
        beside = {
            name: value
            for name, value in choice.items()
            if name not in ("index", "message", "finish_reason", "stop_reason", "matched_stop")
        }
        if said or beside:
            yield {**head, "choices": [{**place, "delta": said, **none, **beside}]}
        ends = {k: choice[k] for k in ("stop_reason", "matched_stop") if choice.get(k) is not None}
        ends["finish_reason"] = choice.get("finish_reason")
        yield {**head, "choices": [{**place, "delta": {}, **ends}]}
    if answer.get("usage") is not None:
        yield {**head, "choices": [], "usage": answer["usage"]}
