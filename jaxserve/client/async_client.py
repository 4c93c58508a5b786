"""``AsyncServeClient``: one session on a server, resumed whenever the connection drops."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx

from jaxserve.client.transports import (
    ConnectionLost,
    HttpTransport,
    NoWebSocket,
    ServerError,
    Transport,
    TryLater,
    WebSocketTransport,
    request,
)
from jaxserve.errors import InputError

_FIRST_WAIT_S = 0.05
_LONGEST_WAIT_S = 2.0
_WEBSOCKET_AGAIN_S = 30.0
"""Wait before a refused WebSocket is tried again, doubled every time."""
_WEBSOCKET_OPENS_S = 5.0
"""Time limit of such a try, by which it may delay a step."""


class Observation(dict[str, Any]):
    """Fields of ``jaxserve.ServeObservation``: ``o["queue_depth"]`` or ``o.queue_depth``."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the observation has no {name!r}") from None


class StepResult(NamedTuple):
    """The four values of ``step``."""

    observation: Observation
    reward: float
    done: bool
    info: dict[str, Any]
    """session_id, episode_id, task_id, seed, step, reward_parts and more."""


def parse_step(data: dict[str, Any]) -> StepResult:
    """A server's answer to reset or step, the same over HTTP and WebSocket."""
    fields = dict(data["observation"])
    info = fields.pop("metadata", None) or data.get("metadata") or {}
    return StepResult(Observation(fields), data["reward"], bool(data["done"]), info)


class AsyncServeClient:
    """A client by WebSocket, or by HTTP for a while after the WebSocket was refused.

    Each step is taken exactly once: it carries the number of its window, and after a lost
    connection the client asks for the session's last answer before it repeats the step.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        timeout_s: float = 60.0,
        patience_s: float = 120.0,
    ) -> None:
        """Sends nothing yet.

        Args:
          url: address of the server.
          token: token of the server, if it has one.
          timeout_s: time limit of one answer.
          patience_s: time limit of retries without a connection or an answer.

        Raises:
          InputError: the address is not an http or https URL.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise InputError(f"url is {url!r}; it must be the http or https address of a server")
        base = url.rstrip("/")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._patience_s = patience_s
        self._websocket = functools.partial(WebSocketTransport, base, headers)
        self._again_s = _WEBSOCKET_AGAIN_S
        self._again_at = 0.0
        self._http = httpx.AsyncClient(base_url=base, headers=headers, timeout=timeout_s)
        self._timeout_s = timeout_s
        self._transport: Transport = self._websocket(timeout_s)
        self._session_id: str | None = None
        self._steps = 0

    @classmethod
    def from_url(cls, url: str, **options: Any) -> AsyncServeClient:
        """An alias of the constructor."""
        return cls(url, **options)

    @property
    def session_id(self) -> str | None:
        """Name of the session that is played."""
        return self._session_id

    async def reset(
        self,
        *,
        task_id: str | int | None = None,
        seed: int | None = None,
        split: str | None = None,
        index: int | None = None,
        config: Mapping[str, Any] | None = None,
        episode_id: str | None = None,
    ) -> Observation:
        """Begins an episode.

        Args:
          task_id: name or number; see ``tasks``.
          config: reward weights (alpha, beta, gamma, delta) and overrides of the task.

        Raises:
          ServerError, ConnectionLost.
        """
        given = {
            "task_id": task_id,
            "seed": seed,
            "split": split,
            "index": index,
            "config": None if config is None else dict(config),
            "episode_id": episode_id,
        }
        options = {name: value for name, value in given.items() if value is not None}
        return self._note(await self._persist(lambda: self._transport.reset(options))).observation

    async def attach(self, session_id: str) -> StepResult:
        """Continues a session that another client began; the session stays as it is.

        Returns:
          the last answer to reset or step.

        Raises:
          ServerError, ConnectionLost.
        """
        params = {"session_id": session_id}
        return self._note(await self._ask("GET", "/observation", params=params))

    async def step(self, action: Mapping[str, Any] | Any) -> StepResult:
        """Plays one window with the given knobs.

        Args:
          action: knobs by name, or a pydantic model of them; a missing knob has its default.

        Raises:
          ServerError, ConnectionLost.
        """
        if self._session_id is None:
            raise InputError("step was called before reset")
        session_id = self._session_id
        plain: dict[str, Any] = dict(action if isinstance(action, Mapping) else action.model_dump())
        plain["metadata"] = {"step": self._steps}
        await self._try_websocket(session_id)
        try:
            return self._note(await self._transport.step(session_id, plain))
        except ConnectionLost:
            pass
        return self._note(await self._persist(lambda: self._step_again(session_id, plain)))

    async def drive(self, agent: str, windows: int = 1) -> list[StepResult]:
        """Lets an agent of the server play windows, at most to the end of the episode.

        A lost request is not repeated, because its windows may have been played; a request that the
        server refused for the moment is.

        Raises:
          ServerError, ConnectionLost.
        """
        body = {"session_id": self._own(), "agent": agent, "windows": windows}
        answer = await self._persist(
            lambda: request(self._http, "POST", "/agent", json=body), undone_only=True
        )
        return [self._note(each) for each in answer["results"]]

    async def observe(self) -> StepResult:
        """The session's last answer to reset or step, from the server."""
        path = "/observation"
        return parse_step(await self._ask("GET", path, params={"session_id": self._own()}))

    async def state(self) -> dict[str, Any]:
        """Totals of the episode."""
        return await self._ask("GET", "/state", params={"session_id": self._own()})

    async def grade(self) -> dict[str, Any]:
        """Score of the episode so far, with breakdown and feedback."""
        return await self._ask("POST", "/grader", json={"session_id": self._own()})

    async def episode_log(self) -> dict[str, Any]:
        """Log of the whole episode."""
        return await self._ask("GET", "/episode_log", params={"session_id": self._own()})

    async def tasks(self) -> list[dict[str, Any]]:
        """The server's tasks."""
        return (await self._ask("GET", "/tasks"))["tasks"]

    async def close(self) -> None:
        """Closes the connection; the session stays on the server."""
        await self._transport.drop()
        await self._http.aclose()

    async def __aenter__(self) -> AsyncServeClient:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def _step_again(self, session_id: str, action: dict[str, Any]) -> dict[str, Any]:
        """The answer to a step that may have been taken already."""
        standing = await self._transport.resume(session_id)
        if self._is_next(standing):
            return standing
        try:
            return await self._transport.step(session_id, action)
        except ServerError:
            # The first request may have arrived after all, so that this one came too late.
            standing = await self._transport.resume(session_id)
            if self._is_next(standing):
                return standing
            raise

    def _is_next(self, standing: dict[str, Any]) -> bool:
        return parse_step(standing).info["step"] == self._steps + 1

    async def _persist(self, call: Any, undone_only: bool = False) -> dict[str, Any]:
        """Repeats a call until an answer, with growing waits, or with the wait that the server asks
        for.

        Args:
          undone_only: whether only a call that surely did nothing is repeated.
        """
        wait_s = _FIRST_WAIT_S
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._patience_s
        while True:
            try:
                return await call()
            except NoWebSocket:
                await self._transport.drop()
                self._transport = HttpTransport(self._http)
                self._again_at = loop.time() + self._again_s
            except ConnectionLost as error:
                later = error if isinstance(error, TryLater) else None
                if undone_only and not (later and later.undone):
                    raise
                asked_s = (later.wait_s if later else None) or 0.0
                if loop.time() + max(wait_s, asked_s) > deadline:
                    raise
                await asyncio.sleep(max(wait_s, asked_s))
                wait_s = min(2.0 * wait_s, _LONGEST_WAIT_S)

    async def _try_websocket(self, session_id: str) -> None:
        """Tries to return from HTTP to a WebSocket; the session stays as it is."""
        now = asyncio.get_running_loop().time()
        if not isinstance(self._transport, HttpTransport) or now < self._again_at:
            return
        websocket = self._websocket(min(self._timeout_s, _WEBSOCKET_OPENS_S))
        try:
            await websocket.resume(session_id)
        except (NoWebSocket, ConnectionLost, ServerError):
            await websocket.drop()
            self._again_s *= 2.0
            self._again_at = now + self._again_s
        else:
            websocket.wait_at_most(self._timeout_s)
            self._transport, self._again_s = websocket, _WEBSOCKET_AGAIN_S

    async def _ask(self, method: str, path: str, **options: Any) -> Any:
        return await self._persist(lambda: request(self._http, method, path, **options))

    def _note(self, data: dict[str, Any]) -> StepResult:
        step = parse_step(data)
        self._session_id = step.info.get("session_id")
        self._steps = int(step.info.get("step", 0))
        return step

    def _own(self) -> str:
        if self._session_id is None:
            raise InputError("no episode has been started; call reset first")
        return self._session_id
