"""Routing: the engine of a deployment that gets the next request."""

from __future__ import annotations

from collections.abc import Sequence

from jaxserve.sim.reference.engine import Engine
from jaxserve.sim.reference.request import Request
from jaxserve.sim.reference.settings import Routing

LOAD_WEIGHT = 0.5
"""Weight of an engine's relative load against the matched share of a prompt."""


class Router:
    """Chooses engines by a routing."""

    def __init__(self, routing: Routing) -> None:
        self.routing = routing
        self._turn = 0

    @property
    def waits(self) -> bool:
        """Whether requests wait at the router until an engine has room."""
        return self.routing is Routing.LEAST_LOADED

    def choose(self, request: Request, engines: Sequence[Engine]) -> Engine:
        """The engine for ``request``, of at least one."""
        if self.routing is Routing.LEAST_LOADED:
            return min(engines, key=lambda engine: engine.load_tokens)
        self._turn = (self._turn + 1) % len(engines)
        in_turn = [*engines[self._turn :], *engines[: self._turn]]
        if self.routing is Routing.ROUND_ROBIN:
            return in_turn[0]
        most = max(engine.load_tokens for engine in engines) or 1

        def score(engine: Engine) -> float:
            matched = engine.cached_tokens(request) / request.prompt_tokens
            return matched - LOAD_WEIGHT * engine.load_tokens / most

        return max(in_turn, key=score)
