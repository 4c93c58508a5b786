"""Queries that an engine answers at once: health, models, and the tokens of a prompt.

Queries are neither queued nor recorded, since they sample no token.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

import orjson
from starlette.types import Receive, Scope

from jaxserve.gateway.dialects.canonical import Chat
from jaxserve.gateway.dialects.engine_reader import engine_error
from jaxserve.gateway.dialects.routes import translate
from jaxserve.gateway.engines.admission import Pool, Replica
from jaxserve.gateway.engines.specs import EngineSpec
from jaxserve.gateway.engines.upstream import NotConnected, Upstream, chunks, join
from jaxserve.gateway.exchange.exchange import refuse_odd_status
from jaxserve.gateway.exchange.in_flight import body_timeout, first_byte_timeout
from jaxserve.gateway.exchange.request import read_body, requested_pool
from jaxserve.gateway.http.errors import RequestError
from jaxserve.gateway.http.headers import RawHeaders, client_headers, engine_headers
from jaxserve.gateway.http.json_http import json_object, parse_object, whole_number
from jaxserve.gateway.settings import GatewaySettings

_ANSWER_WITHIN_S = 10.0
"""Time for an engine's answer to a query, s."""
TOKENIZE = "/tokenize"
_RENDERED = (
    "messages",
    "tools",
    "chat_template",
    "chat_template_kwargs",
    "mm_processor_kwargs",
    "add_generation_prompt",
    "continue_final_message",
)
"""Fields of a chat request that change its prompt, and that vLLM's ``/tokenize`` takes."""


class EngineQueries:
    """Sends queries to the first engine that can be reached."""

    def __init__(
        self, settings: GatewaySettings, pools: Mapping[str, Pool], upstream: Upstream
    ) -> None:
        """Args: the limits, the pools, and the connections."""
        self._settings = settings
        self._pools = pools
        self._upstream = upstream

    async def get(self, path: str, query: bytes) -> tuple[int, RawHeaders, bytes]:
        """Answer of an engine to ``GET``: status, headers and body.

        Raises:
          RequestError: no engine can be reached, or the answer is late.
        """
        replicas = [one for pool in self._pools.values() for one in pool.in_order()]
        _, status, headers, body = await self._ask(replicas, "GET", path, query, lambda spec: None)
        return status, headers, body

    async def pass_on(self, scope: Scope, receive: Receive) -> tuple[int, RawHeaders, bytes]:
        """Answer of an engine to a ``POST`` whose body passes byte for byte: status, headers, body.

        Raises:
          RequestError: the body is late or too large, no engine can be reached, or the answer is
            late.
        """
        body = await self._body(scope, receive)
        replicas = requested_pool(scope["headers"], self._pools).in_order()
        _, status, headers, answer = await self._ask(
            replicas, "POST", scope["path"], b"", lambda spec: body
        )
        return status, headers, answer

    async def count_tokens(self, scope: Scope, receive: Receive) -> bytes:
        """Serves a request of a session that counts the tokens of its prompt.

        Returns:
          the body of the response.

        Raises:
          RequestError: the request is malformed, no engine can be reached or counts tokens, or the
            engine refused.
        """
        body = await self._body(scope, receive)
        pool = requested_pool(scope["headers"], self._pools)
        chat, translator = translate(
            scope["path"],
            scope["query_string"],
            json_object(body),
            answer_id="count",
            unix_s=0,
            policy=pool.replicas[0].spec.policy,
        )
        spec, status, _, answer = await self._ask(
            pool.in_order(), "POST", TOKENIZE, b"", lambda spec: _question(chat, spec)
        )
        return translator.counted(_count(spec, status, answer))

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        settings = self._settings
        try:
            async with asyncio.timeout(settings.body_s):
                return await read_body(receive, scope["headers"], settings.max_body_bytes)
        except TimeoutError:
            raise body_timeout(settings.body_s) from None

    async def _ask(
        self,
        replicas: Iterable[Replica],
        method: str,
        path: str,
        query: bytes,
        body_for: Callable[[EngineSpec], bytes | None],
    ) -> tuple[EngineSpec, int, RawHeaders, bytes]:
        """The engine that answered, with status, headers and body of its answer."""
        try:
            async with asyncio.timeout(_ANSWER_WITHIN_S):
                for replica in replicas:
                    spec, content = replica.spec, body_for(replica.spec)
                    kind = [(b"content-type", b"application/json")] if content is not None else []
                    headers = engine_headers(kind, spec.key, None)
                    try:
                        response = await self._upstream.open(
                            spec, method, path, query, headers, content
                        )
                    except NotConnected:
                        replica.unreachable()
                        continue
                    replica.reached()
                    try:
                        refuse_odd_status(response, spec.name)
                        arriving = chunks(response, spec.name)
                        body = await join(arriving, spec.name, self._settings.max_answer_bytes)
                    finally:
                        response.close()
                    return spec, response.status, client_headers(response.raw_headers), body
        except TimeoutError:
            raise first_byte_timeout(_ANSWER_WITHIN_S) from None
        raise unreachable("any")


def unreachable(engine: str) -> RequestError:
    """No connection to an engine could be made."""
    return RequestError(503, "engine_unreachable", f"engine {engine} cannot be reached", 2)


def _question(chat: Chat, spec: EngineSpec) -> bytes:
    """Body of a request to ``/tokenize``."""
    request = chat.request
    rendered = {name: request[name] for name in _RENDERED if name in request}
    return orjson.dumps({"model": spec.model or chat.model, **rendered})


def _count(spec: EngineSpec, status: int, body: bytes) -> int:
    """Tokens in an engine's answer to ``/tokenize``.

    Raises:
      RequestError: the engine does not count tokens, or refused.
    """
    if status in (404, 405) or (status >= 400 and spec.kind != "vllm"):
        # SGLang's route takes a text in place of messages.
        raise RequestError(
            501, "counting_not_supported", f"engine {spec.name} does not count tokens of a chat"
        )
    if status != 200:
        raise engine_error(status, body, spec.name)
    count = whole_number((parse_object(body) or {}).get("count"))
    if count is None:
        raise RequestError(502, "engine_garbage", f"engine {spec.name} answered without a count")
    return count
