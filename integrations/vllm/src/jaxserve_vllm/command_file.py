"""Commands by a file, where the API server takes no plug-ins: nobody is told what came of them."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from jaxserve_vllm.engine_control.command import Command, CommandError, parse_command

logger = logging.getLogger("vllm.jaxserve")


class CommandFile:
    """A file that is looked at before every step and read when it has changed.

    What is in it at the start is not read: it may be of another day. Replace the file by renaming
    a complete one; one that cannot be read changes nothing.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = self._stamp()

    def poll(self) -> Command | None:
        """The command of the file if it is new; its lease begins now."""
        stamp = self._stamp()
        if stamp == self._seen:
            return None
        self._seen = stamp
        try:
            return parse_command(self._path.read_bytes())
        except (OSError, CommandError) as error:
            logger.warning("The command file changes nothing: %s", error)
            return None

    def _stamp(self) -> tuple[int, int, int] | None:
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino
