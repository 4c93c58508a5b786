"""A rollout service in a thread of the tests' process, with a gateway and an engine of its own."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from pathlib import Path
from typing import Any

import httpx

from jaxserve.rollouts.service.api.app import open_service
from jaxserve.rollouts.service.client import SERVICE, TokenAuth
from jaxserve.rollouts.service.cluster.node import Node
from jaxserve.rollouts.service.settings import NodeSettings, RolloutSettings, RolloutTokens
from tests.patience import PATIENCE_S, wait_until
from tests.server_thread import ServerThread

ENDED = ("COMPLETED", "ERROR", "TIMEOUT")


class RunningService:
    """``with RunningService(gateway, folder) as service: service.submit(...)``."""

    def __init__(
        self,
        gateway: Any,
        folder: Path,
        tokens: RolloutTokens | None = None,
        *,
        own_token: bool = False,
        **settings: Any,
    ) -> None:
        """Args: a running gateway, where the state goes, whether it makes a token for itself, and
        settings other than the defaults."""
        chosen = RolloutSettings(
            gateway=gateway.url, control=gateway.control_url, save_dir=folder, port=0, **settings
        )
        self.server, self._socket = open_service(
            chosen, tokens or RolloutTokens(), own_token=own_token
        )
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        shown = TokenAuth(SERVICE, self.url, None)
        self.http = httpx.Client(base_url=self.url, timeout=PATIENCE_S, auth=shown, verify=False)
        self._thread = ServerThread(self.server, [self._socket])

    def __enter__(self) -> RunningService:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.http.close()
        self._thread.stop()

    def submit(self, **task: Any) -> str:
        """A task's name."""
        answer = self.http.post("/rollout/task/submit", json={"instruction": "do it"} | task)
        assert answer.status_code == 201, answer.text
        return answer.json()["task_id"]

    def result(self, task: str) -> dict[str, Any]:
        """A task that has ended; waits for that."""
        return ended(self.http, task)

    def wait_for(self, task: str, state: str) -> None:
        """Returns when a session is in a state."""

        def there() -> bool:
            sessions = self.http.get(f"/tasks/{task}/sessions").json()["sessions"]
            return any(one["state"] == state for one in sessions)

        wait_until(there, state)


class RunningNode:
    """``with RunningNode(service, gateway, folder, "a"): ...``; in a thread of its own."""

    def __init__(
        self, service: RunningService, gateway: Any, folder: Path, id: str, **settings: Any
    ) -> None:
        """Args: a service and a gateway that run, where it works, and its name."""
        chosen = {"gateway": gateway.url, "control": gateway.control_url, **settings}
        self._settings = NodeSettings(
            id=id, service=service.url, save_dir=folder, heartbeat_s=0.05, **chosen
        )
        self._loop = asyncio.new_event_loop()
        self._task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        async def serve() -> None:
            self._task = asyncio.current_task()
            await Node(self._settings, RolloutTokens()).serve()

        with contextlib.suppress(asyncio.CancelledError):
            self._loop.run_until_complete(serve())
        self._loop.close()

    def __enter__(self) -> RunningNode:
        self._thread.start()
        wait_until(lambda: self._task is not None)
        return self

    def __exit__(self, *exception: object) -> None:
        self.leave()

    def leave(self) -> None:
        """Ends it as a signal would."""
        if self._thread.is_alive():
            assert self._task is not None
            self._loop.call_soon_threadsafe(self._task.cancel)
            self._thread.join(PATIENCE_S)
            assert not self._thread.is_alive()


def ended(http: httpx.Client, task: str) -> dict[str, Any]:
    """A task that has ended; waits for that."""
    found: dict[str, Any] = {}

    def done() -> bool:
        found.update(http.get(f"/rollout/task/{task}").json())
        return found["ended"]

    wait_until(done, f"the end of {task}")
    return found
