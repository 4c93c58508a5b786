"""Responses of vLLM's chat and completion routes, whole or as events."""

from __future__ import annotations

import time
from typing import Any
from uuid import uuid4

import orjson

from jaxserve.mock_engine.outputs import TokenLogprob
from jaxserve.mock_engine.sequences import SequenceGroup, Span
from jaxserve.mock_engine.tokens import Vocabulary

DONE = b"data: [DONE]\n\n"


def event(data: dict[str, Any]) -> bytes:
    """One event of a stream."""
    return b"data: %b\n\n" % orjson.dumps(data)


class CompletionResponse:
    """The response to a sequence group; events and the whole body share field names."""

    def __init__(self, group: SequenceGroup, model: str, vocabulary: Vocabulary) -> None:
        """Args: the group, the served name of the model, and its vocabulary."""
        self._group = group
        self._asked = group.asked
        self._vocabulary = vocabulary
        kind, chunk = "text_completion", "text_completion"
        if self._asked.chat:
            kind, chunk = "chat.completion", "chat.completion.chunk"
        prefix = "chatcmpl" if self._asked.chat else "cmpl"
        head = {"id": f"{prefix}-{uuid4().hex}", "created": int(time.time()), "model": model}
        self._whole = {**head, "object": kind}
        self._chunk = {**head, "object": chunk}
        self._opened = False
        self._prompt_sent: set[int] = set()

    def whole(self) -> dict[str, Any]:
        """The whole body; call it when the group is finished."""
        choices = []
        for sequence in self._group.sequences:
            span = Span(sequence.index, 0, sequence.length)
            fields = self._fields(span)
            if self._asked.chat:
                message = {"role": "assistant", "content": fields.pop("text"), "refusal": None}
                fields["message"] = message
            elif self._asked.token_ids:
                fields["prompt_token_ids"] = self._group.prompt_of(sequence.index)
            choices.append(fields)
        body = {**self._whole, "choices": choices, "usage": self._usage()}
        if self._asked.chat and self._asked.token_ids:
            body["prompt_token_ids"] = self._asked.prompts[0]
        return body

    def events(self, spans: list[Span]) -> bytes:
        """The events of new tokens."""
        parts = []
        if self._asked.chat and not self._opened:
            parts += self._opening()
        for span in spans:
            fields = self._fields(span)
            if self._asked.chat:
                fields["delta"] = {"content": fields.pop("text")}
            elif self._asked.token_ids and span.index not in self._prompt_sent:
                self._prompt_sent.add(span.index)
                fields["prompt_token_ids"] = self._group.prompt_of(span.index)
            parts.append(self._event([fields], span))
        return b"".join(parts)

    def end(self) -> bytes:
        """The last events of a stream."""
        if not self._asked.usage:
            return DONE
        return event({**self._chunk, "choices": [], "usage": self._usage()}) + DONE

    def _opening(self) -> list[bytes]:
        """Events with the assistant's role, and with the prompt's tokens if requested."""
        self._opened = True
        parts = []
        for sequence in self._group.sequences:
            delta = {"role": "assistant", "content": ""}
            choice = {"index": sequence.index, "delta": delta, "finish_reason": None}
            more = {}
            if self._asked.token_ids:
                more = {"prompt_token_ids": self._asked.prompts[0]}
            span = Span(sequence.index, 0, 0)
            parts.append(self._event([{**choice, "logprobs": None}], span, more))
        return parts

    def _event(
        self, choices: list[dict[str, Any]], span: Span, more: dict[str, Any] | None = None
    ) -> bytes:
        data = {**self._chunk, "choices": choices, **(more or {})}
        if self._asked.running_usage:
            data["usage"] = _usage(len(self._group.prompt_of(span.index)), span.stop)
        return event(data)

    def _fields(self, span: Span) -> dict[str, Any]:
        """Fields of new tokens that both routes share."""
        index, start, stop = span
        sequence = self._group.sequences[index]
        output, last = sequence.output, stop == sequence.length
        fields: dict[str, Any] = {
            "index": index,
            "text": output.text(start, stop),
            "logprobs": None,
            "finish_reason": output.finish_reason if last else None,
            "stop_reason": output.stop_reason if last else None,
        }
        if self._asked.logprobs is not None:
            count = max(1, self._asked.logprobs)
            tokens = output.logprobs(start, stop, count)
            fields["logprobs"] = (
                self._chat_logprobs(tokens)
                if self._asked.chat
                else self._completion_logprobs(tokens, output.text_before(start))
            )
        if self._asked.token_ids:
            fields["token_ids"] = output.token_ids(start, stop)
        return fields

    def _chat_logprobs(self, tokens: list[list[TokenLogprob]]) -> dict[str, Any]:
        listed = self._asked.logprobs or 0
        content = []
        for choices in tokens:
            likeliest = [self._chat_token(one) for one in choices]
            content.append({**likeliest[0], "top_logprobs": likeliest[:listed]})
        return {"content": content}

    def _chat_token(self, choice: TokenLogprob) -> dict[str, Any]:
        text = self._vocabulary.text(choice.token)
        return {"token": text, "logprob": choice.logprob, "bytes": list(text.encode())}

    def _completion_logprobs(self, tokens: list[list[TokenLogprob]], offset: int) -> dict[str, Any]:
        texts = [self._vocabulary.text(choices[0].token) for choices in tokens]
        offsets = []
        for text in texts:
            offsets.append(offset)
            offset += len(text)
        return {
            "text_offset": offsets,
            "token_logprobs": [choices[0].logprob for choices in tokens],
            "tokens": texts,
            "top_logprobs": [
                {self._vocabulary.text(one.token): one.logprob for one in choices}
                for choices in tokens
            ],
        }

    def _usage(self) -> dict[str, int]:
        sent = sum(sequence.sent for sequence in self._group.sequences)
        return _usage(sum(map(len, self._asked.prompts)), sent)


def _usage(prompt: int, output: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
    }
