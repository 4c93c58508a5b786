"""Endpoint plug-in of vLLM's API server: the control routes, and calls to vLLM's engines."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

from fastapi import FastAPI

from jaxserve_vllm.engine_control.access import check_token
from jaxserve_vllm.engine_control.routes import ControlError, Question, control_routes

ANSWER_WITHIN_S = 10.0
METHOD = "jaxserve_control"
"""Name of the method of vLLM's engine core that ``scheduler`` installs."""
SCHEDULER = "jaxserve_vllm.scheduler.ControlledScheduler"


class ControlEndpoint:
    """Endpoint plug-in, loaded by vLLM if ``VLLM_PLUGINS`` names ``jaxserve``."""

    name = "jaxserve"
    required_tasks = ("generate",)

    def __init__(self) -> None:
        """Reads the token from ``JAXSERVE_CONTROL_TOKEN``.

        Raises:
          ValueError: the token is too short.
        """
        self._token = check_token(os.environ.get("JAXSERVE_CONTROL_TOKEN"))
        self._core: Any = None

    def attach_router(self, app: FastAPI) -> None:
        """Adds the routes."""
        app.router.routes.extend(control_routes(self._token, self._ask_engines))

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:
        """Keeps vLLM's client of its engines."""
        del state, args
        self._core = engine_client.engine_core

    async def _ask_engines(self, question: Question) -> list[dict[str, Any]]:
        if question["ask"] == "put" and len(getattr(self._core, "core_engines", ())) != 1:
            # If one of several engines refuses a command, no other engine may have obeyed it.
            checked = await self._call_all({**question, "ask": "check"})
            if any("refused" in answer for answer in checked):
                return checked
        return await self._call_all(question)

    async def _call_all(self, question: Question) -> list[dict[str, Any]]:
        """The answers of every engine; raises ControlError if one does not answer."""
        try:
            answers = await asyncio.wait_for(
                _call_utility(self._core, METHOD, json.dumps(question)), ANSWER_WITHIN_S
            )
        except TimeoutError:
            raise ControlError(
                503, f"an engine has not answered for {ANSWER_WITHIN_S:g} s; ask what is in force"
            ) from None
        except Exception as error:
            if METHOD in str(error) and "no attribute" in str(error):
                sentence = f"vLLM was started without --scheduler-cls {SCHEDULER}"
            else:
                sentence = f"an engine cannot answer: {str(error)[:200]}"
            raise ControlError(503, sentence) from None
        return [json.loads(answer) for answer in answers]


async def _call_utility(core: Any, method: str, argument: str) -> list[str]:
    """Calls ``method`` of every engine behind this API server, data-parallel engines included."""
    if hasattr(core, "call_utility_all_async"):
        return await core.call_utility_all_async(method, argument)
    # Until 0.31 vLLM's own call kept the answer of the first engine only.
    call = core._call_utility_async
    return await asyncio.gather(
        *(call(method, argument, engine=engine) for engine in core.core_engines)
    )
