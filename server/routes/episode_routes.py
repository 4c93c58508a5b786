"""HTTP routes that play episodes: reset, step, state, and many sessions at once."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Header, Request
from fastapi.responses import Response

from server.background import while_connected
from server.json_responses import OrjsonResponse
from server.routes.openapi import SESSION, responses
from server.routes.router import NamedSession, json_router, one_session
from server.service import Service
from server.sessions.session import SessionName
from server.wire import request_bodies, schemas
from server.wire.request_bodies import DriveBody, ResetBody, StepBody, StepManyBody
from server.wire.response_models import DriveAnswer, EpisodeLog, StepAnswer, StepManyAnswer
from server.wire.schemas import ServeState


def episode_routes(service: Service) -> APIRouter:
    """Routes of sessions; a request without a session id means the client's default session."""
    handlers = _EpisodeHandlers(service)
    router = json_router("Environment Control")
    router.post(
        "/reset", summary="Begin an episode", responses=responses(StepAnswer, *SESSION, 502, 507)
    )(handlers.reset)
    router.post(
        "/step",
        summary="Hold the knobs for one window",
        responses=responses(StepAnswer, *SESSION, 402, 502, 507),
    )(handlers.step)
    router.post(
        "/step_many",
        summary="One window of each of many sessions, all or none",
        responses=responses(StepManyAnswer, *SESSION, 402, 502, 507),
    )(handlers.step_many)
    router.get(
        "/state",
        summary="Totals of the episode",
        tags=["State Management"],
        responses=responses(ServeState, *SESSION),
    )(handlers.state)
    router.get(
        "/observation",
        summary="The last answer to reset or step, once more",
        responses=responses(StepAnswer, *SESSION),
    )(handlers.observation)
    router.post(
        "/agent",
        summary="Let an agent play the session on",
        responses=responses(DriveAnswer, *SESSION, 402, 502, 503, 507),
    )(handlers.agent)
    router.get(
        "/episode_log",
        summary="The whole episode, for download or for the grader",
        responses=responses(EpisodeLog, *SESSION, 503),
    )(handlers.episode_log)
    return router


class _EpisodeHandlers:
    # No docstrings here: FastAPI would add them to the OpenAPI schema, beside the summaries above.

    def __init__(self, service: Service) -> None:
        self._service = service

    async def reset(
        self,
        named: NamedSession,
        body: Annotated[ResetBody, Body(default_factory=ResetBody.model_construct)],
        x_default_session: Annotated[bool, Header()] = True,
    ) -> Response:
        session: SessionName | None = one_session(body.session_id, named)
        if not x_default_session and not isinstance(session, str):
            session = None
        arguments = request_bodies.reset_arguments(body, session)
        return OrjsonResponse(schemas.step_answer(await self._service.reset(**arguments)))

    async def step(self, named: NamedSession, body: StepBody) -> Response:
        session, action = one_session(body.session_id, named), body.action
        view = await self._service.step(
            session, action.knobs(), action.number(), request_id=body.request_id
        )
        return OrjsonResponse(schemas.step_answer(view))

    async def step_many(self, body: StepManyBody) -> Response:
        steps = [(one.session_id, one.action.knobs(), one.action.number()) for one in body.steps]
        return OrjsonResponse(schemas.step_many_answer(await self._service.step_many(steps)))

    async def state(self, named: NamedSession) -> ServeState:
        return schemas.state(await self._service.view(named))

    async def observation(self, named: NamedSession) -> Response:
        return OrjsonResponse(schemas.step_answer(await self._service.view(named)))

    async def agent(self, request: Request, named: NamedSession, body: DriveBody) -> Response:
        driven = self._service.drive(one_session(body.session_id, named), body.agent, body.windows)
        views = await while_connected(request, driven)
        return OrjsonResponse({"results": [schemas.step_answer(view) for view in views]})

    async def episode_log(self, request: Request, named: NamedSession) -> Response:
        history = await self._service.history(named, watching=True)
        windows = await while_connected(request, self._service.windows(history))
        knobs = [step.knobs for step in history.steps]
        return OrjsonResponse(
            schemas.episode_log(history.view, knobs, windows, history.choosers()),
            headers={"Content-Disposition": "attachment; filename=episode_log.json"},
        )
