"""Runs the commands of a session, one after the other, within their common time limit."""

from __future__ import annotations

import asyncio
import logging
import shutil
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from jaxserve.errors import InputError
from jaxserve.gateway.recording.redaction import Redaction
from jaxserve.rollouts.bounded_process import MARK, CommandOutput, ProcessExit, ProcessLimits
from jaxserve.rollouts.evaluators import EnvironmentEpisode
from jaxserve.rollouts.presets import Launch, load_preset
from jaxserve.rollouts.sandboxes import Sandbox, SandboxCommand
from jaxserve.rollouts.service.worker.workspace import Workspace

_LOG = logging.getLogger("jaxserve.rollouts")
_COPIES_S = 600.0
"""Time for copies of folders into a sandbox and back, beyond the time limit of the command, s."""
_OF_SESSION = ("SESSION_ID", "TASK_ID", "SESSION_DIR", "ARTIFACTS_DIR")
_OF_EPISODE = ("ENVIRONMENT_URL", "ENVIRONMENT_SESSION_ID")
_TOKEN = "ENVIRONMENT_TOKEN"
_OF_RUNTIME = ("PATH", "HOME")
"""Variables that the sandbox sets."""
OWN_VARIABLES = frozenset(
    (*_OF_RUNTIME, MARK, *_OF_SESSION, *_OF_EPISODE, _TOKEN, *load_preset("shell").environment)
)
"""Variables of agents that a task must not set."""


@dataclass(frozen=True)
class Runtime:
    """The runtime of a task's commands."""

    sandbox: Callable[[Path], Sandbox]
    """sandbox of a session's folder."""
    source: Path | None = None
    """folder that is copied for each agent; None gives agents an empty folder."""
    prepare: tuple[tuple[str, ...], ...] = ()
    """commands to run in the copy before the agent."""
    eval_prepare: tuple[tuple[str, ...], ...] = ()
    """commands to run in the evaluation's own copy."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """variables of all commands, beside the service's."""


@dataclass(frozen=True)
class ServiceVariables:
    """Variables that the service sets, apart from those of a task."""

    home: Path
    """``HOME``."""
    values: Mapping[str, str] = field(default_factory=dict, repr=False)
    """other variables, keys among them."""


def session_variables(
    task: str,
    session: str,
    inside: Workspace,
    launch: Launch,
    episode: EnvironmentEpisode | None,
) -> ServiceVariables:
    """Variables of the commands that prepare a session, and of its agent.

    Args:
      inside: the session's folders as the sandbox has them.
    """
    folders = (str(inside.top), str(inside.artifacts))
    values = {
        **launch.environment,
        **dict(zip(_OF_SESSION, (session, task, *folders), strict=True)),
    }
    if episode is not None:
        values |= dict(zip(_OF_EPISODE, (episode.url, episode.session_id), strict=True))
    own = {name: value for name, value in values.items() if name not in _OF_RUNTIME}
    return ServiceVariables(inside.home, own)


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
    """Variables and output file of a command."""

    variables: ServiceVariables
    """variables that the service sets."""
    printed: Path
    """file to which output is appended."""
    redaction: Redaction = field(default_factory=Redaction)
    """secrets that are removed from the output."""


def evaluation_variables(inside: Workspace) -> ServiceVariables:
    """Variables of commands that evaluate a session; they get no key.

    Args:
      inside: the evaluator's folders as the sandbox has them.
    """
    return ServiceVariables(inside.top, {"ARTIFACTS_DIR": str(inside.artifacts)})


class Execution:
    """The commands of one stage, each in a sandbox of its own."""

    def __init__(self, runtime: Runtime, folder: Path, budget_s: float, output_bytes: int) -> None:
        """Args: the runtime; the folder of the session or of its evaluation; the time limit of all
        commands together, from now; the most bytes of output that are kept of each."""
        self._runtime, self._folder, self._output_bytes = runtime, folder, output_bytes
        self._deadline_s = time.monotonic() + budget_s

    @property
    def inside(self) -> Workspace:
        """The folders as the sandbox has them."""
        return Workspace(self._runtime.sandbox(self._folder).inside)

    async def run(
        self, command: Sequence[str], place: CommandPlace, given: bytes = b""
    ) -> ProcessExit:
        """Runs a command to its end in ``work``; a sandbox that fails is the reason of the end.

        Args:
          given: standard input.
        """
        budget_s = self._deadline_s - time.monotonic()
        if budget_s <= 0:
            return ProcessExit(-signal.SIGTERM, timed_out=True)
        sandbox = self._runtime.sandbox(self._folder)
        own = place.variables
        inside = Workspace(sandbox.inside)
        asked = SandboxCommand(
            tuple(command), inside.work, self._runtime.variables, own.home, own.values, given
        )
        limits = ProcessLimits(budget_s, output_bytes=self._output_bytes)
        folders = [one.name for one in self._folder.iterdir() if one.is_dir()]
        try:
            async with asyncio.timeout(budget_s + _COPIES_S):
                with CommandOutput(place.printed, self._output_bytes, place.redaction) as output:
                    for name in folders:
                        await sandbox.put(name)
                    ended = await sandbox.run(asked, output.write, limits)
                    for name in folders:
                        await sandbox.get(name)
            return ended
        except InputError as error:
            return ProcessExit(127, reason=str(error))
        except TimeoutError:
            return ProcessExit(127, reason="the sandbox did not answer in time")
        except Exception as error:
            _LOG.error("a sandbox failed", exc_info=error)
            return ProcessExit(127, reason=f"the sandbox failed: {type(error).__name__}: {error}")
        finally:
            await asyncio.shield(_ended(sandbox))

    def run_and_wait(
        self, variables: ServiceVariables, command: Sequence[str], printed: Path
    ) -> ProcessExit:
        """``run`` for a thread without an event loop; output goes to ``printed``, unredacted."""
        return asyncio.run(self.run(command, CommandPlace(variables, printed)))

    async def remove(self) -> None:
        """Removes the sandbox that a killed node may have left."""
        await _ended(self._runtime.sandbox(self._folder))


async def _ended(sandbox: Sandbox) -> None:
    """Ends a sandbox; a failure is logged, since the command has its end already."""
    try:
        await sandbox.end()
    except Exception as error:
        _LOG.warning("a sandbox may be left: %s: %s", type(error).__name__, error)


def copy_artifacts(source: Path, target: Path) -> None:
    """Copies an agent's artifacts for its evaluator; links are not followed."""
    shutil.rmtree(target, ignore_errors=True)
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True)
    else:
        target.mkdir()
