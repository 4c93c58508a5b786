"""The folder of files that outlive a program, and locks on files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import platformdirs
from filelock import FileLock, Timeout


def state_folder(variables: Mapping[str, str]) -> Path | None:
    """``jaxserve`` in the user's state directory; None where the user has no home.

    Args:
      variables: the environment; ``XDG_STATE_HOME`` names the directory where it is set.
    """
    named = variables.get("XDG_STATE_HOME")
    if named:
        return Path(named) / "jaxserve"
    try:
        folder = platformdirs.user_state_path("jaxserve", appauthor=False)
    except RuntimeError:
        return None
    return folder if folder.is_absolute() else None  # earlier platformdirs keep ~ without a home


def lock_file(path: Path) -> FileLock | None:
    """Locks a file against other processes until the lock is released, or the process ends.

    Returns:
      the lock, which a reference must keep alive; None where another process has it.

    Raises:
      OSError: the file cannot be opened.
    """
    lock = FileLock(path, timeout=0, mode=0o600, thread_local=False)
    try:
        lock.acquire()
    except Timeout:
        return None
    return lock
