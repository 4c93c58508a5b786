"""The exchange of one request with an engine, common to passthrough and recorded requests."""

from __future__ import annotations

import abc
import time
from collections.abc import AsyncIterator

import aiohttp

from jaxserve.gateway.dialects.dialect import Dialect
from jaxserve.gateway.dialects.template_policy import TemplatePolicy
from jaxserve.gateway.engines.specs import EngineSpec
from jaxserve.gateway.engines.upstream import chunks
from jaxserve.gateway.exchange.in_flight import InFlightRequest, idle_timeout
from jaxserve.gateway.exchange.request import ParsedRequest
from jaxserve.gateway.exchange.response import ResponseWriter
from jaxserve.gateway.http.errors import RequestError
from jaxserve.gateway.measure.ledger import Ledger
from jaxserve.gateway.settings import GatewaySettings


class Exchange(abc.ABC):
    """One request for output, from its arrival to the last byte of its response.

    Calls come in this order: ``received``, ``accept``, then ``body`` and ``not_connected`` for each
    engine that is tried, and ``run``; ``failed`` may follow any of them.
    """

    def __init__(
        self,
        settings: GatewaySettings,
        ledger: Ledger,
        dialect: Dialect,
        request: InFlightRequest,
        response: ResponseWriter,
        path: str,
        query: bytes,
    ) -> None:
        """Args:
        settings: limits.
        ledger: measurements.
        dialect: dialect of the client.
        request: the request in flight.
        response: writer of its response.
        path: path of the client's request.
        query: query string of the client's request.
        """
        self.settings = settings
        self.ledger = ledger
        self.dialect = dialect
        self.request = request
        self.response = response
        self.path, self.query = path, query
        """path and query of the request to an engine; a subclass that translates sets its own."""
        self.is_done = False
        """whether all of a whole answer has arrived: a connection that breaks then breaks nothing
        off."""

    def received(self, body: bytes) -> None:  # noqa: B027
        """Called with the client's body, before the body is parsed."""

    @abc.abstractmethod
    def accept(self, parsed: ParsedRequest, policy: TemplatePolicy) -> None:
        """Prepares the request for an engine.

        Args:
          parsed: the client's request.
          policy: template policy of the pool.

        Raises:
          RequestError: the request cannot be served.
        """

    @abc.abstractmethod
    def body(self, spec: EngineSpec) -> bytes:
        """Body of the request to an engine."""

    def not_connected(self) -> None:  # noqa: B027
        """Called when the engine of the last ``body`` could not be reached."""

    @abc.abstractmethod
    async def run(self, answer: aiohttp.ClientResponse, engine: str) -> None:
        """Sends the engine's answer to the client, and notes the outcome.

        Args:
          answer: response of the engine, whose headers have arrived.
          engine: name of the engine.

        Raises:
          RequestError: the answer is malformed, or broke off.
        """

    def failed(self, error: RequestError) -> None:  # noqa: B027
        """Called when the request failed; its record already holds the reason."""

    async def chunks(self, answer: aiohttp.ClientResponse, engine: str) -> AsyncIterator[bytes]:
        """Body of the engine's answer as it arrives, within the limits of time."""
        try:
            async for chunk in chunks(answer, engine):
                if self.request.record.first_byte_s is None:
                    self.request.record.first_byte_s = time.monotonic()
                yield chunk
                self.request.expect(idle_timeout, self.settings.idle_s)
        except RequestError as error:
            if not (self.is_done and error.reason == "engine_broke"):
                raise


def refuse_odd_status(answer: aiohttp.ClientResponse, engine: str) -> None:
    """Raises RequestError where an engine's answer must not reach the client."""
    if answer.status == 401:
        # Otherwise the client would blame its own token.
        raise RequestError(502, "engine_refused_key", f"engine {engine} refused the gateway's key")
    if not (200 <= answer.status < 300 or 400 <= answer.status < 600):
        raise RequestError(
            502, "engine_garbage", f"engine {engine} answered with status {answer.status}"
        )
