"""Folders of a session's attempts, and the variables that its agent gets."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from jaxserve.errors import InputError
from jaxserve.rollouts.evaluators import Episode
from jaxserve.rollouts.service.submission import Task

_PASSED_ON = ("PATH", "LANG", "LC_ALL", "TZ", "SSL_CERT_FILE")
"""Of the service's own variables; others may hold its tokens."""


@dataclass(frozen=True)
class Folders:
    """Where one attempt at a session lives."""

    top: Path
    """all of it."""

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

    def make(self, source: Path | None) -> None:
        """Makes them anew, with a copy of the source to work in.

        Raises:
          InputError: it cannot be copied.
        """
        try:
            shutil.rmtree(self.top, ignore_errors=True)
            self.artifacts.mkdir(parents=True, mode=0o700)
            self.home.mkdir()
            if source is None:
                self.work.mkdir()
            else:
                shutil.copytree(source, self.work, symlinks=True)
        except (OSError, shutil.Error) as error:
            raise InputError(f"runtime: source cannot be copied: {error}") from None

    def fresh_scratch(self) -> Path:
        """An empty folder for the evaluator."""
        scratch = self.top / "evaluation"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        return scratch


def variables_of(
    task: Task, session: str, folders: Folders, gateway: str, key: str, episode: Episode | None
) -> dict[str, str]:
    """The whole environment of an agent."""
    gateway = gateway.rstrip("/")
    ours = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    ours |= {
        "HOME": str(folders.home),
        "SESSION_ID": session,
        "TASK_ID": task.id,
        "SESSION_DIR": str(folders.top),
        "ARTIFACTS_DIR": str(folders.artifacts),
        "INSTRUCTION": task.instruction,
        "OPENAI_BASE_URL": f"{gateway}/v1",
        "OPENAI_API_KEY": key,
        "OPENAI_MODEL": task.model,
        "ANTHROPIC_BASE_URL": gateway,
        "ANTHROPIC_API_KEY": key,
        "GOOGLE_API_URL": gateway,
        "GOOGLE_API_KEY": key,
    }
    if episode is not None:
        ours |= {"ENVIRONMENT_URL": episode.url, "ENVIRONMENT_SESSION_ID": episode.session_id}
    return {**task.runtime.variables, **ours}
