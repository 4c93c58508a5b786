"""A process that ends with this one, however this one ends, and takes its group with it.

The group is what it started, but for what has left it by ``setsid``.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Sequence
from typing import Any

LEADER = ("sh", "-c", "trap '' TERM; read _; kill -9 0")
"""Leads a group and ends it when its standard input ends, which only this process may hold open.

TERM is for the others of the group: who leads it outlives them."""


@contextlib.contextmanager
def own_process(command: Sequence[str] | str, **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """A process that ends with the block, or with this process, even when that one is killed.

    Args:
      command: as for ``subprocess.Popen``.
      options: those of ``subprocess.Popen``.

    Raises:
      OSError: it cannot be started.
    """
    with (
        subprocess.Popen(LEADER, stdin=subprocess.PIPE, process_group=0) as leader,
        subprocess.Popen(command, process_group=leader.pid, **options) as process,
    ):
        try:
            yield process
        finally:
            assert leader.stdin is not None
            leader.stdin.close()
