"""Runs the commands of a session, one after the other, within their common time limit."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from jaxserve.gateway.recording.redaction import Redaction
from jaxserve.rollouts.bounded_process import MARK, ProcessExit, ProcessLimits, run_process
from jaxserve.rollouts.evaluators import EnvironmentEpisode
from jaxserve.rollouts.presets import Launch, load_preset
from jaxserve.rollouts.runtimes import Runtime, ServiceVariables, command_line, container_removal
from jaxserve.rollouts.service.worker.workspace import Workspace

_REMOVAL_S = 60.0
_OF_SESSION = ("SESSION_ID", "TASK_ID", "SESSION_DIR", "ARTIFACTS_DIR")
_OF_EPISODE = ("ENVIRONMENT_URL", "ENVIRONMENT_SESSION_ID")
_TOKEN = "ENVIRONMENT_TOKEN"
_OF_RUNTIME = ("PATH", "HOME")
"""Variables that the runtime sets."""
OWN_VARIABLES = frozenset(
    (*_OF_RUNTIME, MARK, *_OF_SESSION, *_OF_EPISODE, _TOKEN, *load_preset("shell").environment)
)
"""Variables of agents that a task must not set."""


def session_variables(
    task: str,
    session: str,
    workspace: Workspace,
    launch: Launch,
    episode: EnvironmentEpisode | None,
) -> ServiceVariables:
    """Variables of the commands that prepare a session, and of its agent."""
    folders = (str(workspace.top), str(workspace.artifacts))
    values = {
        **launch.environment,
        **dict(zip(_OF_SESSION, (session, task, *folders), strict=True)),
    }
    if episode is not None:
        values |= dict(zip(_OF_EPISODE, (episode.url, episode.session_id), strict=True))
    own = {name: value for name, value in values.items() if name not in _OF_RUNTIME}
    return ServiceVariables(workspace.home, own)


@dataclass(frozen=True)
class EnvironmentToken:
    """The token that an agent gets for its environment's server."""

    url: str
    """address of the server."""
    token: str = field(repr=False)
    """token of the server."""

    def given(self, variables: ServiceVariables) -> ServiceVariables:
        """The agent's variables: those of all commands of the session, and the token."""
        return replace(variables, values={**variables.values, _TOKEN: self.token})


def environment_token(
    episode: EnvironmentEpisode | None, token: str | None
) -> EnvironmentToken | None:
    """The token for an agent that plays an episode; None where it plays none, or no token is known.

    Only the agent gets the token. Commands that prepare or evaluate a session get none.

    Args:
      token: the service's token for servers of environments.
    """
    return None if episode is None or token is None else EnvironmentToken(episode.url, token)


@dataclass(frozen=True)
class CommandPlace:
    """Folder, variables and output file of a command."""

    top: Path
    """folder that a container sees."""
    folder: Path
    """working directory, inside ``top``."""
    variables: ServiceVariables
    """variables that the service sets."""
    printed: Path
    """file to which output is appended."""
    redaction: Redaction = field(default_factory=Redaction)
    """secrets that are removed from the output."""

    @classmethod
    def of_evaluation(cls, top: Path, printed: Path) -> CommandPlace:
        """The place of commands that evaluate a session; they get no key."""
        variables = ServiceVariables(top, {"ARTIFACTS_DIR": str(top / "artifacts")})
        return cls(top, top / "work", variables, printed)


class Execution:
    """The commands of one stage."""

    def __init__(self, runtime: Runtime, budget_s: float, output_bytes: int) -> None:
        """Args: the runtime; the time limit of all commands together, from now; the most bytes of
        output that are kept of each."""
        self._runtime, self._output_bytes = runtime, output_bytes
        self._deadline_s = time.monotonic() + budget_s

    async def run(
        self, command: Sequence[str], place: CommandPlace, given: bytes = b""
    ) -> ProcessExit:
        """Runs a command to its end, and removes its container.

        Args:
          given: standard input.
        """
        process = command_line(
            self._runtime, command, place.variables, place.top, place.folder, reads=bool(given)
        )
        remaining_s = self._deadline_s - time.monotonic()
        limits = ProcessLimits(remaining_s, output_bytes=self._output_bytes)
        try:
            return await run_process(
                process.argv,
                place.folder,
                process.environment,
                place.printed,
                limits,
                given,
                place.redaction,
            )
        finally:
            await asyncio.shield(self.remove(place.top))

    def run_and_wait(
        self, place: CommandPlace, command: Sequence[str], printed: Path
    ) -> ProcessExit:
        """``run`` for a thread without an event loop; output goes to ``printed``, unredacted."""
        bare = CommandPlace(place.top, place.folder, place.variables, printed)
        return asyncio.run(self.run(command, bare))

    async def remove(self, top: Path) -> None:
        """Removes a container that outlived its command or its node."""
        process = container_removal(self._runtime, top)
        if process is not None:
            printed = top.with_name(f".{top.name}.removal")
            limits = ProcessLimits(_REMOVAL_S, output_bytes=2**16)
            top.parent.mkdir(parents=True, exist_ok=True)
            await run_process(process.argv, top.parent, process.environment, printed, limits)
            printed.unlink(missing_ok=True)


def copy_artifacts(source: Path, target: Path) -> None:
    """Copies an agent's artifacts for its evaluator; links are not followed."""
    shutil.rmtree(target, ignore_errors=True)
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True)
    else:
        target.mkdir()
