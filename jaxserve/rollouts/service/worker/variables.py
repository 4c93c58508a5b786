"""The variables that commands of a session get from the service."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from jaxserve.rollouts.bounded_process import MARK
from jaxserve.rollouts.evaluators import EnvironmentEpisode
from jaxserve.rollouts.presets import Launch, load_preset
from jaxserve.rollouts.runtimes import ServiceVariables
from jaxserve.rollouts.service.worker.workspace import Workspace

_OF_SESSION = ("SESSION_ID", "TASK_ID", "SESSION_DIR", "ARTIFACTS_DIR")
_OF_EPISODE = ("ENVIRONMENT_URL", "ENVIRONMENT_SESSION_ID")
_TOKEN = "ENVIRONMENT_TOKEN"
_NOT_OURS = ("PATH", "HOME")
"""What the runtime gives."""
OWN_VARIABLES = frozenset(
    (*_NOT_OURS, MARK, *_OF_SESSION, *_OF_EPISODE, _TOKEN, *load_preset("shell").environment)
)
"""Variables of agents that a task does not set."""


def session_variables(
    task: str, session: str, folders: Workspace, launch: Launch, episode: EnvironmentEpisode | None
) -> ServiceVariables:
    """Those of the commands that prepare a session, and of its agent."""
    said = (session, task, str(folders.top), str(folders.artifacts))
    values = {**launch.environment, **dict(zip(_OF_SESSION, said, strict=True))}
    if episode is not None:
        values |= dict(zip(_OF_EPISODE, (episode.url, episode.session_id), strict=True))
    return ServiceVariables(
        folders.home, {name: value for name, value in values.items() if name not in _NOT_OURS}
    )


@dataclass(frozen=True)
class EnvironmentToken:
    """What opens the environment's server to an agent."""

    url: str
    """of the server."""
    token: str = field(repr=False)
    """for it."""

    def given(self, ours: ServiceVariables) -> ServiceVariables:
        """The variables of the agent: those of all commands, and the token."""
        return replace(ours, values={**ours.values, _TOKEN: self.token})


def environment_token(
    episode: EnvironmentEpisode | None, token: str | None
) -> EnvironmentToken | None:
    """Who gets the token is decided here: an agent that plays an episode, where the service has a
    token for its server. Commands that prepare a session or its evaluation, and those of an
    evaluation, get none.

    Args:
      token: for environments' servers, if they ask for one.
    """
    return None if episode is None or token is None else EnvironmentToken(episode.url, token)
