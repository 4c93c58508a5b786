"""Folders of a session's attempts, and the variables that its agent gets."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from jaxserve.errors import InputError
from jaxserve.rollouts.evaluators import Episode
from jaxserve.rollouts.presets import Launch, load_preset
from jaxserve.rollouts.runtimes import Ours

_OF_SESSION = ("SESSION_ID", "TASK_ID", "SESSION_DIR", "ARTIFACTS_DIR")
_OF_EPISODE = ("ENVIRONMENT_URL", "ENVIRONMENT_SESSION_ID")
_TOKEN = "ENVIRONMENT_TOKEN"
_NOT_OURS = ("PATH", "HOME")
"""What the runtime gives."""
OWN_VARIABLES = frozenset(
    (*_NOT_OURS, *_OF_SESSION, *_OF_EPISODE, _TOKEN, *load_preset("shell").environment)
)
"""Variables of agents that a task does not set."""


@dataclass(frozen=True)
class Folders:
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


def ours_of(
    task: str,
    session: str,
    folders: Folders,
    launch: Launch,
    episode: Episode | None,
    token: str | None,
) -> Ours:
    """The variables of an agent that a task does not set; the token of the environment's server is
    one where it plays an episode there."""
    said = (session, task, str(folders.top), str(folders.artifacts))
    values = {**launch.environment, **dict(zip(_OF_SESSION, said, strict=True))}
    if episode is not None:
        values |= dict(zip(_OF_EPISODE, (episode.url, episode.session_id), strict=True))
        values |= {} if token is None else {_TOKEN: token}
    return Ours(
        folders.home, {name: value for name, value in values.items() if name not in _NOT_OURS}
    )
