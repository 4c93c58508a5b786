"""The server: ``python -m server.app``. Any other ASGI server may serve ``app``."""

from __future__ import annotations

import argparse
import functools
import logging
import multiprocessing
import os
import signal
import sys
from typing import TYPE_CHECKING, Any, NoReturn

# A session's window is too small a computation for an accelerator.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

from jaxserve.errors import InputError
from jaxserve.runtime.jax_setup import collect_garbage_rarely
from jaxserve.runtime.listening import BACKLOG, listen, raise_file_limit
from server.server_settings import Settings
from server.shutdown import end, end_in_time, end_while_starting

if TYPE_CHECKING:
    import asyncio
    import socket

    from fastapi import FastAPI

_WORKER_CANNOT_START = 3
"""Exit code at which uvicorn ends all workers."""
_MAX_CONNECTIONS = 4096
"""Open HTTP connections per port at most, of which one client may have three quarters."""
_MAX_HEAD_BYTES = 64 * 2**10
_HEAD_S = 15.0
"""Seconds of silence on a connection, and until a request's head is complete, at most."""
_FILES_BESIDE = 256
"""Open files besides connections."""
_REQUESTS_END_S = 4
"""Seconds after a signal to stop until requests under way are cancelled."""
_SWITCH_S = 0.0005
"""Python's switch interval. A step waits for the interpreter several times while another thread
rebuilds sessions, by default five milliseconds each time."""


def _refuse(reason: object) -> NoReturn:
    """Ends the process with a sentence."""
    print(f"server: {reason}", file=sys.stderr, flush=True)
    # An ordinary exit would wait for the compiling thread. uvicorn restarts a worker that ends
    # with another code, again and again.
    os._exit(2 if multiprocessing.parent_process() is None else _WORKER_CANNOT_START)


@functools.cache
def _settings() -> Settings:
    try:
        return Settings.from_environment(arguments=sys.argv)
    except InputError as error:
        _refuse(error)


def _without_queries(record: logging.LogRecord) -> bool:
    """Removes queries from the paths of a log entry: one may name a session, which is a secret."""
    if isinstance(record.args, tuple):
        record.args = tuple(
            value.partition("?")[0] if isinstance(value, str) and value.startswith("/") else value
            for value in record.args
        )
    return True


@functools.cache
def _build() -> FastAPI:
    collect_garbage_rarely()  # a request of ``step_many``, too, makes thousands of objects
    settings = _settings()
    started = end_while_starting()
    for name in ("uvicorn.access", "uvicorn.error"):
        logging.getLogger(name).addFilter(_without_queries)
    for warning in settings.warnings:
        print(f"server: {warning}", file=sys.stderr, flush=True)
    from server.sessions.compiling import Compilation

    # XLA's pool for running programs. The calling thread computes a window; threads that are woken
    # for it find little to do, and take a core from those who play. Compiling has other threads.
    os.environ.setdefault("NPROC", "1")
    # Programs compile while the web framework is imported: both take seconds.
    compilation = Compilation(settings.compile_ahead)
    sys.setswitchinterval(_SWITCH_S)
    from server.wiring import build_app

    try:
        app = build_app(settings, compilation)
    except InputError as error:
        _refuse(error)
    app.router.on_startup.append(started)
    app.router.on_shutdown.insert(0, end_in_time)
    return app


@functools.cache
def _connections() -> type[asyncio.Protocol]:
    from jaxserve.runtime.limited_http import HttpLimits, limited_protocol

    limits = HttpLimits(_MAX_CONNECTIONS, _MAX_HEAD_BYTES, _HEAD_S, _MAX_CONNECTIONS * 3 // 4)
    return limited_protocol(limits)


def __getattr__(name: str) -> Any:
    """Builds ``app`` and ``connections`` on first access: a process that only starts workers needs
    neither."""
    if name == "app":
        return _build()
    if name == "connections":
        return _connections()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def main() -> None:
    """Serves until a signal."""
    chosen = option_parser().parse_args()
    settings = _settings()
    ports = chosen.port or [settings.port]
    raise_file_limit(_MAX_CONNECTIONS + settings.max_connections + _FILES_BESIDE)
    sockets = [_listen(chosen.host, port) for port in ports]
    host = "localhost" if chosen.host in ("0.0.0.0", "::") else chosen.host
    host = f"[{host}]" if ":" in host else host
    for port in ports:
        print(f"server: http://{host}:{port} answers in a few seconds", file=sys.stderr, flush=True)
    try:
        _serve(settings, sockets, access_log=chosen.access_log)
    except KeyboardInterrupt:
        # The signal came before the server answered, or after it closed.
        end(signal.SIGINT, "ended")


def _serve(settings: Settings, sockets: list[socket.socket], *, access_log: bool) -> None:
    import uvicorn
    from uvicorn.supervisors import Multiprocess

    config = uvicorn.Config(
        "server.app:app",
        http="server.app:connections",
        # TrustedProxies reads the headers of proxies.
        proxy_headers=False,
        ws_max_size=settings.max_body_bytes,
        # Messages have a kilobyte or two: compressing takes longer than sending.
        ws_per_message_deflate=False,
        # Pings keep proxies from closing a connection. Trainers that generate for a minute
        # answer none; JAXSERVE_SOCKET_IDLE_S bounds the silence.
        ws_ping_timeout=None,
        access_log=access_log,
        backlog=BACKLOG,
        # Clients such as httpx let go of a connection after 5 s of silence, uvicorn's own number: a
        # request would meet a connection that is just being closed.
        timeout_keep_alive=round(_HEAD_S),
        timeout_graceful_shutdown=_REQUESTS_END_S,
        workers=settings.workers,
        # JAX takes longer to import than uvicorn waits for a worker by itself.
        timeout_worker_healthcheck=60,
    )
    if settings.workers > 1:
        group = Multiprocess(config, sockets)
        group.run()
        if any(worker.exitcode == _WORKER_CANNOT_START for worker in group.processes):
            sys.exit(2)
    else:
        uvicorn.Server(config).run(sockets=sockets)


def option_parser() -> argparse.ArgumentParser:
    """Options of the command."""
    parser = argparse.ArgumentParser(
        prog="server",
        description="Plays jaxserve's episodes over HTTP, WebSocket and MCP.",
        # Settings.from_environment reads whole names only.
        allow_abbrev=False,
    )
    parser.add_argument("--host", default=os.environ.get("HOST", "0.0.0.0"))
    parser.add_argument(
        "--port",
        type=int,
        action="append",
        help="port to listen on; may be given more than once (default PORT, or 7860)",
    )
    # Settings.from_environment reads these three, also from another ASGI server's command line.
    parser.add_argument("--workers", help="processes (default WEB_CONCURRENCY, or 1)")
    parser.add_argument(
        "--forwarded-allow-ips",
        metavar="IPS",
        help="proxies whose X-Forwarded-For and X-Forwarded-Prefix are trusted (default "
        "FORWARDED_ALLOW_IPS, or none)",
    )
    parser.add_argument(
        "--root-path",
        metavar="PATH",
        help="path at which a proxy has put the server, /jax (default JAXSERVE_ROOT_PATH, or none)",
    )
    parser.add_argument(
        "--access-log", action="store_true", help="print a line for each HTTP request"
    )
    return parser


def _listen(host: str, port: int) -> socket.socket:
    try:
        return listen(host, port, "--port")
    except (InputError, OverflowError) as error:
        _refuse(error)


if __name__ == "__main__":
    main()
