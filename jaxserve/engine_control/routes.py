"""Routes ``/jaxserve/control`` and ``/jaxserve/steps``, and the answers of an engine to them.

A route becomes a question, a JSON object such as ``{"ask": "put", "lease_s": 5, "knobs": {}}``;
``answer_question`` answers it, in the process of the engine.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from .access import refusal
from .command import Command, CommandError, parse_command
from .leased_knobs import LeasedKnobs
from .step_log import StepLog

MAX_BODY_BYTES = 16_384

Question = dict[str, Any]
AskEngines = Callable[[Question], Awaitable[list[dict[str, Any]]]]
"""Puts a question to all engines of a server and returns their answers."""


class ControlError(Exception):
    """A control request that fails with an HTTP status; ``str()`` is the reason."""

    def __init__(self, status: int, sentence: str) -> None:
        """Args: HTTP status and reason."""
        super().__init__(sentence)
        self.status = status


def control_routes(token: str | None, ask_engines: AskEngines) -> list[Route]:
    """The control routes of a server.

    Args:
      token: required bearer token; None allows direct requests from this machine.
      ask_engines: reaches the engines; may raise ``ControlError``.
    """

    async def answer(request: Request) -> Response:
        try:
            client = request.client.host if request.client else None
            if refused := refusal(token, client, request.headers):
                raise ControlError(*refused)
            engines = await ask_engines(await _question(request))
            for engine in engines:
                if "refused" in engine:
                    raise CommandError(engine["refused"])
        except CommandError as error:
            return _error(400, str(error))
        except ControlError as error:
            return _error(error.status, str(error))
        return JSONResponse({"engines": engines})

    return [
        Route("/jaxserve/control", answer, methods=["GET", "PUT", "DELETE"]),
        Route("/jaxserve/steps", answer, methods=["GET"]),
    ]


def answer_question(
    question: Question, knobs: LeasedKnobs, log: StepLog, state: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """An engine's answer: ``state()`` after the command, rows of ``log``, or ``{"refused": why}``.

    Call it between two steps of the engine.
    """
    try:
        match question["ask"]:
            case "steps":
                return log.after(question["after"])
            case "check":
                knobs.check(Command(question["lease_s"], question["knobs"]))
            case "put":
                knobs.put(Command(question["lease_s"], question["knobs"]))
            case "release":
                knobs.release()
    except CommandError as error:
        return {"refused": str(error)}
    return state()


async def _question(request: Request) -> Question:
    if request.url.path.endswith("/steps"):
        after = request.query_params.get("after", "0")
        if not (after.isascii() and after.isdigit() and len(after) < 16):
            raise CommandError(f"after is {after!r:.60}; it must be the number of a step")
        return {"ask": "steps", "after": int(after)}
    if request.method == "DELETE":
        return {"ask": "release"}
    if request.method == "PUT":
        command = parse_command(await _body(request))
        return {"ask": "put", "lease_s": command.lease_s, "knobs": command.knobs}
    return {"ask": "state"}


async def _body(request: Request) -> bytes:
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_BODY_BYTES:
            raise ControlError(413, f"the command has more than {MAX_BODY_BYTES} bytes")
    return body


def _error(status: int, sentence: str) -> Response:
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return JSONResponse({"error": sentence}, status, headers)
