"""All parts of the server put together."""

from __future__ import annotations

import asyncio

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware

from jaxserve.errors import InputError
from server.json_responses import answer_problems
from server.middleware.head_requests import HeadAsGet
from server.middleware.limits import LimitBody, LimitRate
from server.middleware.origins import CheckHost, CheckOrigin, RelativeRedirects, TrustedProxies
from server.middleware.query_names import CheckSocketQuery
from server.middleware.token import RequireToken
from server.middleware.websockets import LimitSockets
from server.protocols.mcp_tools import build_tools
from server.protocols.mcp_transport import McpTransport
from server.protocols.messages import CheckMessages, mcp_route
from server.protocols.openenv_environment import ServeEnvironment
from server.routes.comparison_routes import comparison_routes
from server.routes.episode_routes import episode_routes
from server.routes.grading_routes import grading_routes
from server.routes.information_routes import information_routes
from server.routes.openapi import describe
from server.routes.operator_routes import operator_routes
from server.routes.page import add_page, page_tab
from server.server_settings import Settings
from server.service import Service
from server.sessions.compiling import Compilation
from server.wire.openenv_api import ConcurrencyConfig, create_app, take_routes
from server.wire.response_models import TASK_API
from server.wire.schemas import ActionModel, ObservationModel, ServeState

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
    context = McpTransport(tools)
    app = create_app(
        lambda: ServeEnvironment(service, tools),
        ActionModel,
        ObservationModel,
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
    # And it knows nothing of the log.
    take_routes(app, ("/health",))
    (openenv_mcp,) = take_routes(app, ("/mcp",))
    for router in (
        episode_routes(service),
        grading_routes(service),
        comparison_routes(service),
        operator_routes(service),
        information_routes(service, compilation),
        mcp_route(openenv_mcp, context),
    ):
        app.include_router(router)
    for (method, path), answer in TASK_API.items():
        (listing,) = take_routes(app, (path,))
        app.add_api_route(path, listing, methods=[method], response_model=answer, tags=["Task API"])
    add_page(app)
    answer_problems(app)
    describe(app)
    _add_limits(app, settings, context)

    async def start() -> None:
        await service.start(compilation)
        await context.start()

    async def stop() -> None:
        await context.stop()
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
        from server.live.live_service import LiveService
    except ModuleNotFoundError as error:
        raise InputError(
            f"JAXSERVE_MODE is live and {error.name} is not installed; "
            "pip install '.[server,gateway]' in the checkout"
        ) from None
    return LiveService(settings)


def _add_limits(app: FastAPI, settings: Settings, context: McpTransport) -> None:
    """Middleware; the one added last sees a request first."""
    app.add_middleware(CheckMessages, context=context)
    app.add_middleware(LimitBody, max_bytes=settings.max_body_bytes)
    app.add_middleware(HeadAsGet)
    app.add_middleware(RelativeRedirects)
    app.add_middleware(
        LimitSockets,
        per_address=settings.address_connections or -(-settings.max_connections // 2),
        idle_s=settings.socket_idle_s,
    )
    app.add_middleware(CheckSocketQuery)
    if settings.token is not None:
        app.add_middleware(RequireToken, token=settings.token)
    else:
        app.add_middleware(CheckHost, origins=settings.cors_origins)
    app.add_middleware(CheckOrigin, origins=settings.cors_origins)
    app.add_middleware(LimitRate, rate=settings.rate_limit)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.cors_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type", "X-Session-Id"],
        )
    app.add_middleware(TrustedProxies, proxies=settings.trusted_proxies)
