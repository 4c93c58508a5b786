"""Requests to vLLM's chat and completion routes, parsed and checked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxserve.checks import JsonObject, refuse, whole
from jaxserve.mock_engine.errors import VllmError, bad_request
from jaxserve.mock_engine.outputs import SamplingParams
from jaxserve.mock_engine.tokens import Vocabulary

MAX_LOGPROBS = 20
MAX_CHOICES = 1024
DEFAULT_MAX_TOKENS = 16
"""Output limit of a completion without max_tokens."""
_LEAST, _MOST = 1e-9, 1e9
_IGNORED = {
    "temperature": (0.0, _MOST),
    "top_p": (_LEAST, 1.0),
    "min_p": (0.0, 1.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "repetition_penalty": (_LEAST, _MOST),
}
"""Sampling parameters without an effect here, and the range that vLLM accepts."""
_INT64 = 2**63
_UNKNOWN = ("echo", "prompt_logprobs", "suffix", "structured_outputs", "use_beam_search")
"""Fields that would change the output and that the mock engine does not implement."""


@dataclass(frozen=True)
class CompletionRequest:
    """One parsed request."""

    chat: bool
    """True for a chat completion, False for a completion."""
    prompts: list[list[int]]
    """token ids of each prompt; a chat has one prompt."""
    samplings: list[SamplingParams]
    """sampling parameters of each prompt."""
    choices: int
    """outputs per prompt."""
    logprobs: int | None
    """likeliest tokens to list beside each token; None without log-probabilities."""
    token_ids: bool
    """whether the response lists token ids."""
    stream: bool
    """whether the response is a stream of events."""
    usage: bool
    """whether the last event of the stream has the usage."""
    running_usage: bool
    """whether every event of the stream has the usage."""
    priority: int
    """lower values are served first."""


class RequestReader:
    """Parses requests to one model."""

    def __init__(self, name: str, vocabulary: Vocabulary, max_model_len: int) -> None:
        """Args: the model's name, its vocabulary, and the most tokens of prompt and output."""
        self._name = name
        self._vocabulary = vocabulary
        self._max_model_len = max_model_len

    def read(self, body: Any, chat: bool, priority: str | None) -> CompletionRequest:
        """Parses a request.

        Args:
          body: its parsed JSON.
          chat: whether the route is that of chat completions.
          priority: header ``X-Vllm-Priority``.

        Raises:
          VllmError: the model is unknown, or the prompt is too long.
          InputError: a field has an invalid value.
        """
        fields = _fields(body)
        self.check_model(fields)
        for name in _UNKNOWN:
            if fields.get(name):
                raise bad_request(f"{name} is not known to the mock engine", name)
        shape = fields.get("response_format")
        if shape is not None and shape != {"type": "text"}:
            raise bad_request("response_format is not known to the mock engine", "response_format")
        prompts = [self.chat_prompt(fields)] if chat else self._prompts(fields)
        for prompt in prompts:
            self._check_length(prompt)
        options = fields.inside("stream_options") if "stream_options" in fields else {}
        stream = _flag(fields, "stream")
        if options and not stream:
            raise bad_request(
                "Stream options can only be defined when `stream=True`.", "stream_options"
            )
        return CompletionRequest(
            chat=chat,
            prompts=prompts,
            samplings=[self._sampling(fields, len(prompt), chat) for prompt in prompts],
            choices=fields.whole("n", 1, MAX_CHOICES, default=1),
            logprobs=_logprobs(fields, chat),
            token_ids=_flag(fields, "return_token_ids"),
            stream=stream,
            usage=bool(options.get("include_usage")),
            running_usage=bool(options.get("continuous_usage_stats")),
            priority=_priority(fields, priority),
        )

    def check_model(self, fields: Mapping[str, Any]) -> None:
        """Raises VllmError if a request names another model."""
        model = fields.get("model", self._name)
        if model != self._name:
            raise VllmError(
                404,
                "NotFoundError",
                f"The model `{model}` does not exist. Valid aliases: {self._name}.",
                "model",
            )

    def chat_prompt(self, fields: JsonObject) -> list[int]:
        """Token ids of a chat."""
        messages = []
        for place, message in enumerate(fields.entries("messages")):
            said = JsonObject(message, f"messages[{place}]")
            messages.append((said.text("role"), _content(said)))
        return self._vocabulary.chat(messages)

    def _prompts(self, fields: JsonObject) -> list[list[int]]:
        given = fields.get("prompt")
        if isinstance(given, str):
            return [self._vocabulary.prompt(given)]
        if not isinstance(given, list) or not given:
            refuse("prompt", given, "a text, token ids, or a list of these")
        if isinstance(given[0], int):
            return [self.ids(given)]
        return [
            self._vocabulary.prompt(one) if isinstance(one, str) else self.ids(one) for one in given
        ]

    def ids(self, given: Any) -> list[int]:
        """Token ids of a request, checked."""
        if not isinstance(given, list) or not given:
            refuse("prompt", given, "a text, or a list of token ids")
        most = self._vocabulary.size - 1
        # Prompts are long: tokens are checked one by one only if any of them is wrong.
        if set(map(type, given)) == {int} and min(given) >= 0 and max(given) <= most:
            return given
        return [whole("a token id of prompt", token, 0, most) for token in given]

    def _check_length(self, prompt: list[int]) -> None:
        if len(prompt) > self._max_model_len:
            raise bad_request(
                f"This model's maximum context length is {self._max_model_len} tokens. However, "
                f"your prompt contains {len(prompt)} input tokens, which exceeds this limit even "
                "without any output tokens. Please reduce the length of the input prompt.",
                "input_tokens",
            )

    def _sampling(self, fields: JsonObject, prompt_tokens: int, chat: bool) -> SamplingParams:
        longest = self._max_model_len - prompt_tokens
        name = "max_completion_tokens" if "max_completion_tokens" in fields else "max_tokens"
        asked = fields.whole(name, 1, default=longest if chat else DEFAULT_MAX_TOKENS)
        if asked > self._max_model_len:
            raise bad_request(
                f"{name}={asked} cannot be greater than max_model_len={self._max_model_len}. "
                "Please request fewer output tokens.",
                name,
            )
        max_tokens = whole("max_tokens", min(asked, longest), 1)
        for name, (low, high) in _IGNORED.items():
            if fields.get(name) is not None:
                fields.number(name, low, high)
        stop = fields.get("stop", [])
        stops = [stop] if isinstance(stop, str) else stop
        if not isinstance(stops, list) or not all(isinstance(one, str) and one for one in stops):
            refuse("stop", stop, "a text or a list of texts")
        ids = fields.get("stop_token_ids", [])
        if not isinstance(ids, list):
            refuse("stop_token_ids", ids, "a list of token ids")
        return SamplingParams(
            max_tokens=max_tokens,
            min_tokens=fields.whole("min_tokens", 0, max_tokens, default=0),
            ignore_eos=_flag(fields, "ignore_eos"),
            stop=tuple(stops),
            stop_token_ids=frozenset(
                whole("a token id of stop_token_ids", token, 0, self._vocabulary.size - 1)
                for token in ids
            ),
            keeps_stop=_flag(fields, "include_stop_str_in_output"),
            seed=fields.whole("seed", -_INT64, _INT64 - 1, default=0),
        )


def _fields(body: Any) -> JsonObject:
    """The fields of a body without nulls, which mean a missing field."""
    fields = JsonObject(body, "the request")
    return JsonObject({key: value for key, value in fields.items() if value is not None}, "request")


def _flag(fields: JsonObject, name: str) -> bool:
    return fields.flag(name) if name in fields else False


def _logprobs(fields: JsonObject, chat: bool) -> int | None:
    if not chat:
        if "logprobs" not in fields:
            return None
        return fields.whole("logprobs", 0, MAX_LOGPROBS)
    count = fields.whole("top_logprobs", 0, MAX_LOGPROBS, default=0)
    if _flag(fields, "logprobs"):
        return count
    if count:
        raise bad_request("when using `top_logprobs`, `logprobs` must be set to true.", "logprobs")
    return None


def _priority(fields: JsonObject, header: str | None) -> int:
    if header is not None:
        if not re.fullmatch(r"-?[0-9]{1,18}", header):
            raise bad_request(f"X-Vllm-Priority is {header!r:.60}; it must be a whole number")
        return int(header)
    return fields.whole("priority", -_INT64, _INT64 - 1, default=0)


def _content(message: JsonObject) -> str:
    """The text of a message, its parts joined."""
    content = message.get("content")
    if content is None:
        return ""  # an assistant message with tool calls only
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        refuse(message.name("content"), content, "a text or a list of parts")
    parts = [JsonObject(part, message.name("content")) for part in content]
    for part in parts:
        part.one_of("type", ("text",))
    return "\n".join(part.text("text") for part in parts)
