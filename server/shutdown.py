"""Shutdown of the server's process: in time, with a sentence, and with its signal's exit code."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

_COMPUTING_S = 4.0
"""Time from the application's shutdown to the end of the process in any case: Docker kills a
container ten seconds after its signal."""
_TOO_EARLY = "ended before it could answer"
_received: list[int] = []
"""Signals that asked this process to end. ``python -m server.app`` loads that module twice, this
one once."""


def remember_signal(sig: int) -> None:
    """Keeps a signal for the exit code."""
    _received.append(sig)


def end(sig: int, how: str) -> NoReturn:
    """Ends the process with a sentence, and the exit code that a shell reports for that signal."""
    # One write for the whole line: each worker of a server prints it, at the same moment.
    os.write(sys.stderr.fileno(), f"server: {how}\n".encode())
    os._exit(128 + sig)


def end_while_starting() -> Callable[[], None]:
    """Lets signals end the process at once until the returned function is called.

    An ASGI server would first finish its start-up, in which programs are compiled. Later signals
    reach the server's own handlers, and are remembered for the exit code. Outside of the main
    thread, or if no server handles signals, the function has no effect.
    """
    ready = threading.Event()
    if threading.current_thread() is threading.main_thread():
        for sig in (signal.SIGINT, signal.SIGTERM):
            servers_own = signal.getsignal(sig)
            if callable(servers_own) and servers_own is not signal.default_int_handler:
                signal.signal(sig, _while_starting(ready, servers_own))
                # uvicorn may have received a signal while it imported this module.
                if getattr(getattr(servers_own, "__self__", None), "should_exit", False):
                    end(sig, _TOO_EARLY)
    return ready.set


def _while_starting(
    ready: threading.Event, servers_own: Callable[[int, FrameType | None], Any]
) -> Callable[[int, FrameType | None], None]:
    def handle(sig: int, frame: FrameType | None) -> None:
        if not ready.is_set():
            end(sig, _TOO_EARLY)
        remember_signal(sig)
        servers_own(sig, frame)

    return handle


def end_in_time() -> None:
    """Ends the process after a while, whatever threads still compute. All acknowledged windows are
    in the log."""
    # A thread cannot make the process die by the signal itself.
    dropped = "ended; what was still computed is dropped"
    sig = _received[0] if _received else signal.SIGTERM
    timer = threading.Timer(_COMPUTING_S, end, (sig, dropped))
    timer.daemon = True
    timer.start()
