"""Routes of the control endpoint, which are those of the plug-in for vLLM."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from jaxserve.errors import InputError
from jaxserve.gateway.http.json_http import plain_json
from jaxserve.mock_engine.access import refusal
from jaxserve.mock_engine.command import read_command
from jaxserve.mock_engine.control import Control
from jaxserve.mock_engine.loop import EngineLoop

MAX_BODY_BYTES = 16_384


class _Refused(Exception):
    """A request that is not answered, with status and sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class ControlEndpoint:
    """Turns and shows the knobs of one engine."""

    def __init__(self, control: Control, loop: EngineLoop, token: str | None) -> None:
        """Args: the knobs, the engine that obeys them, and what callers must bear."""
        self._control = control
        self._loop = loop
        self._token = token

    def routes(self) -> list[Route]:
        """For the application."""
        methods = ["GET", "PUT", "DELETE"]
        return [
            Route("/jaxserve/control", self._answer, methods=methods),
            Route("/jaxserve/steps", self._answer),
        ]

    async def _answer(self, request: Request) -> Response:
        try:
            self._admit(request)
            if request.url.path.endswith("/steps"):
                engine = self._steps(request)
            else:
                if request.method == "PUT":
                    self._control.put(read_command(await _body(request)))
                elif request.method == "DELETE":
                    self._control.release()
                engine = self._loop.state()
        except InputError as error:
            return _error(400, str(error))
        except _Refused as error:
            return _error(error.status, str(error))
        return plain_json({"engines": [engine]})

    def _admit(self, request: Request) -> None:
        client = request.client.host if request.client else None
        refused = refusal(self._token, client, request.headers)
        if refused is not None:
            raise _Refused(*refused)

    def _steps(self, request: Request) -> dict[str, Any]:
        after = request.query_params.get("after", "0")
        if not (after.isascii() and after.isdigit() and len(after) < 16):
            raise InputError(f"after is {after!r:.60}; it must be the number of a step")
        return self._loop.trace.after(int(after))


async def _body(request: Request) -> bytes:
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_BODY_BYTES:
            raise _Refused(413, f"the command has more than {MAX_BODY_BYTES} bytes")
    return body


def _error(status: int, sentence: str) -> Response:
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return plain_json({"error": sentence}, status, headers)
