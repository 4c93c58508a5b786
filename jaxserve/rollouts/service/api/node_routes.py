"""Routes for nodes and their operators. The service sends nodes nothing: nodes ask."""

from __future__ import annotations

import base64
from collections.abc import Callable

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from jaxserve.checks import JsonObject
from jaxserve.gateway.http.json_http import command_of, plain_json
from jaxserve.rollouts.service.cluster.registry import NodeRegistry, UnknownNode
from jaxserve.rollouts.service.settings import OWN_NODE
from jaxserve.rollouts.service.state.lifecycle import lease_from_json
from jaxserve.rollouts.service.state.session_writer import DatabaseWriter
from jaxserve.runtime.hosts import is_loopback

_LONGEST_HEARTBEAT = 2**24
_LONGEST_MOVE = 2**31
"""Bytes; a change of state may carry a trajectory."""
_WITHIN_S = 600.0
"""Time limit of a request's body."""


class NodeRoutes:
    """Routes under ``/nodes``."""

    def __init__(
        self, nodes: NodeRegistry, writer: DatabaseWriter, changed: Callable[[], None]
    ) -> None:
        """Args: the registry, the writer of progress, and a callback for changes."""
        self._nodes, self._writer, self._changed = nodes, writer, changed

    def routes(self) -> list[Route]:
        """The routes."""
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
        body = JsonObject(await command_of(request), "node", known)
        if body.get("id") == OWN_NODE:
            raise HTTPException(400, f"id is {OWN_NODE!r}, which is the service's own node")
        id = self._nodes.register(body, elsewhere=_is_elsewhere(request))
        self._changed()
        return plain_json({"id": id}, 201)

    async def _heartbeat(self, request: Request) -> Response:
        """``{"start", "has", "load"}``: answers with the node's leases, and those new to it."""
        body = await _body(request, _LONGEST_HEARTBEAT, ("start", "has", "load"))
        id = self._note_heartbeat(request, body)
        self._nodes.schedule()
        has = {tuple(key) for key in body.get("has", ())}
        leases = self._nodes.leases(id)
        return plain_json(
            {
                "held": [lease.key for lease in leases],
                "new": [lease.to_json() for lease in leases if lease.key not in has],
            }
        )

    async def _move(self, request: Request) -> Response:
        """Moves a session to a state; ``moved`` is false where the lease is void."""
        known = ("start", "lease", "state", "reason", "values", "line")
        body = await _body(request, _LONGEST_MOVE, known)
        self._note_heartbeat(request, body)
        lease, line = lease_from_json(body["lease"]), base64.b64decode(body["line"])
        values = dict(body.inside("values", ("attempt", "episode", "run", "result")))
        moved = await self._writer.try_move(
            lease, body.text("state"), body.get("reason", ""), values, line
        )
        return plain_json({"moved": moved})

    async def _leave(self, request: Request) -> Response:
        body = await _body(request, _LONGEST_HEARTBEAT, ("start",))
        try:
            self._nodes.leave(request.path_params["id"], body.text("start"))
        except UnknownNode:
            raise _unknown() from None
        self._changed()
        return plain_json({})

    async def _drain(self, request: Request) -> Response:
        """Stops new sessions for a node; its own ones end there."""
        return self._drained(request, True)

    async def _resume(self, request: Request) -> Response:
        return self._drained(request, False)

    def _drained(self, request: Request, draining: bool) -> Response:
        id = request.path_params["id"]
        self._nodes.drain(id, draining)
        self._changed()
        return plain_json({"id": id, "draining": draining})

    def _note_heartbeat(self, request: Request, body: JsonObject) -> str:
        id = request.path_params["id"]
        try:
            self._nodes.heartbeat(id, body.text("start"), body.get("load"))
        except UnknownNode:
            raise _unknown() from None
        return id


def _is_elsewhere(request: Request) -> bool:
    """Whether another machine sent a request. A tunnel or proxy of this machine hides that."""
    if request.client is None:
        return False
    client = request.client.host
    # Client address equals server address: the client is this machine.
    server = request.scope.get("server")
    is_own = server is not None and client == server[0]
    return not (is_own or is_loopback(client))


async def _body(request: Request, longest: int, known: tuple[str, ...]) -> JsonObject:
    return JsonObject(await command_of(request, longest, _WITHIN_S), "the command", known)


def _unknown() -> HTTPException:
    return HTTPException(404, "this start of the node is not registered")
