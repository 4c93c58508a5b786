"""Routes of vLLM's API server: ``/jaxserve/control`` and ``/jaxserve/steps``."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse, Response

from jaxserve_vllm.engine_control.access import check_token, refusal
from jaxserve_vllm.engine_control.command import CommandError, parse_command

MAX_BODY_BYTES = 16_384
ANSWER_WITHIN_S = 10.0
METHOD = "jaxserve_control"
"""Name of the method of vLLM's engine core that ``scheduler`` installs."""
SCHEDULER = "jaxserve_vllm.scheduler.ControlledScheduler"


class ControlEndpoint:
    """Endpoint plug-in of vLLM, loaded where ``VLLM_PLUGINS`` names ``jaxserve``."""

    name = "jaxserve"
    required_tasks = ("generate",)

    def __init__(self) -> None:
        """Takes the token from ``JAXSERVE_CONTROL_TOKEN``.

        Raises:
          ValueError: the token is too short.
        """
        self._token = check_token(os.environ.get("JAXSERVE_CONTROL_TOKEN"))
        self._core: Any = None

    def attach_router(self, app: FastAPI) -> None:
        """Adds the routes."""
        router = APIRouter(prefix="/jaxserve", include_in_schema=False)
        router.add_api_route("/control", self._show, methods=["GET"])
        router.add_api_route("/control", self._put, methods=["PUT"])
        router.add_api_route("/control", self._release, methods=["DELETE"])
        router.add_api_route("/steps", self._steps, methods=["GET"])
        app.include_router(router)

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:
        """Keeps the way to the engines."""
        del state, args
        self._core = engine_client.engine_core

    async def _show(self, request: Request) -> Response:
        """What is in force."""
        return self._refused(request) or await self._ask({"ask": "state"})

    async def _put(self, request: Request) -> Response:
        """Turns knobs; answers with what is in force then."""
        if refused := self._refused(request):
            return refused
        body = b""
        async for piece in request.stream():
            body += piece
            if len(body) > MAX_BODY_BYTES:
                return _error(413, f"the command has more than {MAX_BODY_BYTES} bytes")
        try:
            command = parse_command(body)
        except CommandError as error:
            return _error(400, str(error))
        asked = asdict(command)
        if len(getattr(self._core, "core_engines", ())) != 1:
            # What one of several refuses, the others must not have obeyed meanwhile.
            checked = await self._ask({"ask": "check", **asked})
            if checked.status_code != 200:
                return checked
        return await self._ask({"ask": "put", **asked})

    async def _release(self, request: Request) -> Response:
        """Ends the lease."""
        return self._refused(request) or await self._ask({"ask": "release"})

    async def _steps(self, request: Request) -> Response:
        """The latest steps, after the one that ``after`` numbers."""
        if refused := self._refused(request):
            return refused
        after = request.query_params.get("after", "0")
        if not (after.isascii() and after.isdigit() and len(after) < 16):
            return _error(400, f"after is {after!r:.60}; it must be the number of a step")
        return await self._ask({"ask": "steps", "after": int(after)})

    def _refused(self, request: Request) -> Response | None:
        host = request.client.host if request.client else None
        refused = refusal(self._token, host, request.headers)
        return _error(*refused) if refused else None

    async def _ask(self, question: dict[str, Any]) -> Response:
        """Asks every engine; a command that one of them refuses is refused."""
        try:
            answers = await asyncio.wait_for(
                _call_all(self._core, METHOD, json.dumps(question)), ANSWER_WITHIN_S
            )
        except TimeoutError:
            return _error(
                503, f"an engine has not answered for {ANSWER_WITHIN_S:g} s; ask what is in force"
            )
        except Exception as error:
            if METHOD in str(error) and "no attribute" in str(error):
                return _error(503, f"vLLM was started without --scheduler-cls {SCHEDULER}")
            return _error(503, f"an engine cannot answer: {str(error)[:200]}")
        engines = [json.loads(answer) for answer in answers]
        for engine in engines:
            if "refused" in engine:
                return _error(400, engine["refused"])
        return JSONResponse({"engines": engines})


async def _call_all(core: Any, method: str, argument: str) -> list[str]:
    """Calls ``method`` of every engine that this API server serves, data-parallel ones included."""
    if hasattr(core, "call_utility_all_async"):
        return await core.call_utility_all_async(method, argument)
    # Until 0.31 vLLM's own call kept the answer of the first engine only.
    call = core._call_utility_async
    return await asyncio.gather(
        *(call(method, argument, engine=engine) for engine in core.core_engines)
    )


def _error(status: int, sentence: str) -> JSONResponse:
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return JSONResponse({"error": sentence}, status, headers)
