"""HTTP routes that play episodes: reset, step, state, and the same for many sessions at once."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Depends, Header, Query, Request
from fastapi.responses import Response

from server.disconnect import while_connected
from server.json_responses import OrjsonResponse
from server.middleware.query_names import known_query
from server.routes.openapi import SESSION, says
from server.service import Service
from server.wire import request_bodies, schemas
from server.wire.request_bodies import DriveBody, ResetBody, SessionId, StepBody, StepManyBody
from server.wire.response_models import DriveAnswer, EpisodeLog, StepAnswer, StepManyAnswer
from server.wire.schemas import ServeState


async def named_session(
    session_id: Annotated[SessionId | None, Query()] = None,
    x_session_id: Annotated[SessionId | None, Header()] = None,
) -> str | None:
    """The session that the query or the header names (async, which spares a thread)."""
    return session_id or x_session_id


Named = Annotated[str | None, Depends(named_session)]


def episode_routes(service: Service) -> APIRouter:
    """Session-keyed routes; without a session id they mean the default session."""
    router = APIRouter(
        tags=["Environment Control"],
        default_response_class=OrjsonResponse,
        dependencies=[Depends(known_query)],
    )

    @router.post(
        "/reset", summary="Begin an episode", responses=says(StepAnswer, *SESSION, 502, 507)
    )
    async def reset(
        named: Named, body: Annotated[ResetBody, Body(default_factory=ResetBody.model_construct)]
    ) -> Response:
        arguments = request_bodies.reset_arguments(body, body.session_id or named)
        return OrjsonResponse(schemas.step_answer(await service.reset(**arguments)))

    @router.post(
        "/step",
        summary="Hold the knobs for one window",
        responses=says(StepAnswer, *SESSION, 402, 502, 507),
    )
    async def step(named: Named, body: StepBody) -> Response:
        action = body.action
        view = await service.step(body.session_id or named, action.knobs(), action.number())
        return OrjsonResponse(schemas.step_answer(view))

    @router.post(
        "/step_many",
        summary="One window of each of many sessions, all or none",
        responses=says(StepManyAnswer, *SESSION, 402, 502, 507),
    )
    async def step_many(body: StepManyBody) -> Response:
        steps = [(one.session_id, one.action.knobs(), one.action.number()) for one in body.steps]
        return OrjsonResponse(schemas.step_many_answer(await service.step_many(steps)))

    @router.get(
        "/state",
        summary="Totals of the episode",
        tags=["State Management"],
        responses=says(ServeState, *SESSION),
    )
    async def state(named: Named) -> ServeState:
        return schemas.state(await service.view(named))

    @router.get(
        "/observation",
        summary="The last answer to reset or step, once more",
        responses=says(StepAnswer, *SESSION),
    )
    async def observation(named: Named) -> Response:
        return OrjsonResponse(schemas.step_answer(await service.view(named)))

    @router.post(
        "/agent",
        summary="Let an agent play the session on",
        responses=says(DriveAnswer, *SESSION, 402, 502, 503, 507),
    )
    async def agent(request: Request, named: Named, body: DriveBody) -> Response:
        driven = service.drive(body.session_id or named, body.agent, body.windows)
        views = await while_connected(request, driven)
        return OrjsonResponse({"results": [schemas.step_answer(view) for view in views]})

    @router.get(
        "/episode_log",
        summary="The whole episode, for download or for the grader",
        responses=says(EpisodeLog, *SESSION, 503),
    )
    async def episode_log(request: Request, named: Named) -> Response:
        history = await service.history(named)
        windows = await while_connected(request, service.windows(history))
        return OrjsonResponse(
            schemas.episode_log(history.view, [step.knobs for step in history.steps], windows),
            headers={"Content-Disposition": "attachment; filename=episode_log.json"},
        )

    return router
