"""Engines that tell token ids and log-probabilities as vLLM 0.32.0 and SGLang 0.5.23 do.

Only what is asked for by the engine's own field names comes back, and SGLang refuses what it does.
A token is a character; a message is its role, its characters and an end. So a prompt that carries
an answer unchanged extends it token by token, unless its text begins with ``~``: such a text is
sampled in other tokens than the template makes of it. vLLM's log-probabilities are raw, SGLang's
after the temperature. ``stub`` in a request, or in JSON in its
header ``x-stub``, may have:

- ``reply``: what is said (``ok``), or a list with one for each choice.
- ``reasoning``: what is thought before it; ``refusal``: what is said in place of it, at the end.
- ``finish``: the finish reason; ``usage``: further counts.
- ``calls``: names of tools that are called, ``arguments`` of all of them, as JSON, and
  ``turn`` in their ids.
- ``gated``: every event of a stream waits for ``Seen.allow``; or the whole answer.
- ``cut``: the connection breaks after so many tokens; ``end`` ends the stream there instead.
- ``status``: of an error in place of an answer, with ``headers``.
- ``garbage``: what is answered is no chat.
- ``error``: fails inside the stream.
"""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.gateway.stub_engine import Seen, StubEngine, event

END = 3
_ROLES = {"system": 10, "developer": 11, "user": 12, "assistant": 13, "tool": 14}
_REASONING = {"vllm": "reasoning", "sglang": "reasoning_content"}
_SAMPLED_ELSEWHERE = 5000
"""Added to the tokens of a text that is sampled in other tokens than the template's."""


def rendered(message: dict[str, Any]) -> list[int]:
    """Tokens of a message as the template writes them."""
    return [_ROLES[message["role"]], *map(ord, _said(message)), END]


def prompt_of(messages: Sequence[dict[str, Any]]) -> list[int]:
    """Tokens of a whole prompt."""
    return [*(token for one in messages for token in rendered(one)), _ROLES["assistant"]]


def sampled(message: dict[str, Any]) -> list[int]:
    """Tokens in which an answer is sampled."""
    shift = _SAMPLED_ELSEWHERE if _said(message).startswith("~") else 0
    return [*(ord(letter) + shift for letter in _said(message)), END]


def text_of(token: int) -> str:
    """What the engine calls a token of a sign below 5,000."""
    return "</s>" if token == END else chr(token % _SAMPLED_ELSEWHERE)


def logprob(token: int, place: int) -> float:
    """Of a token at a place; no two engines differ."""
    return -((31 * token + 7 * place) % 97) / 16 - 0.0625


def logprobs(tokens: Sequence[int]) -> list[float]:
    """Of all tokens of an answer."""
    return [logprob(token, place) for place, token in enumerate(tokens)]


def scaled(value: float, temperature: float | None) -> float:
    """A log-probability after the temperature, as if there were one other token."""
    if temperature in (None, 1):
        return value
    this, other = math.exp(value) ** (1 / temperature), (-math.expm1(value)) ** (1 / temperature)
    return math.log(this / (this + other))


def message_of(asked: dict[str, Any], index: int) -> dict[str, Any]:
    """What choice ``index`` answers."""
    stub = asked.get("stub", {})
    reply = stub.get("reply", "ok")
    text = reply[index] if isinstance(reply, list) else reply
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if stub.get("reasoning"):
        message["reasoning_content"] = stub["reasoning"]
    if stub.get("refusal"):
        message["refusal"] = stub["refusal"]
    if stub.get("calls"):
        message["tool_calls"] = [
            {
                "id": f"call_{stub.get('turn', '')}{number}",
                "type": "function",
                "function": {"name": name, "arguments": stub.get("arguments", '{"x": 1}')},
            }
            for number, name in enumerate(stub["calls"])
        ]
    return message


def _said(message: dict[str, Any]) -> str:
    """As templates do: calls as objects, whatever spaces their JSON has."""
    calls = "".join(
        f"<{call['function']['name']} {json.dumps(json.loads(call['function']['arguments']))}>"
        for call in message.get("tool_calls") or ()
    )
    return _thought(message) + _written(message.get("content")) + calls


def _written(content: Any) -> str:
    """A text, or parts of which an image is its address in brackets."""
    if isinstance(content, list):
        return "".join(part.get("text") or f"[{part['image_url']['url']}]" for part in content)
    return content or ""


def _thought(message: dict[str, Any]) -> str:
    reasoning = message.get("reasoning_content")
    return f"({reasoning})" if reasoning else ""


LENGTH = 131_072
"""Tokens of the longest request: some agents refuse models of less than 64,000."""


class TokenEngine(StubEngine):
    """``with TokenEngine("vllm") as engine: ...``; ``option`` is its ``--engine`` argument."""

    script: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    """gives ``stub`` of requests that say nothing of it."""

    def __init__(self, kind: str, port: int = 0, serves: str | None = None) -> None:
        """Args: ``vllm`` or ``sglang``, the port, 0 for a free one, and the one model that there
        is; any where that is None."""
        super().__init__(port, [Route("/tokenize", self._tokenize, methods=["POST"])])
        self.serves = serves
        self.kind = kind
        self.option = f"{kind}={self.url}"

    def _asked(self, seen: Seen) -> dict[str, Any]:
        asked = seen.json
        if "x-stub" in seen.headers:
            asked["stub"] = json.loads(seen.headers["x-stub"])
        elif self.script is not None:
            asked["stub"] = self.script(asked)
        return asked

    def _refusal(self, asked: dict[str, Any]) -> Response | None:
        if self.serves not in (None, asked["model"]):
            sentence = f"The model `{asked['model']}` does not exist."
            return JSONResponse({"error": {"message": sentence, "code": 404}}, 404)
        if asked.get("stub", {}).get("garbage"):
            return JSONResponse({"what": "is this"})
        refused = ("return_prompt_token_ids", "return_token_ids", "return_meta_info")
        if self.kind == "sglang" and asked.get("stream") and any(map(asked.get, refused)):
            return JSONResponse({"error": {"message": "not with streaming"}}, 400)
        return None

    def _whole(self, asked: dict[str, Any], path: str) -> dict[str, Any]:
        return _whole(asked, self.kind)

    def _stream(self, asked: dict[str, Any], seen: Seen) -> AsyncIterator[bytes]:
        return _vllm_stream(asked, seen)

    async def _models(self, request: Request) -> Response:
        card = {"id": self.serves or "stub", "created": 1, "max_model_len": LENGTH}
        return JSONResponse({"object": "list", "data": [card]})

    async def _tokenize(self, request: Request) -> Response:
        """vLLM renders messages; SGLang takes a text."""
        asked = await request.json()
        if self.kind == "sglang":
            return JSONResponse({"object": "error", "message": "prompt: Field required"}, 400)
        tokens = prompt_of(asked["messages"])
        return JSONResponse({"count": len(tokens), "max_model_len": LENGTH, "tokens": tokens})


def _finish(asked: dict[str, Any], message: dict[str, Any]) -> str:
    usual = "tool_calls" if "tool_calls" in message else "stop"
    return asked.get("stub", {}).get("finish", usual)


def _whole(asked: dict[str, Any], kind: str) -> dict[str, Any]:
    """An answer that is not streamed, with what the engine was asked to tell."""
    prompt, choices, total = prompt_of(asked["messages"]), [], 0
    for index in range(asked.get("n", 1)):
        message = message_of(asked, index)
        tokens = sampled(message)
        total += len(tokens)
        thought = message.pop("reasoning_content", None)
        choice = {
            "index": index,
            "message": {**message, _REASONING[kind]: thought},
            "logprobs": _content(tokens, 0) if asked.get("logprobs") else None,
            "finish_reason": _finish(asked, message),
        }
        if kind == "vllm":
            choice |= {"stop_reason": None}
            choice["token_ids"] = tokens if asked.get("return_token_ids") else None
        else:
            choice["matched_stop"] = END
        if asked.get("return_prompt_token_ids"):
            choice["prompt_token_ids"] = prompt
        if asked.get("return_meta_info"):
            values = [scaled(one, asked.get("temperature")) for one in logprobs(tokens)]
            told = [
                [value, token, text_of(token)] for value, token in zip(values, tokens, strict=True)
            ]
            choice["meta_info"] = {"id": "1", "output_token_logprobs": told}
        choices.append(choice)
    head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": asked["model"]}
    whole = {**head, "choices": choices, "usage": _usage(asked, prompt, total)}
    if kind == "sglang":
        return {**whole, "metadata": {"weight_version": "default"}}
    return {**whole, "prompt_token_ids": prompt if asked.get("return_token_ids") else None}


async def _vllm_stream(asked: dict[str, Any], seen: Seen) -> AsyncIterator[bytes]:
    stub, prompt, total = asked.get("stub", {}), prompt_of(asked["messages"]), 0
    ids = bool(asked.get("return_token_ids"))
    count = asked.get("n", 1)
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1}
    head["model"] = asked["model"]
    for index in range(count):
        role = {"index": index, "delta": {"role": "assistant", "content": ""}}
        first = {**head, "choices": [{**role, "logprobs": None, "finish_reason": None}]}
        yield event({**first, "prompt_token_ids": prompt if ids else None})
    answers = [message_of(asked, index) for index in range(count)]
    rows = [sampled(answer) for answer in answers]
    for place in range(max(map(len, rows))):
        for index, row in enumerate(rows):
            if place >= len(row):
                continue
            if stub.get("gated"):
                await seen.gate.acquire()
            if place == stub.get("cut"):
                if stub.get("end"):
                    return
                raise RuntimeError("the connection breaks, as asked")
            last = place + 1 == len(row)
            delta = _delta(answers[index], place, last)
            choice: dict[str, Any] = {"index": index, "delta": delta, "logprobs": None}
            if asked.get("logprobs"):
                choice["logprobs"] = _content([row[place]], place)
            choice["finish_reason"] = _finish(asked, answers[index]) if last else None
            choice["token_ids"] = [row[place]] if ids else None
            # Without text vLLM sends an event only for what stands beside it.
            if delta or last or ids or asked.get("logprobs"):
                yield event({**head, "choices": [choice]})
            total += 1
    if stub.get("error"):
        yield event({"error": {"message": "the engine failed", "code": 500}})
    if (asked.get("stream_options") or {}).get("include_usage"):
        yield event({**head, "choices": [], "usage": _usage(asked, prompt, total)})
    yield b"data: [DONE]\n\n"


def _delta(message: dict[str, Any], place: int, last: bool) -> dict[str, Any]:
    """The text as it comes; calls of tools all at once at the end, as some parsers do."""
    thought, text = _thought(message), message["content"] or ""
    if place < len(thought):
        # The marks around it are tokens without text.
        letter = message["reasoning_content"][place - 1 : place] if place else ""
        return {"reasoning": letter} if letter else {}
    if place < len(thought) + len(text):
        return {"content": text[place - len(thought)]}
    if last and "refusal" in message:
        return {"refusal": message["refusal"]}
    calls = message.get("tool_calls")
    if last and calls:
        return {"tool_calls": [{**call, "index": number} for number, call in enumerate(calls)]}
    return {}


def _content(tokens: Sequence[int], start: int) -> dict[str, Any]:
    values = [logprob(token, start + place) for place, token in enumerate(tokens)]
    entries = zip(map(text_of, tokens), values, strict=True)
    return {
        "content": [{"token": text, "logprob": one, "top_logprobs": []} for text, one in entries]
    }


def _usage(asked: dict[str, Any], prompt: Sequence[int], total: int) -> dict[str, Any]:
    counts = {"prompt_tokens": len(prompt), "completion_tokens": total}
    more = asked.get("stub", {}).get("usage", {})
    return {**counts, "total_tokens": len(prompt) + total, **more}
