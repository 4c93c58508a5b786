"""Commands by a file, for API servers without plug-ins: the writer gets no answer."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from jaxserve_vllm.engine_control.command import Command, CommandError, parse_command

logger = logging.getLogger("vllm.jaxserve")


class CommandFile:
    """A file that is checked before every step and read after a change.

    Content from before the start is ignored: it may be old. Replace the file by renaming a complete
    one; a file that cannot be read changes nothing.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = self._stamp()

    def poll(self) -> Command | None:
        """The command of the file if the file has changed; its lease begins now."""
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
