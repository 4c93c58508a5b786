"""How tests wait: as long as it takes, but not for ever."""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil

PATIENCE_S = 300.0
"""No machine is so busy that this is not enough."""


def wait_until(true: Callable[[], object], what: str = "it") -> None:
    """Returns when something has become true."""
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.005)


def alive(pid: int) -> bool:
    """Whether a process runs; nobody may be there to bury an orphan."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
