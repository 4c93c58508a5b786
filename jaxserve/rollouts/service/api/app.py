"""The service: takes tasks, gives their sessions to nodes, and serves the results."""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
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
from jaxserve.rollouts.service.api.node_routes import NodeRoutes
from jaxserve.rollouts.service.api.read_routes import ChangeNotifier, ReadRoutes
from jaxserve.rollouts.service.api.results import ResultPusher, task_result
from jaxserve.rollouts.service.client import SERVICE
from jaxserve.rollouts.service.cluster.cleanup import KeyCleanup, remove_containers
from jaxserve.rollouts.service.cluster.registry import NodeRegistry
from jaxserve.rollouts.service.control_client import ControlClient
from jaxserve.rollouts.service.settings import (
    OWN_NODE,
    RolloutSettings,
    RolloutTokens,
    check_exposure,
)
from jaxserve.rollouts.service.state.database import StateDatabase
from jaxserve.rollouts.service.state.session_writer import DatabaseWriter
from jaxserve.rollouts.service.worker.task import parse_task
from jaxserve.rollouts.service.worker.worker import SessionWorker, WorkerPool
from jaxserve.runtime.limited_http import HttpLimits, limited_protocol
from jaxserve.runtime.listening import CommandServer, address, listen

_LOG = logging.getLogger("jaxserve.rollouts")
_LIMITS = HttpLimits(max_connections=1024, max_head_bytes=65_536, head_s=20.0)
_LONGEST_TASK = 2**20
_TASK_S = 60.0
_INTERVAL_S = 1.0
_LOAD_S = 2.0


class RolloutService:
    """The ASGI application, and its background tasks."""

    def __init__(
        self, settings: RolloutSettings, tokens: RolloutTokens, state: StateDatabase
    ) -> None:
        """Args: settings, secrets, and the database, which may hold tasks of earlier services."""
        self._settings, self._tokens, self._state = settings, tokens, state
        self._nodes = NodeRegistry(state, settings)
        self._changes = ChangeNotifier()
        self._due = asyncio.Event()
        self._writer = DatabaseWriter(state, settings.save_dir / "traces", self._moved)
        self._pool: WorkerPool | None = None
        self._load: Any = None
        routes = [
            Route("/health", self._health),
            Route("/rollout/status", self._status),
            Route("/rollout/task/submit", self._submit, methods=["POST"]),
            Route("/rollout/task/{id}", self._task),
            Route("/rollout/task/{id}/cancel", self._cancel, methods=["POST"]),
            *NodeRoutes(self._nodes, self._writer, self._moved).routes(),
            *ReadRoutes(state, self._nodes, self._writer, self._changes, tokens.control).routes(),
        ]
        handlers: Any = {
            InputError: _refused,
            HTTPException: _failed,
            sqlite3.Error: _not_stored,
            OSError: _not_stored,
        }
        self._app = Starlette(routes=routes, exception_handlers=handlers, lifespan=self._life)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serves requests that show the token, and ``/health`` without one."""
        guarded = scope["type"] == "http" and scope["path"] != "/health"
        if guarded and not has_token(scope["headers"], self._tokens.service):
            await _error(401, "the token is missing or wrong")(scope, receive, send)
            return
        await self._app(scope, receive, send)

    @asynccontextmanager
    async def _life(self, app: Starlette) -> AsyncIterator[None]:
        control = ControlClient(self._settings.control, self._tokens.control)
        self._pushes = ResultPusher(self._state, self._settings.callback_attempts)
        if self._settings.own_node:
            self._nodes.register(_own_node(self._settings))
            worker = SessionWorker(self._settings, self._tokens, self._writer, control)
            self._pool = WorkerPool(worker)
        cleanup = KeyCleanup(self._state, self._tokens.control)
        background = [
            asyncio.create_task(one)
            for one in (self._schedule(), self._poll_load(control), cleanup.run())
        ]
        try:
            yield
        finally:
            for one in background:
                one.cancel()
            if self._pool is not None:
                await self._pool.close()  # the next service continues its sessions
            await self._pushes.close()
            await control.close()
            self._state.close()

    def stop(self) -> None:
        """Ends event streams, which have no end of their own."""
        self._changes.close()

    def _moved(self) -> None:
        """Wakes event streams and the scheduling loop after a change."""
        self._changes.notify()
        self._due.set()

    async def _schedule(self) -> None:
        """Assigns sessions to nodes and pushes results, at every change and every second."""
        if self._pool is not None:
            await remove_containers(self._settings.save_dir)
        while True:
            self._due.clear()
            try:
                self._nodes.schedule()
                if self._pool is not None:
                    leases = self._nodes.leases(OWN_NODE)
                    self._pool.take([lease.key for lease in leases], leases)
                    self._nodes.alive(OWN_NODE, self._load)
                self._pushes.push_due()
            except sqlite3.Error:
                _LOG.exception("the state cannot be used")
                await asyncio.sleep(_INTERVAL_S)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._due.wait(), _INTERVAL_S)

    async def _poll_load(self, control: ControlClient) -> None:
        """Keeps the load of the own gateway's engines."""
        while self._pool is not None:
            self._load = await control.load()
            await asyncio.sleep(_LOAD_S)

    async def _health(self, request: Request) -> Response:
        return plain_json({"status": "healthy"})

    async def _status(self, request: Request) -> Response:
        """The number of sessions in each state, and each node's number of workers."""
        nodes = {
            node["id"]: {"health": node["health"], "pools": node["pools"]}
            for node in self._nodes.describe()
        }
        return plain_json({"sessions": self._state.counts(), "nodes": nodes})

    async def _submit(self, request: Request) -> Response:
        """Stores a task and answers immediately; a repeated submission changes nothing."""
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            # A web page may send other types across origins without a preflight request.
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
        """Ends a task's open sessions with the reason ``cancelled``, and kills their agents."""
        task = self._known(request)
        cancelled = self._state.cancel(task)
        self._moved()
        if self._pool is not None:
            await asyncio.gather(*map(self._pool.end, cancelled))
        return plain_json({"task_id": task, "cancelled": cancelled})

    def _known(self, request: Request) -> str:
        task = request.path_params["id"]
        if self._state.spec(task) is None:
            raise HTTPException(404, f"there is no task {task!r:.100}")
        return task


def _own_node(settings: RolloutSettings) -> JsonObject:
    """The registration of the service's own node, in the form of other nodes'."""
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


async def _not_stored(request: Request, error: Exception) -> Response:
    """The answer where nothing could be stored, on a full disk for example."""
    _LOG.error("a request could not be kept: %s", error)
    return _error(507, f"the service cannot keep it: {error}")


class RolloutServer(CommandServer):
    """Serves until a signal, and then ends event streams first."""

    def __init__(self, service: RolloutService) -> None:
        """Args: the application."""
        self._service = service
        # uvloop cannot start a process in the group of another process.
        super().__init__(service, loop="asyncio", http=limited_protocol(_LIMITS))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Ends event streams, then lets running requests end."""
        self._service.stop()
        await super().shutdown(sockets)


def open_service(
    settings: RolloutSettings, tokens: RolloutTokens, *, own_token: bool = False
) -> tuple[CommandServer, socket.socket]:
    """A service that is ready to run, with its socket.

    Args:
      own_token: whether the service makes a token where none is given.

    Raises:
      InputError: an invalid setting, a port that is taken, or a folder that is in use.
    """
    settings.check()
    check_exposure(settings, tokens)
    listening = listen(settings.host, settings.port, "--port")
    try:
        if own_token and tokens.service is None:
            tokens = replace(tokens, service=SERVICE.keep(listening.getsockname()[1]))
        state = StateDatabase(settings.save_dir / "rollouts.sqlite3")
    except BaseException:
        listening.close()
        raise
    service = RolloutService(settings, tokens, state)
    return RolloutServer(service), listening


def run(settings: RolloutSettings) -> None:
    """Serves until a signal; the next service continues open sessions.

    Raises:
      InputError: an invalid setting, a port that is taken, or a folder that is in use.
    """
    logging.basicConfig(level=logging.WARNING, format="jaxserve: %(message)s", stream=sys.stderr)
    tokens = RolloutTokens.from_environment()
    server, listening = open_service(settings, tokens, own_token=True)
    print(f"jaxserve: rollout service at {address(listening)}", file=sys.stderr, flush=True)
    if tokens.service is None:
        path = SERVICE.path(listening.getsockname()[1])
        print(f"jaxserve: it asks for the token in {path}", file=sys.stderr, flush=True)
    server.run(sockets=[listening])
