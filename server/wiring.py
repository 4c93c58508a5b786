"""All parts of the server put together."""

from __future__ import annotations

import asyncio

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware

from jaxserve.errors import InputError
from server.doors.answers import answer_problems
from server.doors.auth import RequireToken
from server.doors.limits import LimitBody, LimitRate
from server.doors.messages import CheckMessages, mcp_route
from server.doors.openenv_environment import ServeEnvironment
from server.doors.routes_episodes import episode_routes
from server.doors.routes_grading import grading_routes
from server.doors.routes_information import information_routes
from server.doors.tools import build_tools
from server.doors.web import add_page, page_tab
from server.service import Service
from server.sessions.compiling import Compilation
from server.settings import Settings
from server.wire.openenv_api import ConcurrencyConfig, create_app, take_routes
from server.wire.schemas import ServeAction, ServeObservation, ServeState

_PLACE_IDLE_S = 900.0
"""How long a connection's place is kept unused. OpenEnv also gives places away by a call of
``/mcp``, to clients that may never come back; the sessions themselves are in the log."""


def build_app(settings: Settings, compilation: Compilation) -> FastAPI:
    """The whole application.

    Args:
      compilation: under way; start-up waits for what a first step needs.

    Raises:
      InputError: settings that cannot work together.
    """
    service = _service(settings)
    tools = build_tools(service)
    app = create_app(
        lambda: ServeEnvironment(service, tools),
        ServeAction,
        ServeObservation,
        env_name="jaxserve",
        concurrency_config=ConcurrencyConfig(
            max_concurrent_envs=settings.max_connections,
            session_timeout=min(settings.session_idle_s, _PLACE_IDLE_S),
        ),
        state_cls=ServeState,
        gradio_builder=page_tab,
        custom_tab_name="jaxserve",
        custom_tab_primary=True,
    )
    app.title = "jaxserve"
    # OpenEnv would play every call of these in an environment of its own.
    take_routes(app, ("/reset", "/step", "/state"))
    (openenv_mcp,) = take_routes(app, ("/mcp",))
    for router in (
        episode_routes(service),
        grading_routes(service),
        information_routes(service, compilation),
        mcp_route(openenv_mcp),
    ):
        app.include_router(router)
    add_page(app)
    answer_problems(app)
    _add_limits(app, settings)

    async def start() -> None:
        await service.start(compilation.ready)

    async def stop() -> None:
        await service.stop()
        await asyncio.to_thread(compilation.end)

    app.router.on_startup.append(start)
    app.router.on_shutdown.append(stop)
    return app


def _service(settings: Settings) -> Service:
    if settings.live is None:
        return Service(settings)
    try:
        # What asks engines is not needed, nor perhaps installed, where nothing is asked.
        from server.live.service import LiveService
    except ModuleNotFoundError as error:
        raise InputError(
            f"JAXSERVE_MODE is live and {error.name} is not installed; "
            "pip install '.[server,gateway]' in the checkout"
        ) from None
    return LiveService(settings)


def _add_limits(app: FastAPI, settings: Settings) -> None:
    """Middleware; the one added last sees a request first."""
    app.add_middleware(CheckMessages)
    app.add_middleware(LimitBody, max_bytes=settings.max_body_bytes)
    if settings.token is not None:
        app.add_middleware(RequireToken, token=settings.token)
    app.add_middleware(LimitRate, rate=settings.rate_limit)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.cors_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type", "X-Session-Id"],
        )
