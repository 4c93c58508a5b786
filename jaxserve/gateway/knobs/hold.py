"""The operator's switch: whether anybody may turn knobs. It outlives the gateway."""

from __future__ import annotations

import json
from pathlib import Path

from jaxserve.checks import JsonObject
from jaxserve.datafiles import read_json, write_atomic


class NotKept(Exception):
    """The switch was thrown, and a restart would not know."""


class Switch:
    """In memory, and in a file if there is one."""

    def __init__(self, path: Path | None = None) -> None:
        """Reads the file; where there is none yet, control is on.

        Raises:
          InputError: the file is none of a switch.
        """
        self._path = path
        self.held = False
        """whether control is switched off: no command is taken."""
        if path is not None and path.exists():
            content = read_json(path, f"--state {path}")
            self.held = JsonObject(content, f"--state {path}", ("held",)).flag("held")

    def throw(self, held: bool) -> None:
        """It is so at once, whatever becomes of the file.

        Raises:
          NotKept: the file cannot be written.
        """
        self.held = held
        if self._path is None:
            return
        try:
            write_atomic(self._path, f"{json.dumps({'held': held})}\n".encode())
        except OSError as error:
            position = "off" if held else "on"
            raise NotKept(
                f"control is switched {position}, but a restart will not know: --state is "
                f"{self._path}: {error.strerror}"
            ) from None
