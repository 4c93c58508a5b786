"""How the server's process ends: in time, with a sentence, and with the code of its signal."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

_COMPUTING_S = 4.0
"""From the shutdown of the application until the process ends in any case: ten seconds after its
signal Docker kills it."""
_TOO_EARLY = "ended before it could answer"
_told: list[int] = []
"""The signals that told this process to end. ``python -m server.app`` is loaded twice, this
module once."""


def told(sig: int) -> None:
    """Remembers the signal that the exit code tells of."""
    _told.append(sig)


def end(sig: int, how: str) -> NoReturn:
    """Ends the process with a sentence, and the exit code that a shell reports for that signal."""
    print(f"server: {how}", file=sys.stderr, flush=True)
    os._exit(128 + sig)


def end_while_starting() -> Callable[[], None]:
    """Has signals end the process at once until what it returns is called: an ASGI server would
    first wait for its start-up, in which programs are compiled. Later ones are the server's own
    again, and are remembered for the exit code.

    Where no server listens to signals, or not in this thread, nothing changes.
    """
    ready = threading.Event()
    if threading.current_thread() is threading.main_thread():
        for sig in (signal.SIGINT, signal.SIGTERM):
            servers_own = signal.getsignal(sig)
            if callable(servers_own) and servers_own is not signal.default_int_handler:
                signal.signal(sig, _while_starting(ready, servers_own))
                # uvicorn may have heard one already, while it imported this.
                if getattr(getattr(servers_own, "__self__", None), "should_exit", False):
                    end(sig, _TOO_EARLY)
    return ready.set


def _while_starting(
    ready: threading.Event, servers_own: Callable[[int, FrameType | None], Any]
) -> Callable[[int, FrameType | None], None]:
    def handle(sig: int, frame: FrameType | None) -> None:
        if not ready.is_set():
            end(sig, _TOO_EARLY)
        told(sig)
        servers_own(sig, frame)

    return handle


def end_in_time() -> None:
    """Does not wait for what still computes in threads. All that was acknowledged is in the log."""
    # A thread cannot make the process die by the signal itself.
    dropped = "ended; what was still computed is dropped"
    sig = _told[0] if _told else signal.SIGTERM
    timer = threading.Timer(_COMPUTING_S, end, (sig, dropped))
    timer.daemon = True
    timer.start()
