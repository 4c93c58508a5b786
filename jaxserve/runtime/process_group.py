"""A process that ends with this one, however this one ends, and takes its group with it.

The group is what it started, but for what has left it by ``setsid``. Where Linux's ``/proc`` is,
that is found by a variable of its environment, which it has inherited.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Sequence
from typing import Any

LEADER = ("sh", "-c", "trap '' TERM; read _; kill -9 0")
"""Leads a group and ends it when its standard input ends, which only this process may hold open.

TERM is for the others of the group: who leads it outlives them."""

_SWEEP = """
trap '' TERM
read _
for _ in 1 2 3 4 5 6 7 8 9 10; do
  found=$(grep -lsxzF -e "$0" /proc/[0-9]*/environ)
  [ -n "$found" ] || break
  for one in $found; do
    one=${one#/proc/}
    kill -9 "${one%/environ}" 2>/dev/null
  done
done
kill -9 0
"""
# What begins while one round ends its parent is found by the next. The errors of grep are of other
# users' processes, and make its status useless.


def sweeping_leader(mark: str) -> tuple[str, ...]:
    """Leads a group as ``LEADER`` does, and ends with it all processes of this user that began with
    a variable, in whatever group they are. Must not have the variable itself.

    Args:
      mark: ``NAME=VALUE``.
    """
    return ("sh", "-c", _SWEEP, mark)


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
