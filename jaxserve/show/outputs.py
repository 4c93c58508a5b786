"""Files that a command was asked to write: checked before the work starts, written whole."""

from __future__ import annotations

import os
from pathlib import Path

from jaxserve.datafiles import write_atomic
from jaxserve.errors import InputError


def check_output(path: Path | None, option: str) -> None:
    """Makes sure that ``path`` can be written, so that no long run ends in an error.

    Raises:
      InputError: its folder is missing, or it or the folder cannot be written.
    """
    if path is None:
        return
    if path.is_dir():
        raise InputError(f"{option} is {path}, a folder; it must name a file")
    if not path.parent.is_dir():
        raise InputError(f"{option} is {path}, but the folder {path.parent} does not exist")
    blocked = path if path.exists() and not os.access(path, os.W_OK) else path.parent
    if not os.access(blocked, os.W_OK):
        raise InputError(f"{option} is {path}, but {blocked} is not writable")


def write_output(path: Path, data: bytes, option: str) -> None:
    """Writes a file that ``check_output`` has let through.

    Raises:
      InputError: the file system refuses it all the same.
    """
    try:
        write_atomic(path, data)
    except OSError as error:
        raise InputError(f"{option} is {path}, but writing it failed: {error.strerror}") from None
