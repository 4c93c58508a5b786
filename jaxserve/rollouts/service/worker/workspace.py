"""Folders of a session's attempts."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from jaxserve.errors import InputError
from jaxserve.rollouts.presets import Launch


@dataclass(frozen=True)
class Workspace:
    """Folders of one attempt at a session."""

    top: Path
    """folder of the attempt; a container sees no other."""

    @property
    def work(self) -> Path:
        """The agent's working directory."""
        return self.top / "work"

    @property
    def home(self) -> Path:
        """The agent's ``HOME``."""
        return self.top / "home"

    @property
    def artifacts(self) -> Path:
        """Folder in which the agent leaves files for its evaluator."""
        return self.top / "artifacts"

    @property
    def printed(self) -> Path:
        """File of the agent's output."""
        return self.top / "agent.log"

    @property
    def evaluation(self) -> Path:
        """The evaluator's folder, outside of ``top``."""
        return self.top.with_name(f"{self.top.name}.evaluation")

    def make(self, source: Path | None) -> None:
        """Makes the folders anew, ``work`` as a copy of the source.

        Raises:
          InputError: the source cannot be copied.
        """
        _make(self.top, source, self.artifacts, self.home)

    def fresh(self, source: Path | None) -> Path:
        """Makes the evaluator's folder anew, with ``work`` in it as a copy of the source.

        Raises:
          InputError: the source cannot be copied.
        """
        _make(self.evaluation, source)
        return self.evaluation


def _make(top: Path, source: Path | None, *empty: Path) -> None:
    """Makes a new folder with ``work``, a copy of the source, and with empty folders.

    Raises:
      InputError: the source cannot be copied.
    """
    try:
        shutil.rmtree(top, ignore_errors=True)
        top.mkdir(parents=True, mode=0o700)
        for folder in empty:
            folder.mkdir(mode=0o700)
        if source is None:
            (top / "work").mkdir()
        else:
            shutil.copytree(source, top / "work", symlinks=True)
    except (OSError, shutil.Error) as error:
        raise InputError(f"runtime: source cannot be copied: {error}") from None


def write_files(launch: Launch, inside: Workspace, outside: Workspace) -> None:
    """Writes the files of an agent's preset, with mode 600.

    Args:
      inside: the session's folders as the sandbox has them, in which the preset has its files.
      outside: the same folders on this machine.

    Raises:
      InputError: a file cannot be written.
    """
    try:
        for name, content in launch.files.items():
            path = outside.top / Path(name).relative_to(inside.top)
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.touch(mode=0o600)
            path.write_bytes(content)
    except OSError as error:
        raise InputError(f"the agent's files cannot be written: {error}") from None
