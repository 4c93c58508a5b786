"""The service: tasks come in, nodes get their sessions, results go out."""

from __future__ import annotations

import asyncio
import logging
import secrets
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from jaxserve.checks import JsonObject
from jaxserve.errors import InputError
from jaxserve.gateway.http.auth import has_token
from jaxserve.gateway.http.json_http import command_of, plain_json
from jaxserve.rollouts.service.books import ServiceBook
from jaxserve.rollouts.service.control import Control
from jaxserve.rollouts.service.crew import Crew
from jaxserve.rollouts.service.leftovers import LostKeys, remove_leftovers
from jaxserve.rollouts.service.node_routes import NodeRoutes
from jaxserve.rollouts.service.nodes import Nodes
from jaxserve.rollouts.service.results import Pushes, task_result
from jaxserve.rollouts.service.settings import OWN_NODE, RolloutSettings, RolloutTokens
from jaxserve.rollouts.service.state import State
from jaxserve.rollouts.service.submission import parse_task
from jaxserve.rollouts.service.views import Changes, Views
from jaxserve.rollouts.service.work import Worker

_LOG = logging.getLogger("jaxserve.rollouts")
_LONGEST_TASK = 2**20
_TASK_S = 60.0
_LOOK_S = 1.0
_LOAD_S = 2.0


class RolloutService:
    """An ASGI application, and the work behind it."""

    def __init__(self, settings: RolloutSettings, tokens: RolloutTokens, state: State) -> None:
        """Args: what the operator chose, secrets, and the tasks of earlier services."""
        self._settings, self._tokens, self._state = settings, tokens, state
        self._nodes = Nodes(state, settings)
        self._changes = Changes()
        self._due = asyncio.Event()
        self._book = ServiceBook(state, settings.save_dir / "traces", self._moved)
        self._crew: Crew | None = None
        self._load: Any = None
        routes = [
            Route("/health", self._health),
            Route("/rollout/status", self._status),
            Route("/rollout/task/submit", self._submit, methods=["POST"]),
            Route("/rollout/task/{id}", self._task),
            Route("/rollout/task/{id}/cancel", self._cancel, methods=["POST"]),
            *NodeRoutes(self._nodes, self._book, self._moved).routes(),
            *Views(state, self._nodes, self._book, self._changes, tokens.control).routes(),
        ]
        handlers: Any = {
            InputError: _refused,
            HTTPException: _failed,
            sqlite3.Error: _unkept,
            OSError: _unkept,
        }
        self._app = Starlette(routes=routes, exception_handlers=handlers, lifespan=self._life)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serves who shows the token; ``/health`` anyone."""
        guarded = scope["type"] == "http" and scope["path"] != "/health"
        if guarded and not has_token(scope["headers"], self._tokens.service):
            await _error(401, "the token is missing or wrong")(scope, receive, send)
            return
        await self._app(scope, receive, send)

    @asynccontextmanager
    async def _life(self, app: Starlette) -> AsyncIterator[None]:
        control = Control(self._settings.control, self._tokens.control)
        self._pushes = Pushes(self._state, self._settings.callback_attempts)
        if self._settings.own_node:
            self._nodes.register(_own_node(self._settings))
            self._crew = Crew(Worker(self._settings, self._tokens, self._book, control))
        lost = LostKeys(self._state, self._tokens.control)
        looking = [
            asyncio.create_task(one) for one in (self._look(), self._watch(control), lost.look())
        ]
        try:
            yield
        finally:
            for one in looking:
                one.cancel()
            if self._crew is not None:
                await self._crew.close()  # the next service goes on with it
            await self._pushes.close()
            await control.close()
            self._state.close()

    def stop(self) -> None:
        """Ends streams, which have no end of their own, so that the service can."""
        self._changes.close()

    def _moved(self) -> None:
        """Something is different."""
        self._changes.tell()
        self._due.set()

    async def _look(self) -> None:
        """Gives work to nodes, its own among them, and pushes results, again and again."""
        if self._crew is not None:
            await remove_leftovers(self._settings.save_dir)
        while True:
            self._due.clear()
            try:
                self._nodes.look()
                if self._crew is not None:
                    leases = self._nodes.leases(OWN_NODE)
                    self._crew.take([lease.key for lease in leases], leases)
                    self._nodes.alive(OWN_NODE, self._load)
                self._pushes.look()
            except sqlite3.Error:
                _LOG.exception("the state cannot be used")
                await asyncio.sleep(_LOOK_S)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._due.wait(), _LOOK_S)

    async def _watch(self, control: Control) -> None:
        """Keeps what the own gateway says of its engines."""
        while self._crew is not None:
            self._load = await control.load()
            await asyncio.sleep(_LOAD_S)

    async def _health(self, request: Request) -> Response:
        return plain_json({"status": "healthy"})

    async def _status(self, request: Request) -> Response:
        """How many sessions are in which state, and how many workers each node has."""
        nodes = {
            node["id"]: {"health": node["health"], "pools": node["pools"]}
            for node in self._nodes.describe()
        }
        return plain_json({"sessions": self._state.counts(), "nodes": nodes})

    async def _submit(self, request: Request) -> Response:
        """Answers at once; the same task again is the same task."""
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            # A page in a browser could send any other type here without being asked.
            raise HTTPException(415, "content-type must be application/json")
        given = await command_of(request, _LONGEST_TASK, _TASK_S)
        task = await asyncio.to_thread(parse_task, given)
        spec = {**given, "task_id": task.id}
        new = self._state.submit(task.id, spec, task.samples, task.callback_url is not None)
        if new:
            self._moved()
        sessions = [row.id for row in self._state.sessions(task.id)]
        return plain_json({"task_id": task.id, "sessions": sessions}, 201 if new else 200)

    async def _task(self, request: Request) -> Response:
        return plain_json(task_result(self._state, self._known(request)))

    async def _cancel(self, request: Request) -> Response:
        """Ends what has not ended, with the reason ``cancelled``; agents are killed."""
        task = self._known(request)
        cancelled = self._state.cancel(task)
        self._moved()
        if self._crew is not None:
            await asyncio.gather(*map(self._crew.end, cancelled))
        return plain_json({"task_id": task, "cancelled": cancelled})

    def _known(self, request: Request) -> str:
        task = request.path_params["id"]
        if self._state.spec(task) is None:
            raise HTTPException(404, "there is no such task")
        return task


def _own_node(settings: RolloutSettings) -> JsonObject:
    """The registration of the service's own node, as a node elsewhere would send it."""
    fields = {
        "id": OWN_NODE,
        "start": secrets.token_hex(8),
        "pools": settings.pools,
        "gateway": settings.gateway,
        "control": settings.control,
    }
    return JsonObject(fields, "node")


def _error(status: int, message: str) -> Response:
    return plain_json({"error": {"message": message}}, status)


async def _refused(request: Request, error: Exception) -> Response:
    return _error(400, str(error))


async def _failed(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return plain_json({"error": {"message": error.detail}}, error.status_code, error.headers)


async def _unkept(request: Request, error: Exception) -> Response:
    """A full disk, say. Nothing was kept, so nothing is acknowledged."""
    _LOG.error("a request could not be kept: %s", error)
    return _error(507, f"the service cannot keep it: {error}")
