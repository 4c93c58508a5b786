"""The folder of files that outlive a program, and locks on files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from filelock import FileLock, Timeout


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
