"""The application: service, routes, protocols and middleware put together."""

from __future__ import annotations

import asyncio

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware
from fastapi.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jaxserve.errors import InputError
from server.json_responses import answer_problems
from server.middleware.access import CheckHost, CheckOrigin, RequireToken
from server.middleware.limits import LimitBody, LimitRate, LimitSockets
from server.middleware.measurements import MeasureRequests, ServerMeasurements
from server.middleware.proxies import RelativeRedirects, TrustedProxies
from server.middleware.query_names import CheckSocketQuery
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
from server.simulated_service import SimulatedService
from server.wire.openenv_api import ConcurrencyConfig, create_app, take_routes
from server.wire.response_models import TASK_API
from server.wire.schemas import ActionModel, ObservationModel, ServeState

_COMPRESSED_BYTES, _COMPRESSION = 8192, 1
"""Size of a compressed answer at least, and the level of gzip."""
_PLACE_IDLE_S = 900.0
"""Idle time after which OpenEnv frees a connection's place. Calls of ``/mcp`` take places, too, and
their clients may never return; the sessions themselves are in the log."""


def build_app(settings: Settings, compilation: Compilation) -> FastAPI:
    """The whole application.

    Args:
      compilation: compiles programs; start-up waits for those of a first step.

    Raises:
      InputError: settings contradict each other.
    """
    service = _service(settings)
    tools = build_tools(service)
    transport = McpTransport(tools)
    measurements = ServerMeasurements(service)
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
    # OpenEnv's own routes would play every call in a new environment, and know no session log.
    take_routes(app, ("/reset", "/step", "/state", "/health"))
    (openenv_mcp,) = take_routes(app, ("/mcp",))
    for router in (
        episode_routes(service),
        grading_routes(service),
        comparison_routes(service),
        operator_routes(service),
        information_routes(service, compilation, measurements.registry),
        mcp_route(openenv_mcp, transport),
    ):
        app.include_router(router)
    for (method, path), answer in TASK_API.items():
        (listing,) = take_routes(app, (path,))
        app.add_api_route(path, listing, methods=[method], response_model=answer, tags=["Task API"])
    add_page(app, settings.cors_origins)
    answer_problems(app)
    describe(app)
    _add_middleware(app, settings, transport, measurements)

    async def start() -> None:
        await service.start(compilation)
        await transport.start()

    async def stop() -> None:
        await transport.stop()
        await service.stop()
        await asyncio.to_thread(compilation.end)

    app.router.on_startup.append(start)
    app.router.on_shutdown.append(stop)
    return app


def _service(settings: Settings) -> Service:
    if settings.live is None:
        return SimulatedService(settings)
    try:
        # Clients of engines are an extra, which a server of simulated episodes does without.
        from server.live.live_service import LiveService
    except ModuleNotFoundError as error:
        raise InputError(
            f"JAXSERVE_MODE is live and {error.name} is not installed; "
            "pip install '.[server,gateway]' in the checkout"
        ) from None
    return LiveService(settings)


def _add_middleware(
    app: FastAPI, settings: Settings, transport: McpTransport, measurements: ServerMeasurements
) -> None:
    """Adds the middleware; the last one added sees a request first."""
    app.add_middleware(CheckMessages, transport=transport)
    app.add_middleware(LimitBody, max_bytes=settings.max_body_bytes)
    app.add_middleware(CompressGet, minimum_size=_COMPRESSED_BYTES, compresslevel=_COMPRESSION)
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
    app.add_middleware(MeasureRequests, measurements=measurements)
    app.add_middleware(
        TrustedProxies, proxies=settings.trusted_proxies, root_path=settings.root_path
    )


class CompressGet(GZipMiddleware):
    """ASGI middleware: compresses large answers to GET. Answers to POST are those of steps, which
    cost less to send than to compress."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hands other requests on."""
        compresses = scope["type"] == "http" and scope["method"] == "GET"
        await (super().__call__ if compresses else self.app)(scope, receive, send)


class HeadAsGet:
    """ASGI middleware: answers HEAD as GET without a body, for probes and caches."""

    def __init__(self, app: ASGIApp) -> None:
        """Args: the application."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hands HEAD on as GET and drops the body."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def without_body(message: Message) -> None:
            if message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        await self._app({**scope, "method": "GET"}, receive, without_body)
