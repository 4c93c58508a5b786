"""How the server's process ends: in time, with a sentence, and with the code of its signal."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import NoReturn

_COMPUTING_S = 4.0
"""From the shutdown of the application until the process ends in any case: ten seconds after its
signal Docker kills it."""
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


def end_in_time() -> None:
    """Does not wait for what still computes in threads. All that was acknowledged is in the log."""
    # A thread cannot make the process die by the signal itself.
    dropped = "ended; what was still computed is dropped"
    sig = _told[0] if _told else signal.SIGTERM
    timer = threading.Timer(_COMPUTING_S, end, (sig, dropped))
    timer.daemon = True
    timer.start()
