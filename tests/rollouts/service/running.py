"""A rollout service in a thread of the tests' process, with a gateway and an engine of its own."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import httpx

from jaxserve.rollouts.service.serve import open_service
from jaxserve.rollouts.service.settings import RolloutSettings, RolloutTokens
from tests.gateway.stub_engine import PATIENCE_S, wait_until

ENDED = ("COMPLETED", "ERROR", "TIMEOUT")


class RunningService:
    """``with RunningService(gateway, folder) as service: service.submit(...)``."""

    def __init__(
        self,
        gateway: Any,
        folder: Path,
        tokens: RolloutTokens | None = None,
        **settings: Any,
    ) -> None:
        """Args: a running gateway, where the state goes, and settings other than the defaults."""
        chosen = RolloutSettings(
            gateway=gateway.url, control=gateway.control_url, save_dir=folder, port=0, **settings
        )
        self.server, self._socket = open_service(chosen, tokens or RolloutTokens())
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.http = httpx.Client(base_url=self.url, timeout=PATIENCE_S)
        self._thread = threading.Thread(
            target=self.server.run, kwargs={"sockets": [self._socket]}, daemon=True
        )

    def __enter__(self) -> RunningService:
        self._thread.start()
        wait_until(lambda: self.server.started)
        return self

    def __exit__(self, *exception: object) -> None:
        self.http.close()
        self.server.should_exit = True
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

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


def ended(http: httpx.Client, task: str) -> dict[str, Any]:
    """A task that has ended; waits for that."""
    found: dict[str, Any] = {}

    def done() -> bool:
        found.update(http.get(f"/rollout/task/{task}").json())
        return found["ended"]

    wait_until(done, f"the end of {task}")
    return found
