"""The service's routes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from jaxserve.errors import InputError
from jaxserve.gateway.auth import shows
from jaxserve.gateway.commands import command_of, number_in, plain_json
from jaxserve.rollouts.service.control import Control
from jaxserve.rollouts.service.results import Pushes, task_result
from jaxserve.rollouts.service.settings import RolloutSettings, RolloutTokens
from jaxserve.rollouts.service.state import State
from jaxserve.rollouts.service.submission import parse_task
from jaxserve.rollouts.service.work import Worker

_LONGEST_TASK = 2**20
_MOST_EVENTS = 10_000
_MOST = 1_000_000_000_000


class RolloutService:
    """An ASGI application, and the work behind it."""

    def __init__(self, settings: RolloutSettings, tokens: RolloutTokens, state: State) -> None:
        """Args: what the operator chose, secrets, and the tasks of earlier services."""
        self._settings, self._tokens, self._state = settings, tokens, state
        self._running: dict[str, asyncio.Task[None]] = {}
        routes = [
            Route("/health", self._health),
            Route("/rollout/status", self._status),
            Route("/rollout/task/submit", self._submit, methods=["POST"]),
            Route("/rollout/task/{id}", self._task),
            Route("/rollout/task/{id}/cancel", self._cancel, methods=["POST"]),
            Route("/tasks", self._tasks),
            Route("/tasks/{id}/sessions", self._task),
            Route("/events", self._events),
        ]
        handlers: Any = {InputError: _refused, HTTPException: _failed}
        self._app = Starlette(routes=routes, exception_handlers=handlers, lifespan=self._life)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serves who shows the token; ``/health`` anyone."""
        guarded = scope["type"] == "http" and scope["path"] != "/health"
        if guarded and not shows(scope["headers"], self._tokens.service):
            await _error(401, "the token is missing or wrong")(scope, receive, send)
            return
        await self._app(scope, receive, send)

    @asynccontextmanager
    async def _life(self, app: Starlette) -> AsyncIterator[None]:
        self._control = Control(self._settings.control, self._tokens.control)
        self._pushes = Pushes(self._state, self._settings.callback_attempts)
        self._worker = Worker(
            self._settings, self._tokens, self._state, self._control, self._pushes.look
        )
        for session in self._state.unfinished():
            self._begin(session.id)
        self._pushes.look()
        try:
            yield
        finally:
            running = tuple(self._running.values())
            for work in running:
                work.cancel()  # the next service goes on with it
            await asyncio.gather(*running, return_exceptions=True)
            await self._pushes.close()
            await self._control.close()
            self._state.close()

    def _begin(self, session: str) -> None:
        work = asyncio.create_task(self._worker.finish(session))
        self._running[session] = work
        work.add_done_callback(lambda _: self._running.pop(session, None))

    async def _health(self, request: Request) -> Response:
        return plain_json({"status": "healthy"})

    async def _status(self, request: Request) -> Response:
        """How many sessions are in which state, and how many workers there are."""
        names = ("init_workers", "run_workers", "post_run_workers", "eval_workers")
        pools = {name: getattr(self._settings, name) for name in names}
        return plain_json({"sessions": self._state.counts(), "pools": pools})

    async def _submit(self, request: Request) -> Response:
        """Answers at once; the same task again is the same task."""
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            # A page in a browser could send any other type here without being asked.
            raise HTTPException(415, "content-type must be application/json")
        given = await command_of(request, _LONGEST_TASK)
        task = await asyncio.to_thread(parse_task, given)
        spec = {**given, "task_id": task.id}
        new = self._state.submit(task.id, spec, task.samples, task.callback_url is not None)
        sessions = [row.id for row in self._state.sessions(task.id)]
        if new:
            for session in sessions:
                self._begin(session)
        return plain_json({"task_id": task.id, "sessions": sessions}, 201 if new else 200)

    async def _task(self, request: Request) -> Response:
        return plain_json(task_result(self._state, self._known(request)))

    async def _tasks(self, request: Request) -> Response:
        return plain_json({"tasks": self._state.tasks()})

    async def _cancel(self, request: Request) -> Response:
        """Ends what has not ended, with the reason ``cancelled``; agents are killed."""
        task, cancelled = self._known(request), []
        for session in self._state.sessions(task):
            if self._worker.cancel(session.id):
                cancelled.append(session.id)
                if (work := self._running.get(session.id)) is not None:
                    work.cancel()
                    await asyncio.wait([work])
                await self._worker.shut(self._state.session(session.id))
        return plain_json({"task_id": task, "cancelled": cancelled})

    async def _events(self, request: Request) -> Response:
        """``?after=0&limit=1000``: changes of state, in order."""
        after = int(number_in(request, "after", 0, _MOST, 0))
        limit = int(number_in(request, "limit", 1, _MOST_EVENTS, 1000))
        return plain_json({"events": self._state.events(after, limit)})

    def _known(self, request: Request) -> str:
        task = request.path_params["id"]
        if self._state.spec(task) is None:
            raise HTTPException(404, "there is no such task")
        return task


def _error(status: int, message: str) -> Response:
    return plain_json({"error": {"message": message}}, status)


async def _refused(request: Request, error: Exception) -> Response:
    return _error(400, str(error))


async def _failed(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _error(error.status_code, error.detail)
