"""HTTP routes about the server: health, measurements, tasks, schemas, redirects to the page."""

from __future__ import annotations

import time

import jax
from fastapi import APIRouter
from fastapi.responses import RedirectResponse, Response
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

import jaxserve
from jaxserve.tasks.reward import REWARD_CONFIG
from jaxserve.tasks.spec import task_names
from server.json_responses import OrjsonResponse
from server.players.agents import playing_agents
from server.players.operator import is_offered
from server.routes.openapi import responses
from server.routes.router import json_router
from server.service import Service
from server.sessions.compiling import Compilation
from server.sessions.episodes import MAX_SERVED_HORIZON
from server.wire.catalogue import describe_tasks, reward_weights
from server.wire.response_models import HealthAnswer, InfoAnswer, RuntimeAnswer, TasksAnswer
from server.wire.schemas import LIVE, SIMULATED, ActionModel, ObservationModel, ServeState


def information_routes(
    service: Service, compilation: Compilation, registry: CollectorRegistry
) -> APIRouter:
    """Routes that change no session.

    Args:
      registry: measurements of the server itself.
    """
    router = json_router("Environment Info")
    started = time.monotonic()

    @router.get(
        "/health",
        summary="Whether it plays, and whether what it acknowledges is kept",
        responses=responses(HealthAnswer) | {503: {"model": HealthAnswer}},
    )
    async def health() -> Response:
        reason = await service.fault()
        active = {"active_sessions": service.live_sessions}
        if reason is None:
            return OrjsonResponse({"status": "healthy"} | active)
        # A restart would not help a log in memory, so probes see a success.
        status = 503 if service.durable else 200
        return OrjsonResponse({"status": "degraded", "reason": reason} | active, status_code=status)

    @router.get(
        "/tasks",
        summary="The tasks, their knobs and the schema of an action",
        responses=responses(TasksAnswer),
    )
    async def tasks() -> Response:
        return OrjsonResponse(
            {"tasks": describe_tasks(), "action_schema": ActionModel.model_json_schema()}
        )

    @router.get("/info", summary="Schemas and reward weights", responses=responses(InfoAnswer))
    async def info() -> Response:
        return OrjsonResponse(
            {
                "name": "jaxserve",
                "version": jaxserve.__version__,
                "action_schema": ActionModel.model_json_schema(),
                "observation_schema": ObservationModel.model_json_schema(),
                "state_schema": ServeState.model_json_schema(),
                "reward_weights": {task: reward_weights(task) for task in task_names()},
                "reward_config": REWARD_CONFIG,
                "agents": list(playing_agents()),
            }
        )

    @router.get(
        "/runtime",
        summary="The server and its limits",
        responses=responses(RuntimeAnswer),
    )
    async def runtime() -> Response:
        live = service.live
        return OrjsonResponse(
            {
                "mode": SIMULATED if live is None else LIVE,
                "version": jaxserve.__version__,
                "jax": jax.__version__,
                "backend": jax.default_backend(),
                "compiling": compilation.under_way,
                "uptime_s": round(time.monotonic() - started, 3),
                "live_sessions": service.live_sessions,
                "durable_sessions": service.durable,
                "default_session": service.settings.token is None,
                "language_model": is_offered(await service.model_budget.left()),
                "max_connections": service.settings.max_connections,
                "max_windows": MAX_SERVED_HORIZON,
                "warnings": list(service.settings.warnings),
            }
            | ({} if live is None else {"live": live})
        )

    @router.get("/metrics", include_in_schema=False)
    async def metrics() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    @router.get("/demo", include_in_schema=False)
    @router.get("/", include_in_schema=False)
    async def page() -> Response:
        return RedirectResponse("web")

    return router
