"""The server: ``uvicorn server.app:app --port 7860``, or ``python -m server.app``."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import socket
import sys
from typing import NoReturn

# One session's window is too small a computation for an accelerator to be worth the way there.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

from jaxserve.errors import InputError
from server.sessions.compiling import Compilation
from server.settings import Settings

_WORKER_CANNOT_START = 3
"""uvicorn ends all workers when one ends with this code."""


def _refuse(reason: object) -> NoReturn:
    """Ends the process with a sentence."""
    print(f"server: {reason}", file=sys.stderr, flush=True)
    # An ordinary exit would wait for the thread that compiles. A worker that ends in another way is
    # started again by uvicorn, without end.
    os._exit(2 if multiprocessing.parent_process() is None else _WORKER_CANNOT_START)


try:
    _settings = Settings.from_environment(arguments=sys.argv)
except InputError as _error:
    _refuse(_error)
# Programs compile while the web framework is imported: both take seconds.
_compilation = Compilation()

from server.wiring import build_app  # noqa: E402

try:
    app = build_app(_settings, _compilation)
except InputError as _error:
    _refuse(_error)


def main(arguments: list[str] | None = None) -> None:
    """Serves until it is told to stop.

    Args:
      arguments: of the command line; default is that of the process.
    """
    import uvicorn

    parser = argparse.ArgumentParser(prog="server", description=__doc__)
    parser.add_argument("--host", default=os.environ.get("HOST", "0.0.0.0"))
    parser.add_argument(
        "--port",
        type=int,
        action="append",
        help="port to listen on; may be given more than once (default PORT, or 7860)",
    )
    chosen = parser.parse_args(arguments)
    ports = chosen.port or [_settings.port]
    config = uvicorn.Config(
        app,
        ws_max_size=_settings.max_body_bytes,
        # A message is smaller than a kilobyte or two: to compress it takes longer than to send it.
        ws_per_message_deflate=False,
        access_log=False,
    )
    sockets = [_listen(chosen.host, port) for port in ports]
    host = "localhost" if chosen.host in ("0.0.0.0", "::") else chosen.host
    for port in ports:
        print(f"server: http://{host}:{port} answers in a few seconds", file=sys.stderr, flush=True)
    uvicorn.Server(config).run(sockets=sockets)


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), backlog=2048)
    except (OSError, OverflowError) as error:
        _refuse(f"port {port} of {host} cannot be used: {error}")


if __name__ == "__main__":
    main()
