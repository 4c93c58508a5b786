"""Routes for nodes elsewhere. They ask; only the doors of their gateways have to be reached."""

from __future__ import annotations

import base64
from collections.abc import Callable

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from jaxserve.checks import JsonObject
from jaxserve.gateway.http.json_http import command_of, plain_json
from jaxserve.rollouts.service.books import ServiceBook
from jaxserve.rollouts.service.leases import lease_of
from jaxserve.rollouts.service.nodes import Nodes, UnknownNode
from jaxserve.rollouts.service.settings import OWN_NODE
from jaxserve.runtime.hosts import is_loopback

_LONGEST_HEARTBEAT = 2**24
_LONGEST_MOVE = 2**31
"""Bytes; a move may bring a trajectory."""
_WITHIN_S = 600.0
"""For all of them, over a network."""


class NodeRoutes:
    """What nodes, and who operates them, ask for."""

    def __init__(self, nodes: Nodes, book: ServiceBook, changed: Callable[[], None]) -> None:
        """Args: all nodes, where sessions stand, and who hears of changes."""
        self._nodes, self._book, self._changed = nodes, book, changed

    def routes(self) -> list[Route]:
        """For the service."""
        one = "/nodes/{id}"
        return [
            Route("/nodes", self._all),
            Route("/nodes/register", self._register, methods=["POST"]),
            Route(f"{one}/heartbeat", self._heartbeat, methods=["POST"]),
            Route(f"{one}/move", self._move, methods=["POST"]),
            Route(f"{one}/leave", self._leave, methods=["POST"]),
            Route(f"{one}/drain", self._drain, methods=["POST"]),
            Route(f"{one}/resume", self._resume, methods=["POST"]),
        ]

    async def _all(self, request: Request) -> Response:
        return plain_json({"nodes": self._nodes.describe()})

    async def _register(self, request: Request) -> Response:
        known = ("id", "start", "pools", "models", "gateway", "control")
        asked = JsonObject(await command_of(request), "node", known)
        if asked.get("id") == OWN_NODE:
            raise HTTPException(400, f"id is {OWN_NODE!r}, which is the service's own node")
        id = self._nodes.register(asked, elsewhere=_is_elsewhere(request))
        self._changed()
        return plain_json({"id": id}, 201)

    async def _heartbeat(self, request: Request) -> Response:
        """``{"start", "has", "load"}``: tells which of what it has it keeps, and what is new."""
        asked = await _told(request, _LONGEST_HEARTBEAT, ("start", "has", "load"))
        id = self._heard(request, asked)
        self._nodes.look()
        has = {tuple(key) for key in asked.get("has", ())}
        leases = self._nodes.leases(id)
        return plain_json(
            {
                "held": [lease.key for lease in leases],
                "new": [lease.to_json() for lease in leases if lease.key not in has],
            }
        )

    async def _move(self, request: Request) -> Response:
        """A session's state changes; ``moved`` is false where its lease is over."""
        known = ("start", "lease", "state", "reason", "values", "line")
        asked = await _told(request, _LONGEST_MOVE, known)
        self._heard(request, asked)
        lease, line = lease_of(asked["lease"]), base64.b64decode(asked["line"])
        values = dict(asked.inside("values", ("attempt", "episode", "run", "result")))
        moved = await self._book.try_move(
            lease, asked.text("state"), asked.get("reason", ""), values, line
        )
        return plain_json({"moved": moved})

    async def _leave(self, request: Request) -> Response:
        asked = await _told(request, _LONGEST_HEARTBEAT, ("start",))
        try:
            self._nodes.leave(request.path_params["id"], asked.text("start"))
        except UnknownNode:
            raise _unknown() from None
        self._changed()
        return plain_json({})

    async def _drain(self, request: Request) -> Response:
        """No more sessions; those that it has end there."""
        return self._drained(request, True)

    async def _resume(self, request: Request) -> Response:
        return self._drained(request, False)

    def _drained(self, request: Request, draining: bool) -> Response:
        id = request.path_params["id"]
        self._nodes.drain(id, draining)
        self._changed()
        return plain_json({"id": id, "draining": draining})

    def _heard(self, request: Request, asked: JsonObject) -> str:
        id = request.path_params["id"]
        try:
            self._nodes.heard(id, asked.text("start"), asked.get("load"))
        except UnknownNode:
            raise _unknown() from None
        return id


def _is_elsewhere(request: Request) -> bool:
    """Whether another machine asks; who comes by a tunnel or a proxy of this one does not."""
    if request.client is None:
        return False
    asking = request.client.host
    # Who asks from the very address that it asked at is this machine, by whichever of its own.
    asked = request.scope.get("server")
    is_own = asked is not None and asking == asked[0]
    return not (is_own or is_loopback(asking))


async def _told(request: Request, longest: int, known: tuple[str, ...]) -> JsonObject:
    return JsonObject(await command_of(request, longest, _WITHIN_S), "the command", known)


def _unknown() -> HTTPException:
    return HTTPException(404, "this start of the node is not registered")
