"""Asks an OpenAI-compatible engine for completions, and for what vLLM tells beyond them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from jaxserve import checks
from jaxserve.errors import InputError
from jaxserve.gateway.engines.scrape import parse_pool_tokens

_KEEP_ALIVE_S = 2.0  # engines' uvicorn closes idle connections after 5 s
_CONNECT_S = 10.0
_SILENT_S = 300.0
_SHOWN = 200
"""Characters of an engine's answer in an error."""
_READ = 65_536
"""Bytes of an error that are read."""
_MOST_TOKENS = 2**40
"""No engine counts more in one request."""
_SPARE_EVENTS = 8
"""Events of a stream beyond one for each token: its role, its end, its usage."""


class EngineError(InputError):
    """An engine did not do what it was asked for."""

    def __init__(self, sentence: str, status: int | None = None) -> None:
        """Args: what happened, and the HTTP status it answered with, if that is what was wrong."""
        super().__init__(sentence)
        self.status = status


@dataclass(frozen=True)
class Target:
    """An engine, and how it is asked."""

    url: str
    """without a path."""
    key: str | None = field(default=None, repr=False)
    """of its interface, None where it asks for none."""
    control_token: str | None = field(default=None, repr=False)
    """of the plug-in jaxserve-vllm."""
    model: str | None = None
    """the name to ask for, None for the first that the engine lists."""
    gateway_url: str | None = None
    """a gateway in front of it that is asked for completions in its place, without a path. What the
    gateway takes from a host that it shares with the engine is then measured as well."""
    gateway_token: str | None = field(default=None, repr=False)
    """with which clients reach the gateway, None where it asks for none."""

    def __post_init__(self) -> None:
        checks.address("--url", self.url, path=False)
        if self.gateway_url is not None:
            checks.address("--gateway", self.gateway_url, path=False)

    @property
    def front(self) -> tuple[str, str | None]:
        """Where completions are asked for, and with which key."""
        if self.gateway_url is None:
            return self.url, self.key
        return self.gateway_url, self.gateway_token


@dataclass(frozen=True)
class Answer:
    """A completion that was streamed to its end; times of the monotonic clock, s."""

    sent_s: float
    """when it was asked for."""
    first_s: float
    """when its first event arrived."""
    last_s: float
    """when the last one with output did."""
    prompt_tokens: int
    """as the engine counted them."""
    output_tokens: int
    """as the engine counted them."""


class EngineClient:
    """``async with EngineClient(target) as engine``."""

    path = "/v1/completions"
    """where completions are asked for."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.model = ""
        """the name by which the engine serves its model."""
        self.longest: int | None = None
        """tokens of the longest sequence; None where the engine does not say."""

    async def __aenter__(self) -> EngineClient:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_S),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=_SILENT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
        )
        try:
            await self._look()
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
        told: Callable[[float], None] = lambda time_s: None,
    ) -> Answer:
        """Streams a completion of ``output_tokens``, which the engine may not end before.

        Args:
          headers: beside those that every request has.
          priority: vLLM's field, for engines that serve by priority; the least is served first.
          told: called with the time of every event with output, monotonic clock, s.

        Raises:
          InputError: it cannot be reached, answers with an error, streams more than was asked for,
            or does not count tokens.
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
        events = 0
        url, key = self.target.front
        asked = self._ask("POST", self.path, key, headers, url, json=body)
        async with asked as response:
            await self._expect_success(response, self.path, url)
            async for line in response.content:
                if not line.startswith(b"data: {"):
                    continue
                now = time.monotonic()
                event = _json_object(line[6:])
                if event.get("error"):
                    raise self._failed(self.path, json.dumps(event["error"]), url=url)
                events += 1
                if events > output_tokens + _SPARE_EVENTS:
                    raise EngineError(
                        f"{self._name(url)} streams more than the {output_tokens} tokens "
                        "that it was asked for"
                    )
                if self._has_output(event):
                    first_s, last_s = (now if first_s is None else first_s), now
                    told(now)
                usage = event.get("usage") or usage
        if first_s is None:
            raise EngineError(f"{self._name(url)} streamed a completion without output")
        counts = checks.JsonObject(usage or {}, "the engine's usage")
        prompt_tokens, output = (
            counts.whole(name, 1, _MOST_TOKENS) for name in ("prompt_tokens", "completion_tokens")
        )
        return Answer(sent_s, first_s, last_s, prompt_tokens, output)

    async def metrics(self) -> str | None:
        """The text of ``/metrics``; None where there is none."""
        async with self._ask("GET", "/metrics", self.target.key) as response:
            return await response.text(errors="replace") if response.status == 200 else None

    async def kv_pool_tokens(self) -> int | None:
        """KV tokens that vLLM says it has room for, of all its data-parallel engines together; None
        where there is no such metric.

        Raises:
          InputError: it cannot be reached, or its metrics are no numbers.
        """
        text = await self.metrics()
        tokens = parse_pool_tokens(text) if text else None
        return int(tokens) if tokens else None

    async def plug_in(self, path: str) -> Mapping[str, Any] | None:
        """What ``/jaxserve/...`` of jaxserve-vllm says of the one engine; None where it is not
        there, or vLLM runs without its scheduler.

        Raises:
          InputError: it refuses, or there are several engines behind the server.
        """
        return await self._plug_in("GET", path)

    async def turn(self, knobs: Mapping[str, float], lease_s: float) -> Mapping[str, Any] | None:
        """Turns knobs of the plug-in under a lease; what is then in force, as ``plug_in``.

        Raises:
          InputError: it refuses.
        """
        return await self._plug_in("PUT", "control", {"lease_s": lease_s, "knobs": dict(knobs)})

    async def release(self) -> None:
        """Ends the lease: the static values come back.

        Raises:
          InputError: it refuses.
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

    async def _look(self) -> None:
        """What the engine serves."""
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
        """What is asked, beside what every stream is asked with."""
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
        return _Reached(
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
        """Whoever is asked at an address, for errors."""
        return f"{'gateway' if url == self.target.gateway_url else 'engine'} {url}"

    def _failed(
        self, path: str, answer: str, status: int | None = None, url: str | None = None
    ) -> EngineError:
        # Some engines repeat the key that they do not like.
        target = self.target
        for secret in (target.key, target.control_token, target.gateway_token):
            answer = answer.replace(secret, "***") if secret else answer
        told = " ".join(answer.split())[:_SHOWN]
        who = self._name(url or target.url)
        return EngineError(f"{who} answers {path} with an error: {told}", status)


class ChatClient(EngineClient):
    """Asks for chats, as hosted models want it: in words, and outputs end when the model ends
    them."""

    path = "/v1/chat/completions"

    def _body(self, prompt: list[int] | str, output_tokens: int) -> dict[str, Any]:
        if not isinstance(prompt, str):
            raise InputError("a chat is asked in words, not in token ids")
        return {
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": output_tokens,
            "temperature": 0,
        }

    def _has_output(self, event: Mapping[str, Any]) -> bool:
        choices = event.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        delta = choice.get("delta") if isinstance(choice, Mapping) else None
        if not isinstance(delta, Mapping):
            return False
        return any(value for name, value in delta.items() if name != "role")


class _Reached:
    """A request whose connection problems are the user's to know."""

    def __init__(self, name: str, request: Any) -> None:
        """Args: whoever is asked, for errors; and the request."""
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
        if isinstance(error, ValueError) and not isinstance(error, InputError):
            # aiohttp's, of a line without an end.
            raise EngineError(f"{self._name} streams no events: {error!s:.80}") from None

    def _problem(self, error: BaseException) -> EngineError:
        return EngineError(f"{self._name} cannot be reached: {error or type(error).__name__}")


async def cancel(tasks: list[asyncio.Task[Any]]) -> None:
    """Ends tasks and waits until they have."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _json_object(text: bytes) -> dict[str, Any]:
    """A JSON object, an empty one for anything else."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
