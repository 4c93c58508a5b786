"""Whole episodes played by agents and language models, in this process or over HTTP."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from jaxserve.client import ConnectionLost, ServeClient, ServerError
from jaxserve.client.async_client import StepResult
from jaxserve.errors import InputError
from jaxserve.grading import grade_actions
from jaxserve.spaces import KNOBS
from server.players.agents import Agents
from server.sessions import programs
from server.sessions.episodes import parse_episode
from server.sessions.programs import Knobs
from server.sessions.session import begin_session
from server.wire.catalogue import describe_task
from server.wire.schemas import readable

if TYPE_CHECKING:
    from server.players.language_agent import (
        LanguageAgent,  # it imports openai, which takes a second
    )

_Result = TypeVar("_Result")

_HTTP_TIMEOUT_S = 120.0
_DRIVEN = 50
"""Windows that an agent plays in one request."""


@dataclass(frozen=True)
class Turn:
    """One window of an episode."""

    number: int
    """number of the window, from 1."""
    knobs: Knobs
    observation: dict[str, Any]
    reward: float
    done: bool
    figures: dict[str, float]
    """see ``programs.window_figures``."""


class Game(Protocol):
    """One episode under way."""

    @property
    def observation(self) -> dict[str, Any]: ...

    @property
    def figures(self) -> dict[str, float]: ...

    @property
    def done(self) -> bool: ...

    def step(self, knobs: Knobs) -> Turn: ...

    def drive(self, agent: str) -> Iterator[Turn]:
        """The rest of the episode, played by one of jaxserve's agents."""
        ...

    def grade(self) -> dict[str, Any]: ...


class InProcess:
    """An episode without a server."""

    def __init__(self, task: str, seed: int, split: str, agents: Agents | None = None) -> None:
        """Raises InputError: no such task, seed or split."""
        self._agents = agents or Agents()
        self._episode = parse_episode(task, seed, split, None)
        self._session = begin_session("", 0, "", self._episode)
        self._actions: list[Knobs] = []

    @property
    def observation(self) -> dict[str, Any]:
        """Observation of the last window."""
        return self._session.window.observation

    @property
    def figures(self) -> dict[str, float]:
        """Figures of the last window."""
        return self._session.window.figures

    @property
    def done(self) -> bool:
        """Whether the last window has been played."""
        return self._session.over

    def step(self, knobs: Knobs) -> Turn:
        """Plays one window."""
        session = self._session
        state, outcome = programs.advance(session.simulator, session.state, knobs)
        session.append(state, programs.read_windows(outcome), 0, knobs)
        self._actions.append(knobs)
        window = session.window
        return Turn(
            session.steps, knobs, window.observation, window.reward, window.done, window.figures
        )

    def drive(self, agent: str) -> Iterator[Turn]:
        """See ``Game``."""
        driver = self._agents.load(agent, self._episode.task)
        while not self.done:
            yield self.step(driver(self._session))

    def grade(self) -> dict[str, Any]:
        """The grade, as of ``POST /grader``."""
        episode = self._episode
        actions = programs.stack_knobs(self._actions)
        return dataclasses.asdict(grade_actions(episode.task, episode.seed, actions, episode.split))


class OverHttp:
    """An episode on a server."""

    def __init__(self, url: str, task: str, seed: int, split: str, token: str | None) -> None:
        """Begins the episode.

        Raises:
          InputError: the server does not answer or refuses.
        """
        self._url = url
        self._client = ServeClient(url, token=token, timeout_s=_HTTP_TIMEOUT_S, patience_s=0.0)
        self._ask(lambda: self._client.reset(task_id=task, seed=seed, split=split))
        self._seen = self._ask(self._client.observe)

    @property
    def observation(self) -> dict[str, Any]:
        """Observation of the last window."""
        return self._seen.observation

    @property
    def figures(self) -> dict[str, float]:
        """Figures of the last window; empty where an earlier version of the server plays."""
        return self._seen.info.get("figures", {})

    @property
    def done(self) -> bool:
        """Whether the last window has been played."""
        return self._seen.done

    def step(self, knobs: Knobs) -> Turn:
        """Plays one window."""
        action = dict(zip(KNOBS, knobs, strict=True))
        return self._turn(self._ask(lambda: self._client.step(action)))

    def drive(self, agent: str) -> Iterator[Turn]:
        """See ``Game``."""
        while not self.done:
            yield from map(self._turn, self._ask(lambda: self._client.drive(agent, _DRIVEN)))

    def grade(self) -> dict[str, Any]:
        """The server's grade; closes the connection."""
        grade = self._ask(self._client.grade)
        self._client.close()
        return grade

    def _turn(self, answer: StepResult) -> Turn:
        self._seen = answer
        info = answer.info
        knobs = tuple(float(info["action"][knob]) for knob in KNOBS)
        return Turn(
            info["step"], knobs, answer.observation, answer.reward, answer.done, self.figures
        )

    def _ask(self, call: Callable[[], _Result]) -> _Result:
        try:
            return call()
        except ConnectionLost as error:
            problem = f"the server at {self._url} does not answer: {error}"
        except ServerError as error:
            problem = f"the server at {self._url} refused: {error}"
        self._client.close()
        raise InputError(problem)


def play_model(
    game: Game, agent: LanguageAgent, task: str, shown: Callable[[Turn], None] | None = None
) -> dict[str, Any]:
    """The grade of one episode played by a language model, None if the model never answered, with
    figures of its exchanges.

    Args:
      shown: called with every window.
    """
    about = describe_task(task)
    knobs: Knobs = tuple(float(about["default_action"][knob]) for knob in KNOBS)
    windows = [readable(game.observation, game.figures) | {"reward": 0.0}]
    begun, decisions, answers = len(agent.trace), agent.decisions, agent.answers
    while not game.done and agent.hopeless is None:
        due = (len(windows) - 1) % agent.settings.decide_every == 0
        if due and agent.refused is None:
            knobs = agent.decide(about, windows, knobs)
            if agent.hopeless is not None:
                break
        turn = game.step(knobs)
        windows.append(readable(turn.observation, turn.figures) | {"reward": turn.reward})
        if shown is not None:
            shown(turn)
    exchanges = agent.trace[begun:]
    for exchange in exchanges:
        exchange["task"] = task
    decisions, answers = agent.decisions - decisions, agent.answers - answers
    note = agent.hopeless or agent.exhausted
    if answers == 0:
        # The default knobs' score is not the model's.
        note = note or f"the model {agent.settings.model} has not answered in this episode"
    return (game.grade() if answers else {"score": None}) | {
        "exchanges": len(exchanges),
        "failed_exchanges": sum(exchange["error"] is not None for exchange in exchanges),
        "decisions": decisions,
        "failed_decisions": decisions - answers,
        "tokens": sum(exchange.get("tokens", 0) for exchange in exchanges),
        "note": note,
    }


def play_agent(
    game: Game, agent: str, shown: Callable[[Turn], None] | None = None
) -> dict[str, Any]:
    """The grade of one episode played by one of jaxserve's agents.

    Args:
      shown: called with every window.
    """
    for turn in game.drive(agent):
        if shown is not None:
            shown(turn)
    return game.grade()
