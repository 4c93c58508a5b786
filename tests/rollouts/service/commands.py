"""Commands of the rollout service in processes of their own, as an operator starts them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from jaxserve.rollouts.service.client import SERVICE, TokenAuth
from jaxserve.runtime.child_processes import own_process, wait_until_answers
from tests.patience import PATIENCE_S


@contextmanager
def begun(
    arguments: Sequence[str], printed: Path, url: str | None = None, **variables: str
) -> Iterator[subprocess.Popen[bytes]]:
    """``jaxserve`` with these arguments, until the block ends.

    Args:
      printed: file for what it prints.
      url: that answers ``/health`` once it serves; None waits for nothing.
      variables: of its environment.
    """
    command = [sys.executable, "-m", "jaxserve.cli", *arguments]
    with (
        printed.open("ab") as file,
        own_process(command, env=os.environ | variables, stdout=file, stderr=file) as process,
    ):
        if url is not None:
            wait_until_answers(f"{url}/health", process)
        yield process


def client(url: str) -> httpx.Client:
    """A client of a service that makes its own token."""
    return httpx.Client(base_url=url, auth=TokenAuth(SERVICE, url, None), timeout=PATIENCE_S)


def submitted(http: httpx.Client, **task: Any) -> str:
    """A task's name."""
    answer = http.post("/rollout/task/submit", json={"instruction": "do it"} | task)
    assert answer.status_code == 201, answer.text
    return answer.json()["task_id"]
