"""Where programs keep what must outlive them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def state_folder(variables: Mapping[str, str]) -> Path | None:
    """``jaxserve`` in the user's state directory; None where the user has no home.

    Args:
      variables: the environment; ``XDG_STATE_HOME`` names the directory where it is set.
    """
    base = variables.get("XDG_STATE_HOME")
    try:
        state = Path(base) if base else Path.home() / ".local" / "state"
    except RuntimeError:
        return None
    return state / "jaxserve"


def locked_file(path: Path) -> int | None:
    """Keeps other processes out of what a file stands for, until it is closed or this one ends.

    Returns:
      the file, open; None where another process has it.

    Raises:
      OSError: it cannot be opened.
    """
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        import fcntl
    except ImportError:  # Windows: nobody is kept out
        return file
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        return None
    return file
