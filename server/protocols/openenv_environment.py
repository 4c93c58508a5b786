"""The OpenEnv environment of one WebSocket connection; its session is in the service."""

from __future__ import annotations

import asyncio
import time
from contextvars import ContextVar
from typing import Any

import jaxserve
from jaxserve import checks
from jaxserve.errors import InputError
from jaxserve.seeds import SPLITS
from server.service import Service
from server.sessions.episodes import check_split, listed_count, listed_episode, task_number
from server.sessions.session import NOT_BEGUN, View
from server.wire import request_bodies, schemas
from server.wire.catalogue import describe_task
from server.wire.error_sentences import checked
from server.wire.openenv_api import Environment, EnvironmentMetadata
from server.wire.schemas import ActionModel, ObservationModel, ServeState

_UNSEEN_S = 60.0
"""Time in which OpenEnv sees a step of a connection that plays, far below the idle time after which
it frees the connection's place."""


class SocketConnection:
    """A WebSocket connection, whose steps are played without OpenEnv's models."""

    def __init__(self) -> None:
        """The environment is known from the first reset on."""
        self._environment: ServeEnvironment | None = None
        self._until_s = 0.0

    def plays(self, environment: ServeEnvironment) -> None:
        """Takes note of a reset, which OpenEnv has seen."""
        self._environment = environment
        self._until_s = time.monotonic() + _UNSEEN_S

    def takes_step(self) -> bool:
        """Whether ``step`` plays this step. Now and then OpenEnv itself plays one: it frees the
        places of connections on which it sees none."""
        if self._environment is None:
            return False
        if time.monotonic() < self._until_s:
            return True
        self._until_s = time.monotonic() + _UNSEEN_S
        return False

    async def step(self, action: ActionModel) -> dict[str, Any]:
        """Plays one window, see ``ServeEnvironment.step_async``; data of the answer."""
        assert self._environment is not None
        return schemas.socket_answer(await self._environment.play(action))

    async def look_again(self) -> None:
        """Reads the session again, which a tool may have played."""
        if self._environment is not None:
            await self._environment.look_again()


CONNECTION: ContextVar[SocketConnection | None] = ContextVar("connection", default=None)
"""The connection of the messages under way; the middleware sets it."""


class ServeEnvironment(Environment[ActionModel, ObservationModel, ServeState]):
    """The service as an environment of OpenEnv's WebSocket, MCP and web interface."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, service: Service, tools: Any = None) -> None:
        """Args: the service, and the FastMCP server whose tools ``/mcp`` offers."""
        super().__init__()
        self._service = service
        self._view: View | None = None
        self.mcp_server = tools

    # Clients choose argument names: "/" lets one named self be refused like any unknown name.
    async def reset_async(
        self, /, seed: int | None = None, episode_id: str | None = None, **kwargs: Any
    ) -> ObservationModel:
        """Begins an episode, or goes on with a session where ``resume`` is its id.

        Args:
          kwargs: ``task_id`` (or ``task``), ``split``, ``index``, ``config``, ``session_id`` as in
            the body of ``POST /reset``; or ``resume``.

        Raises:
          InputError: anything unknown or out of range. UnknownSession, StorageFailure.
        """
        given = {"seed": seed, "episode_id": episode_id} | kwargs
        given = {name: value for name, value in given.items() if value is not None}
        resume = given.pop("resume", None)
        if resume is not None:
            if given:
                raise InputError(
                    "resume goes on with a session and takes nothing else; "
                    f"{next(iter(given))} is given"
                )
            self._view = await self._service.view(schemas.checked_session_id(resume))
        else:
            body = checked(request_bodies.ResetBody, given)
            # A connection plays its next episode in the same session.
            own = self._view.session_id if self._view is not None else None
            self._view = await self._service.reset(
                **request_bodies.reset_arguments(body, body.session_id or own)
            )
        connection = CONNECTION.get()
        if connection is not None:
            connection.plays(self)
        return schemas.observation(self._view)

    async def step_async(
        self, action: ActionModel, timeout_s: float | None = None, **kwargs: Any
    ) -> ObservationModel:
        """Plays one window.

        Raises:
          InputError: before the first reset. EpisodeConflict: after the last window.
        """
        del timeout_s, kwargs
        return schemas.observation(await self.play(action))

    async def play(self, action: ActionModel) -> View:
        """Plays one window, as ``step_async``."""
        if self._view is None:
            raise InputError(NOT_BEGUN)
        session_id = self._view.session_id
        self._view = await self._service.step(session_id, action.knobs(), action.number())
        return self._view

    async def look_again(self) -> None:
        """Reads the session again, which another connection or a tool may have played."""
        if self._view is not None:
            self._view = await self._service.view(self._view.session_id)

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any
    ) -> ObservationModel:
        """``reset_async`` for callers without an event loop of their own."""
        return asyncio.run(self.reset_async(seed, episode_id, **kwargs))

    def step(
        self, action: ActionModel, timeout_s: float | None = None, **kwargs: Any
    ) -> ObservationModel:
        """``step_async`` for callers without an event loop of their own."""
        return asyncio.run(self.step_async(action, timeout_s, **kwargs))

    @property
    def state(self) -> ServeState:
        """Totals of the episode, all zero before the first reset."""
        return ServeState() if self._view is None else schemas.state(self._view)

    def get_metadata(self) -> EnvironmentMetadata:
        """Name, description and version."""
        return EnvironmentMetadata(
            name="jaxserve",
            description="Operate an LLM inference server: batch cap, KV budget, speculation, "
            "quantisation, prefill/decode split and priorities, judged by SLOs, memory and cost.",
            version=jaxserve.__version__,
            author="The jaxserve authors",
        )

    def list_splits(self) -> list[str]:
        """Names of the splits; their seeds never meet."""
        return list(SPLITS)

    def num_tasks(self, split: str) -> int:
        """Number of episodes that a split lists."""
        check_split(split)
        return listed_count()

    def list_tasks(self, split: str) -> list[dict[str, Any]]:
        """All entries of a split; ``reset(split=..., index=...)`` plays one."""
        return self.get_task_range(split, 0, listed_count())

    def get_task(self, split: str, index: int) -> dict[str, Any]:
        """One entry of a split.

        Raises:
          InputError: unknown split, or no such entry.
        """
        task, seed = listed_episode(split, index)
        return {
            "id": f"{split}/{task}/{seed}",
            "index": index,
            "split": split,
            "task_id": task,
            "number": task_number(task),
            "seed": seed,
            "description": describe_task(task)["description"],
        }

    def get_task_range(
        self, split: str, start: int | None = None, stop: int | None = None
    ) -> list[dict[str, Any]]:
        """Entries of a split from ``start`` to before ``stop``.

        Raises:
          InputError: unknown split, or a bound below 0.
        """
        check_split(split)
        for name, bound in (("start", start), ("stop", stop)):
            if bound is not None:
                checks.whole(name, bound, 0)
        return [self.get_task(split, index) for index in range(listed_count())[start:stop]]
