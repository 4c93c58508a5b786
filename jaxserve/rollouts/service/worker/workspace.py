"""Folders of a session's attempts, and what is in them when its agent begins."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from jaxserve.errors import InputError
from jaxserve.rollouts.presets import Launch


@dataclass(frozen=True)
class Workspace:
    """Where one attempt at a session lives."""

    top: Path
    """all that the agent has."""

    @property
    def work(self) -> Path:
        """Where the agent works."""
        return self.top / "work"

    @property
    def home(self) -> Path:
        """The agent's ``HOME``."""
        return self.top / "home"

    @property
    def artifacts(self) -> Path:
        """What the agent is to leave for others."""
        return self.top / "artifacts"

    @property
    def printed(self) -> Path:
        """What the agent prints."""
        return self.top / "agent.log"

    @property
    def evaluation(self) -> Path:
        """The evaluator's, where the agent does not look."""
        return self.top.with_name(f"{self.top.name}.evaluation")

    def make(self, source: Path | None) -> None:
        """Makes them anew, with a copy of the source to work in.

        Raises:
          InputError: it cannot be copied.
        """
        _make(self.top, source, self.artifacts, self.home)

    def fresh(self, source: Path | None) -> Path:
        """An empty folder for the evaluator, with ``work`` in it as the agent found it.

        Raises:
          InputError: it cannot be made.
        """
        _make(self.evaluation, source)
        return self.evaluation


def _make(top: Path, source: Path | None, *beside: Path) -> None:
    """A new folder with a copy of the source, ``work``, and empty ones beside it.

    Raises:
      InputError: it cannot be made.
    """
    try:
        shutil.rmtree(top, ignore_errors=True)
        top.mkdir(parents=True, mode=0o700)
        for folder in beside:
            folder.mkdir(mode=0o700)
        if source is None:
            (top / "work").mkdir()
        else:
            shutil.copytree(source, top / "work", symlinks=True)
    except (OSError, shutil.Error) as error:
        raise InputError(f"runtime: source cannot be copied: {error}") from None


def write_files(launch: Launch) -> None:
    """What an agent's preset wants to be there; others do not read it.

    Raises:
      InputError: it cannot be written.
    """
    try:
        for name, content in launch.files.items():
            path = Path(name)
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.touch(mode=0o600)
            path.write_bytes(content)
    except OSError as error:
        raise InputError(f"the agent's files cannot be written: {error}") from None
