"""Results of tasks: as JSON, and pushed to callback URLs."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import httpx

from jaxserve.rollouts.service.state.database import StateDatabase
from jaxserve.rollouts.service.state.lifecycle import COMPLETED, ENDED, SessionRow

_LOG = logging.getLogger("jaxserve.rollouts")
_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 60.0
_TIMEOUT_S = 30.0


def task_result(state: StateDatabase, task: str) -> dict[str, Any]:
    """A task with its sessions, as JSON."""
    rows = state.sessions(task)
    rewards = [
        row.result["reward"] for row in rows if row.result and row.result["reward"] is not None
    ]
    return {
        "task_id": task,
        "ended": all(row.state in ENDED for row in rows),
        "completed": sum(row.state == COMPLETED for row in rows),
        "mean_reward": sum(rewards) / len(rewards) if rewards else None,
        "metadata": state.spec(task).get("metadata", {}),
        "sessions": [session_result(row) for row in rows],
    }


def session_result(row: SessionRow) -> dict[str, Any]:
    """A session with its result, as JSON."""
    return {
        "session_id": row.id,
        "sample": row.sample,
        "state": row.state,
        "since_unix_s": row.since,
        "reason": row.reason,
        "node": row.node,
        **(row.result or {}),
    }


class ResultPusher:
    """Pushes the result of each ended task to its ``callback_url``, with retries.

    A push that arrived just before a crash is repeated; its ``task_id`` identifies it.
    """

    def __init__(self, state: StateDatabase, attempts: int) -> None:
        """Args: the database, and the number of attempts for each task."""
        self._state, self._attempts = state, attempts
        self._running: dict[str, asyncio.Task[None]] = {}
        self._http = httpx.AsyncClient(timeout=_TIMEOUT_S, trust_env=False)

    def push_due(self) -> None:
        """Begins to push all results that are due."""
        for task, tried in self._state.due():
            if task not in self._running:
                pushing = asyncio.create_task(self._push(task, tried))
                self._running[task] = pushing
                pushing.add_done_callback(lambda _, task=task: self._running.pop(task, None))

    async def close(self) -> None:
        """Ends all pushes; the next service repeats what is due."""
        for pushing in tuple(self._running.values()):
            pushing.cancel()
        await self._http.aclose()

    async def _push(self, task: str, tried: int) -> None:
        url, wait_s = self._state.spec(task)["callback_url"], _FIRST_WAIT_S
        result = task_result(self._state, task)
        while True:
            tried += 1
            try:
                answer = await self._http.post(url, json=result)
                message = f"status {answer.status_code}"
                if answer.is_success:
                    self._state.pushed(task, "sent")
                    return
            except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
                message = str(error) or type(error).__name__
            if tried >= self._attempts:
                _LOG.warning("the result of task %s was not taken at %s: %s", task, url, message)
                self._state.pushed(task, "given up")
                return
            self._state.pushed(task, "due")
            await asyncio.sleep(wait_s)
            wait_s = min(2.0 * wait_s, _LONGEST_WAIT_S)
