"""``ServeClient``: the synchronous client."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

from jaxserve.client.async_client import AsyncServeClient, Observation, StepResult

T = TypeVar("T")


class ServeClient:
    """The methods of ``AsyncServeClient`` without ``await``, in notebooks as well.

    The event loop has its own thread, which also keeps the connection alive between calls.
    """

    def __init__(self, url: str, **options: Any) -> None:
        """See ``AsyncServeClient``."""
        self._client = AsyncServeClient(url, **options)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="jaxserve-client", daemon=True
        )
        self._thread.start()

    @classmethod
    def from_url(cls, url: str, **options: Any) -> ServeClient:
        """An alias of the constructor."""
        return cls(url, **options)

    @property
    def session_id(self) -> str | None:
        """Name of the session that is played."""
        return self._client.session_id

    def reset(
        self,
        *,
        task_id: str | int | None = None,
        seed: int | None = None,
        split: str | None = None,
        index: int | None = None,
        config: Mapping[str, Any] | None = None,
        episode_id: str | None = None,
    ) -> Observation:
        """See ``AsyncServeClient.reset``."""
        return self._wait(
            self._client.reset(
                task_id=task_id,
                seed=seed,
                split=split,
                index=index,
                config=config,
                episode_id=episode_id,
            )
        )

    def attach(self, session_id: str) -> StepResult:
        """See ``AsyncServeClient.attach``."""
        return self._wait(self._client.attach(session_id))

    def step(self, action: Mapping[str, Any] | Any) -> StepResult:
        """See ``AsyncServeClient.step``."""
        return self._wait(self._client.step(action))

    def drive(self, agent: str, windows: int = 1) -> list[StepResult]:
        """See ``AsyncServeClient.drive``."""
        return self._wait(self._client.drive(agent, windows))

    def observe(self) -> StepResult:
        """See ``AsyncServeClient.observe``."""
        return self._wait(self._client.observe())

    def state(self) -> dict[str, Any]:
        """See ``AsyncServeClient.state``."""
        return self._wait(self._client.state())

    def grade(self) -> dict[str, Any]:
        """See ``AsyncServeClient.grade``."""
        return self._wait(self._client.grade())

    def episode_log(self) -> dict[str, Any]:
        """See ``AsyncServeClient.episode_log``."""
        return self._wait(self._client.episode_log())

    def tasks(self) -> list[dict[str, Any]]:
        """See ``AsyncServeClient.tasks``."""
        return self._wait(self._client.tasks())

    def close(self) -> None:
        """Closes the connection and ends the thread; the session stays on the server."""
        if self._thread.is_alive():
            self._wait(self._client.close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def __enter__(self) -> ServeClient:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _wait(self, call: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()
