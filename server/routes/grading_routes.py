"""HTTP routes that score play: the grader, and baselines to compare with."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Query, Request
from fastapi.responses import Response

from jaxserve.errors import InputError
from jaxserve.grading import Grade
from jaxserve.seeds import MAX_SEED
from server.background import while_connected
from server.json_responses import OrjsonResponse
from server.players.baseline_scores import Baselines
from server.routes.openapi import SESSION, responses
from server.routes.router import NamedSession, json_router, one_session
from server.service import DEFAULT_SPLIT, Service
from server.sessions.episodes import Episode, built_in_task, parse_episode
from server.wire.error_sentences import checked
from server.wire.request_bodies import BaselineBody, GradeBody
from server.wire.response_models import BaselineAnswer, GradeAnswer
from server.wire.schemas import LIVE, SIMULATED, ActionModel, played


def grading_routes(service: Service) -> APIRouter:
    """Routes of grades. The grader always replays: figures that a client states are compared with
    the replay, and never used."""
    handlers = _GradingHandlers(service)
    router = json_router("Grading")
    router.post(
        "/grader",
        summary="The score of a session, of actions or of an episode's log",
        responses=responses(GradeAnswer, *SESSION, 503),
    )(handlers.grader)
    router.get(
        "/baseline",
        summary="Scores of an agent on every task",
        responses=responses(BaselineAnswer, 402, 503),
    )(handlers.baseline)
    router.post(
        "/baseline",
        summary="The same, also of the operator's language model",
        responses=responses(BaselineAnswer, 402, 503),
    )(handlers.asked_baseline)
    return router


class _GradingHandlers:
    # No docstrings here: FastAPI would add them to the OpenAPI schema, beside the summaries above.

    def __init__(self, service: Service) -> None:
        self._service = service
        self._baselines = Baselines(
            service.agents, service.background, service, service.model_budget
        )
        # On a live server, simulated figures say that they are.
        self._mode = {} if service.settings.live is None else {"mode": SIMULATED}

    async def grader(
        self,
        request: Request,
        named: NamedSession,
        body: Annotated[GradeBody, Body(default_factory=GradeBody.model_construct)],
    ) -> Response:
        if body.mode == LIVE:
            raise InputError(
                "mode is 'live'; the log of a live episode has no simulated score, and what was "
                "measured is in it"
            )
        about: dict[str, Any] = {}
        if body.actions is None and body.episode_log is None:
            graded = self._service.grade_session(one_session(body.session_id, named))
            view, grade = await while_connected(request, graded)
            episode, about = view.episode, played(view)
            _check_same(body, episode)
        else:
            if body.session_id is not None or isinstance(named, str):
                raise InputError(
                    "a session is named beside actions or an episode_log; leave one out"
                )
            episode, grade = await self._grade_stated(request, body)
        steps = getattr(grade, "steps", None)
        if body.actions_taken is not None and body.actions_taken != steps:
            raise InputError(
                f"actions_taken is {body.actions_taken}; the episode has {steps} actions"
            )
        return OrjsonResponse(
            self._mode
            | dataclasses.asdict(grade)
            | {"task_id": episode.task, "seed": episode.seed, "split": episode.split}
            | about
        )

    async def _grade_stated(self, request: Request, body: GradeBody) -> tuple[Episode, Grade]:
        """The episode that the body states, and the grade of its actions or its log."""
        episode = parse_episode(*_stated(body))
        if episode.overrides:
            raise InputError(
                f"config has {', '.join(sorted(episode.overrides))}; only reward weights may "
                "accompany what is to be graded"
            )
        if body.task_version not in (None, episode.task_version):
            raise InputError(
                f"task_version is {body.task_version}; {episode.task} is at version "
                f"{episode.task_version}"
            )
        if body.actions is not None:
            graded = self._service.grade_actions(episode, [a.knobs() for a in body.actions])
        else:
            graded = self._service.grade_log(episode, _plain_log(body.episode_log or []))
        return episode, await while_connected(request, graded)

    async def baseline(
        self,
        request: Request,
        agent: Annotated[str, Query(max_length=64)] = "heuristic",
        seed: Annotated[int, Query(ge=0, le=MAX_SEED)] = 0,
        use_openai: bool = False,
        task_id: Annotated[str | None, Query(max_length=64)] = None,
        mode: Literal["deterministic", "openai"] | None = None,
    ) -> Response:
        use_openai = use_openai or mode == "openai"
        if use_openai and mode == "deterministic":
            raise InputError("use_openai is True and mode is 'deterministic'; name one of them")
        tasks = None if task_id is None else (built_in_task(task_id).name,)
        # A link or an image on any page can send a GET, so a GET never spends tokens.
        scores = (
            self._baselines.known_language_model(seed, tasks)
            if use_openai
            else self._baselines.deterministic(agent, seed, tasks)
        )
        return OrjsonResponse(self._mode | await while_connected(request, scores))

    async def asked_baseline(
        self,
        request: Request,
        body: Annotated[BaselineBody, Body(default_factory=BaselineBody.model_construct)],
    ) -> Response:
        scores = (
            self._baselines.language_model(body.seed)
            if body.use_openai
            else self._baselines.deterministic(body.agent, body.seed)
        )
        return OrjsonResponse(self._mode | await while_connected(request, scores))


def _stated(body: GradeBody) -> tuple[Any, Any, str, Mapping[str, Any] | None]:
    task = body.named_task()
    if body.actions is not None and body.episode_log is not None:
        raise InputError("actions and an episode_log are both given; leave one out")
    if task is None or body.seed is None:
        missing = "task_id" if task is None else "seed"
        raise InputError(f"{missing} is missing; it says which episode was played")
    return task, body.seed, body.split or DEFAULT_SPLIT, body.config


def _check_same(body: GradeBody, episode: Episode) -> None:
    """Raises InputError if the body states another episode than the session's."""
    task = body.named_task()
    stated = {
        "task_id": None if task is None else built_in_task(task).name,
        "seed": body.seed,
        "split": body.split,
    }
    played = {"task_id": episode.task, "seed": episode.seed, "split": episode.split}
    for name, value in stated.items():
        if value not in (None, played[name]):
            raise InputError(
                f"{name} is {value!r:.80}, but the session's is {played[name]!r}; an episode that "
                "was played elsewhere needs actions or an episode_log"
            )


def _plain_log(log: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The log with actions under the knobs' own names; absent knobs at their default."""
    plain = []
    for number, entry in enumerate(log):
        action = entry.get("action")
        if isinstance(action, Mapping):
            try:
                entry = entry | {
                    "action": checked(ActionModel, dict(action)).model_dump(exclude={"metadata"})
                }
            except InputError as error:
                raise InputError(f"episode_log[{number}]: action: {error}") from None
        plain.append(entry)
    return plain
