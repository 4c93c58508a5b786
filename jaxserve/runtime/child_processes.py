"""Child processes that end with this one, however it ends; servers among them.

A child leads a process group, which ends with it. Descendants that left the group by ``setsid`` are
found under Linux's ``/proc`` by an environment variable that they inherited.
"""

from __future__ import annotations

import contextlib
import random
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from typing import Any

START_S = 300.0
_POLL_S = 0.05
_PORTS = range(20_000, 32_000)
"""Ports that systems, as they are set up, give to no outgoing connection: such a connection would
take a port between the moment that finds it unused and the start of its server."""
_HELD: list[socket.socket] = []
"""Sockets of drawn ports, which Linux lets a server listen on all the same."""

LEADER = ("sh", "-c", "trap '' TERM; read _; kill -9 0")
"""Command that leads a group and kills it when its standard input closes; only this process holds
that input open. The leader ignores TERM, which may be sent to its group."""

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
# A process that starts while a round kills its parent is found by the next round. grep's errors
# concern other users' processes and make its status useless.


def sweeping_leader(mark: str) -> tuple[str, ...]:
    """``LEADER`` that also kills this user's processes of other groups that inherited a variable.

    The leader itself must be started without the variable.

    Args:
      mark: ``NAME=VALUE``.
    """
    return ("sh", "-c", _SWEEP, mark)


@contextlib.contextmanager
def own_process(command: Sequence[str] | str, **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """A process that ends with the block, or with this process, even if that one is killed.

    Args:
      command: command of ``subprocess.Popen``.
      options: options of ``subprocess.Popen``.

    Raises:
      OSError: the process cannot be started.
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


@contextlib.contextmanager
def child_server(
    command: Sequence[str],
    url: str,
    *,
    start_s: float = START_S,
    stop_s: float = 20.0,
    **options: Any,
) -> Iterator[subprocess.Popen[Any]]:
    """A server process, from its first answer to the end of the block or of this process.

    Args:
      command: command of ``subprocess.Popen``.
      url: URL that answers with success once the server is ready.
      start_s: time until then at most, s.
      stop_s: time between TERM and KILL, s.
      options: options of ``subprocess.Popen``.

    Raises:
      OSError: the process cannot be started.
      RuntimeError: as ``wait_until_answers``.
    """
    with own_process(command, **options) as process:
        wait_until_answers(url, process, start_s)
        try:
            yield process
        finally:
            stop(process, stop_s)


def wait_until_answers(
    url: str, process: subprocess.Popen[Any], start_s: float = START_S, any_status: bool = False
) -> None:
    """Returns when a server answers.

    Args:
      url: URL to request.
      process: process of the server.
      start_s: time to wait at most, s.
      any_status: whether an error status counts as an answer.

    Raises:
      RuntimeError: the process ended, or the time is up.
    """
    deadline = time.monotonic() + start_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError("the server ended by itself")
        if _answers(url, any_status):
            return
        time.sleep(_POLL_S)
    raise RuntimeError(f"the server does not answer {url} after {start_s:g} s")


def stop(process: subprocess.Popen[Any], within_s: float) -> None:
    """Sends TERM to a process and waits for its end, up to ``within_s`` seconds."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(within_s)


def free_ports(count: int) -> list[int]:
    """Different unused ports of this machine, drawn at random from ``_PORTS``.

    Under Linux no other process is given one of them until this process ends: neither by its own
    draw, while the server of the port starts, nor for an outgoing connection.

    Raises:
      OSError: fewer are unused.
    """
    found: list[int] = []
    for port in random.SystemRandom().sample(_PORTS, len(_PORTS)):
        if len(found) == count:
            return found
        with contextlib.suppress(OSError):
            found += _drawn([port])
    raise OSError(f"fewer than {count} ports of 127.0.0.1 are unused")


def ports_in_a_row(count: int) -> list[int]:
    """Unused ports of this machine that follow each other, the first drawn at random.

    Raises:
      OSError: nowhere are so many unused.
    """
    firsts = _PORTS[: len(_PORTS) - count + 1]
    for first in random.SystemRandom().sample(firsts, len(firsts)):
        with contextlib.suppress(OSError):
            return _drawn(range(first, first + count))
    raise OSError(f"nowhere are {count} ports of 127.0.0.1 in a row unused")


def _drawn(ports: Sequence[int]) -> list[int]:
    """The ports, if nobody has bound one of them; under Linux they stay bound by this process."""
    with contextlib.ExitStack() as bound:
        # Without SO_REUSEADDR a port is refused that a server has bound and does not listen on yet.
        sockets = [bound.enter_context(socket.socket()) for _ in ports]
        for one, port in zip(sockets, ports, strict=True):
            one.bind(("127.0.0.1", port))
        if sys.platform == "linux":
            for one in sockets:
                # A server that sets it too, as all do, may listen where nobody else listens.
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            _HELD.extend(sockets)
            bound.pop_all()
    return list(ports)


def _answers(url: str, any_status: bool) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5.0):
            return True
    except urllib.error.HTTPError:
        return any_status
    except OSError:
        return False
