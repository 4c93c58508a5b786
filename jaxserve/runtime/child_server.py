"""A server in a process of its own: started, waited for, and told to end."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from typing import Any

from jaxserve.runtime.process_group import own_process

START_S = 300.0
_LOOK_S = 0.05


@contextlib.contextmanager
def child_server(
    command: Sequence[str], url: str, *, start_s: float = START_S, stop_s: float = 20.0, **how: Any
) -> Iterator[subprocess.Popen[Any]]:
    """A process from its first answer to the end of the block, or of this process.

    Args:
      command: as for ``subprocess.Popen``.
      url: what answers with success once it serves.
      start_s: time that it has until then, s.
      stop_s: time that it has to end when it is told to, s.
      how: options of ``subprocess.Popen``.

    Raises:
      OSError: it cannot be started.
      RuntimeError: as ``wait_until_answers``.
    """
    with own_process(command, **how) as process:
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
      url: what is asked.
      start_s: how long, s.
      any_status: whether an error is an answer, too.

    Raises:
      RuntimeError: its process ended, or it took too long.
    """
    deadline = time.monotonic() + start_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError("the server ended by itself")
        if _answers(url, any_status):
            return
        time.sleep(_LOOK_S)
    raise RuntimeError(f"the server does not answer {url} after {start_s:g} s")


def stop(process: subprocess.Popen[Any], within_s: float) -> None:
    """Tells a server to end, and gives it time to."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(within_s)


def free_ports(count: int) -> list[int]:
    """Different ports of this machine that nobody listens on."""
    with contextlib.ExitStack() as held:  # all of them until all are known
        return [
            held.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
            for _ in range(count)
        ]


def _answers(url: str, any_status: bool) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5.0):
            return True
    except urllib.error.HTTPError:
        return any_status
    except OSError:
        return False
