"""The operator's hold on control, which outlives the gateway."""

from __future__ import annotations

import json
from pathlib import Path

from jaxserve.checks import JsonObject
from jaxserve.datafiles import read_json, write_atomic


class HoldNotSaved(Exception):
    """The hold took effect, but a restart will not know of it."""


class ControlHold:
    """Whether commands are refused; in memory, and in a file if one is configured."""

    def __init__(self, path: Path | None = None) -> None:
        """Reads the file; without one, commands are taken.

        Raises:
          InputError: the file is malformed.
        """
        self._path = path
        self.held = False
        """whether control is switched off: every command is refused."""
        if path is not None and path.exists():
            content = read_json(path, f"--state {path}")
            self.held = JsonObject(content, f"--state {path}", ("held",)).flag("held")

    def set(self, held: bool) -> None:
        """Takes effect immediately, even if the file cannot be written.

        Raises:
          HoldNotSaved: the file cannot be written.
        """
        self.held = held
        if self._path is None:
            return
        try:
            write_atomic(self._path, f"{json.dumps({'held': held})}\n".encode())
        except OSError as error:
            position = "off" if held else "on"
            raise HoldNotSaved(
                f"control is switched {position}, but a restart will not know: --state is "
                f"{self._path}: {error.strerror}"
            ) from None
