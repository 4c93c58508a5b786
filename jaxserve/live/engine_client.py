"""Client of an OpenAI-compatible engine, with the metrics and the control routes of vLLM."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from jaxserve import checks
from jaxserve.errors import InputError
from jaxserve.gateway.dialects.dialect import GIVEN_UP, finishes_by_index, openai_failed
from jaxserve.gateway.engines.scrape import parse_pool_tokens
from jaxserve.gateway.http.events import EventReader, StreamEvent

_KEEP_ALIVE_S = 2.0  # engines' uvicorn closes idle connections after 5 s
_CONNECT_S = 10.0
_SILENT_S = 300.0
_SHOWN = 200
"""Most characters of an engine's response in an error."""
_READ = 65_536
"""Most bytes read of an error response."""
_MOST_TOKENS = 2**40
"""Most tokens that a usage may count."""
_MAX_EVENT_BYTES = 2**20
_SPARE_EVENTS = 8
"""Events of a stream beyond one per token: role, end, usage."""


class EngineError(InputError):
    """A failed request to an engine."""

    def __init__(self, sentence: str, status: int | None = None, *, sent: bool = True) -> None:
        """Args: the failure, the HTTP status if the engine answered with an error, and whether a
        connection was made."""
        super().__init__(sentence)
        self.status, self.sent = status, sent

    @property
    def refused(self) -> bool:
        """Whether the engine generated nothing for the request."""
        return self.status is not None or not self.sent


@dataclass(frozen=True)
class Target:
    """Address and credentials of an engine."""

    url: str
    """address without a path."""
    key: str | None = field(default=None, repr=False)
    """API key; None if the engine needs none."""
    control_token: str | None = field(default=None, repr=False)
    """control token of the plug-in jaxserve-vllm."""
    model: str | None = None
    """model name in requests; None for the first model that the engine lists."""
    gateway_url: str | None = None
    """address of a gateway that completions go through, without a path; None for the engine itself.
    A gateway on the engine's host takes time from the engine, which is then measured as well."""
    gateway_token: str | None = field(default=None, repr=False)
    """the gateway's token for clients; None if it needs none."""

    def __post_init__(self) -> None:
        checks.address("--url", self.url, path=False)
        if self.gateway_url is not None:
            checks.address("--gateway", self.gateway_url, path=False)

    @property
    def front(self) -> tuple[str, str | None]:
        """Address and key for completions."""
        if self.gateway_url is None:
            return self.url, self.key
        return self.gateway_url, self.gateway_token


@dataclass(frozen=True)
class TimedCompletion:
    """A completion that was streamed to its end; times of the monotonic clock, s."""

    sent_s: float
    """time of the request."""
    first_s: float
    """time of the first event with output."""
    last_s: float
    """time of the last event with output."""
    prompt_tokens: int
    """prompt tokens, counted by the engine."""
    output_tokens: int
    """output tokens, counted by the engine."""


class EngineClient:
    """``async with EngineClient(target) as engine``."""

    path = "/v1/completions"
    """path of completions."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.model = ""
        """model name in requests."""
        self.longest: int | None = None
        """tokens of the longest sequence; None if unknown."""

    async def __aenter__(self) -> EngineClient:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=_SILENT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
        )
        try:
            await self._read_model()
        except BaseException:
            await self._session.close()
            raise
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._session.close()

    async def complete(
        self,
        prompt: list[int] | str,
        output_tokens: int,
        headers: Mapping[str, str] | None = None,
        priority: int | None = None,
        on_output: Callable[[float], None] = lambda time_s: None,
    ) -> TimedCompletion:
        """Streams a completion of exactly ``output_tokens``.

        Args:
          prompt: token ids, or text.
          headers: further request headers.
          priority: vLLM's field, for engines that serve by priority; lower values first.
          on_output: called with the time of every event with output, monotonic clock, s.

        Raises:
          InputError: the engine cannot be reached, answers with an error, streams more than the
            requested tokens, breaks the stream off, or does not count tokens.
        """
        body = self._body(prompt, output_tokens) | {
            "model": self.model,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if priority is not None:
            body["priority"] = priority
        sent_s, first_s, last_s = time.monotonic(), None, 0.0
        usage: Any = None
        events, finish = 0, None
        url, key = self.target.front
        request = self._ask("POST", self.path, key, headers, url, json=body)
        async with request as response:
            await self._expect_success(response, self.path, url)
            async for now, event in self._events(response, url):
                events += 1
                if events > output_tokens + _SPARE_EVENTS:
                    raise EngineError(
                        f"{self._name(url)} streams more than the {output_tokens} tokens "
                        "that it was asked for"
                    )
                # A model that thinks in silence may end without output.
                finish = finishes_by_index(event.get("choices"), "finish_reason").get(0) or finish
                if self._has_output(event) or (first_s is None and finish):
                    first_s, last_s = (now if first_s is None else first_s), now
                    on_output(now)
                usage = event.get("usage") or usage
        if finish is None or finish in GIVEN_UP:
            reason = "gives no finish reason" if finish is None else f"says {finish}"
            raise EngineError(f"{self._name(url)} broke a completion off: its stream {reason}")
        if first_s is None:
            raise EngineError(f"{self._name(url)} streamed a completion without output")
        counts = checks.JsonObject(usage or {}, "the engine's usage")
        prompt_tokens, output = (
            counts.whole(name, 1, _MOST_TOKENS) for name in ("prompt_tokens", "completion_tokens")
        )
        return TimedCompletion(sent_s, first_s, last_s, prompt_tokens, output)

    async def _events(
        self, response: aiohttp.ClientResponse, url: str
    ) -> AsyncIterator[tuple[float, dict[str, Any]]]:
        """Objects of a stream, and the times of their arrival; raises EngineError at a failure."""
        reader = EventReader()
        async for chunk in response.content.iter_any():
            for event in reader.feed(chunk):
                if (content := self._content(event, url)) is not None:
                    yield time.monotonic(), content
            if len(reader.rest) > _MAX_EVENT_BYTES:
                raise EngineError(f"{self._name(url)} streams an event that does not end")
        for event in reader.end():
            if (content := self._content(event, url)) is not None:
                yield time.monotonic(), content

    def _content(self, event: StreamEvent, url: str) -> dict[str, Any] | None:
        """The object of an event, unless the event is a failure."""
        if event.failure is not None:
            raise self._failed(self.path, str(event.failure), url=url)
        if event.content is not None and openai_failed(event.content):
            raise self._failed(self.path, json.dumps(event.content), url=url)
        return event.content

    async def metrics(self) -> str | None:
        """The text of ``/metrics``; None if the engine has none."""
        async with self._ask("GET", "/metrics", self.target.key) as response:
            return await response.text(errors="replace") if response.status == 200 else None

    async def kv_pool_tokens(self) -> int | None:
        """KV pool of vLLM, tokens, over all its data-parallel engines; None without the metric.

        Raises:
          InputError: the engine cannot be reached, or a metric is no number.
        """
        text = await self.metrics()
        tokens = parse_pool_tokens(text) if text else None
        return int(tokens) if tokens else None

    async def plug_in(self, path: str) -> Mapping[str, Any] | None:
        """The engine's answer at ``/jaxserve/PATH``; None without the plug-in and its scheduler.

        Raises:
          InputError: the plug-in refuses, or the server has several engines.
        """
        return await self._plug_in("GET", path)

    async def turn(self, knobs: Mapping[str, float], lease_s: float) -> Mapping[str, Any] | None:
        """Turns knobs of the plug-in under a lease; returns the state then, as ``plug_in``.

        Raises:
          InputError: the plug-in refuses.
        """
        return await self._plug_in("PUT", "control", {"lease_s": lease_s, "knobs": dict(knobs)})

    async def release(self) -> None:
        """Ends the lease: the static values return.

        Raises:
          InputError: the plug-in refuses.
        """
        await self._plug_in("DELETE", "control")

    async def _plug_in(
        self, method: str, path: str, command: Mapping[str, Any] | None = None
    ) -> Mapping[str, Any] | None:
        token = self.target.control_token
        async with self._ask(method, f"/jaxserve/{path}", token, json=command) as response:
            if response.status in (404, 405, 503):
                return None
            await self._expect_success(response, "/jaxserve")
            answer = _json_object(await response.read())
        engines = answer.get("engines")
        if not isinstance(engines, list) or not engines:
            return None
        if len(engines) > 1:
            raise InputError(
                f"engine {self.target.url} has {len(engines)} data-parallel engines; "
                "only a server with one is measured"
            )
        return checks.JsonObject(engines[0], "the plug-in's answer")

    async def _read_model(self) -> None:
        """Reads the model name and the longest sequence."""
        async with self._ask("GET", "/v1/models", self.target.key) as response:
            await self._expect_success(response, "/v1/models")
            models = _json_object(await response.read()).get("data")
        if not isinstance(models, list) or not models or not isinstance(models[0], Mapping):
            raise InputError(f"engine {self.target.url} lists no model at /v1/models")
        cards = [card for card in models if isinstance(card, Mapping)]
        named = [card for card in cards if card.get("id") == self.target.model]
        card = (named or cards)[0]
        self.model = self.target.model or str(card.get("id"))
        longest = card.get("max_model_len") if named or self.target.model is None else None
        self.longest = longest if isinstance(longest, int) and longest > 0 else None

    def _body(self, prompt: list[int] | str, output_tokens: int) -> dict[str, Any]:
        """Fields of the request body, without those of all streams."""
        return {
            "prompt": prompt,
            "max_tokens": output_tokens,
            "temperature": 0,
            "ignore_eos": True,
        }

    def _has_output(self, event: Mapping[str, Any]) -> bool:
        """Whether an event of a stream has output."""
        return bool(event.get("choices"))

    def _ask(
        self,
        method: str,
        path: str,
        token: str | None,
        headers: Mapping[str, str] | None = None,
        url: str | None = None,
        **options: Any,
    ) -> Any:
        shown = {} if token is None else {"Authorization": f"Bearer {token}"}
        url = url or self.target.url
        return _CheckedRequest(
            self._name(url),
            self._session.request(
                method,
                url + path,
                headers={**shown, **(headers or {})},
                allow_redirects=False,
                **options,
            ),
        )

    async def _expect_success(
        self, response: aiohttp.ClientResponse, path: str, url: str | None = None
    ) -> None:
        if response.status != 200:
            text = (await response.content.read(_READ)).decode(errors="replace")
            raise self._failed(path, f"{response.status} {text}", response.status, url)

    def _name(self, url: str) -> str:
        """The server at an address, for errors."""
        return f"{'gateway' if url == self.target.gateway_url else 'engine'} {url}"

    def _failed(
        self, path: str, answer: str, status: int | None = None, url: str | None = None
    ) -> EngineError:
        # Some engines repeat a wrong key in their response.
        target = self.target
        for secret in (target.key, target.control_token, target.gateway_token):
            answer = answer.replace(secret, "***") if secret else answer
        shown = " ".join(answer.split())[:_SHOWN]
        name = self._name(url or target.url)
        return EngineError(f"{name} answers {path} with an error: {shown}", status)


class ChatClient(EngineClient):
    """Client of chat completions of hosted models: prompts are text; the model ends outputs."""

    path = "/v1/chat/completions"

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self._limit = "max_tokens"
        self._parameters: dict[str, Any] = {"temperature": 0}

    async def complete(self, *arguments: Any, **options: Any) -> TimedCompletion:
        """See ``EngineClient``; parameters that the model refuses are left out from then on."""
        while True:
            asked = self._limit, *self._parameters
            try:
                return await super().complete(*arguments, **options)
            except EngineError as error:
                if error.status in (400, 422):
                    self._ask_less(str(error))
                if asked == (self._limit, *self._parameters):
                    raise

    def _ask_less(self, refusal: str) -> None:
        """Reasoning models take ``max_completion_tokens`` only, and no temperature."""
        if "max_tokens" in refusal:
            self._limit = "max_completion_tokens"
        for name in [name for name in self._parameters if name in refusal]:
            del self._parameters[name]

    def _body(self, prompt: list[int] | str, output_tokens: int) -> dict[str, Any]:
        if not isinstance(prompt, str):
            raise InputError("a chat is asked in words, not in token ids")
        return {
            "messages": [{"role": "user", "content": prompt}],
            self._limit: output_tokens,
            **self._parameters,
        }

    def _has_output(self, event: Mapping[str, Any]) -> bool:
        choices = event.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        delta = choice.get("delta") if isinstance(choice, Mapping) else None
        if not isinstance(delta, Mapping):
            return False
        return any(value for name, value in delta.items() if name != "role")


class _CheckedRequest:
    """A request whose connection errors become ``EngineError``."""

    def __init__(self, name: str, request: Any) -> None:
        """Args: name of the server, for errors; and the request."""
        self._name, self._request = name, request

    async def __aenter__(self) -> aiohttp.ClientResponse:
        try:
            return await self._request.__aenter__()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._problem(error) from None

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        await self._request.__aexit__(kind, error, trace)
        if isinstance(error, aiohttp.ClientError | TimeoutError | OSError):
            raise self._problem(error) from None

    def _problem(self, error: BaseException) -> EngineError:
        sent = not isinstance(error, aiohttp.ClientConnectorError)
        text = f"{self._name} cannot be reached: {error or type(error).__name__}"
        return EngineError(text, sent=sent)


async def cancel(tasks: list[asyncio.Task[Any]]) -> None:
    """Cancels tasks and waits for their end."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _json_object(text: bytes) -> dict[str, Any]:
    """A parsed JSON object; empty if the text is none."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
