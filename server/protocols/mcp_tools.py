"""MCP tools with which an agent plays an episode."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastmcp import FastMCP
from fastmcp.exceptions import ToolError
from fastmcp.tools import FunctionTool
from pydantic import Field

import jaxserve
from jaxserve.errors import InputError
from jaxserve.spaces import KNOB_FIELDS
from server.request_errors import RefusedRequest
from server.service import Service
from server.wire import request_bodies, schemas
from server.wire.catalogue import describe_tasks
from server.wire.error_sentences import checked
from server.wire.request_bodies import ResetBody, StepBody
from server.wire.schemas import ActionModel

Tool = Callable[..., Awaitable[dict[str, Any]]]
_ACTION = "\n".join(
    f"{name}: {knob.bound.allowed}, {knob.text}" for name, knob in KNOB_FIELDS.items()
)


def build_tools(service: Service) -> FastMCP:
    """The tools reset, step, observe, grade and list_tasks."""
    tools = FastMCP(
        "jaxserve",
        version=jaxserve.__version__,
        instructions="You operate an LLM inference server. Call list_tasks, then reset; in every "
        "window read the observation and call step with the knobs to hold; call grade at the end.",
    )

    @tools.tool
    @_with_checked_names
    async def list_tasks() -> dict[str, Any]:
        """The tasks with their descriptions, active knobs, objectives and numbers of windows."""
        return {"tasks": describe_tasks(), "action_schema": ActionModel.model_json_schema()}

    @tools.tool
    @_with_checked_names
    async def reset(
        task_id: str | int = "static_workload",
        seed: int | None = None,
        split: str | None = None,
        session_id: str | None = None,
    ) -> dict[str, Any]:
        """Begins an episode and returns its session_id and first observation."""
        given = {"task_id": task_id, "seed": seed, "split": split, "session_id": session_id}
        body = checked(ResetBody, given)
        view = await service.reset(**request_bodies.reset_arguments(body, body.session_id))
        return schemas.readable_answer(view)

    @tools.tool
    @_with_checked_names
    async def step(
        session_id: str, action: Annotated[dict[str, Any], Field(description=_ACTION)]
    ) -> dict[str, Any]:
        """Holds the knobs for one window; absent knobs have their default."""
        chosen = checked(StepBody, {"action": action}).action
        session_id = schemas.checked_session_id(session_id)
        view = await service.step(session_id, chosen.knobs(), chosen.number())
        return schemas.readable_answer(view)

    @tools.tool
    @_with_checked_names
    async def observe(session_id: str) -> dict[str, Any]:
        """The session's last observation and its totals; the session does not change."""
        view = await service.view(schemas.checked_session_id(session_id))
        return schemas.readable_answer(view) | {"state": schemas.state(view).model_dump()}

    @tools.tool
    @_with_checked_names
    async def grade(session_id: str) -> dict[str, Any]:
        """The score of the session's episode so far: 0 random, 0.5 best static, 1 oracle."""
        view, grade = await service.grade_session(schemas.checked_session_id(session_id))
        return dataclasses.asdict(grade) | schemas.played(view)

    return tools


def _with_checked_names(tool: Tool) -> Tool:
    """The tool with a check of its arguments: a sentence for each missing or unknown one."""
    known = inspect.signature(tool).parameters

    @functools.wraps(tool)
    async def call(**arguments: Any) -> dict[str, Any]:
        for name in arguments:
            if name not in known:
                allowed = ", ".join(known) or "none"
                raise InputError(f"argument {name!r:.60} is unknown; allowed are {allowed}")
        for name, parameter in known.items():
            if parameter.default is parameter.empty and name not in arguments:
                raise InputError(f"{name} is missing; {tool.__name__} takes {', '.join(known)}")
        try:
            return await tool(**arguments)
        except (InputError, RefusedRequest) as error:
            # FastMCP passes the text of a ToolError to the client unchanged.
            raise ToolError(str(error)) from error

    return call


async def listed_tools(tools: FastMCP) -> dict[str, Any]:
    """The answer to OpenEnv's action ``list_tools``."""
    listed = [
        {"name": tool.name, "description": tool.description or "", "input_schema": tool.parameters}
        for tool in await tools.list_tools()
    ]
    return {"observation": {"tools": listed, "metadata": {}}, "reward": None, "done": False}


async def called_tool(tools: FastMCP, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """The answer to OpenEnv's action ``call_tool``, with the tool's error if there was one."""
    result, error = {}, None
    try:
        found = await tools.get_tool(name)
        if isinstance(found, FunctionTool):
            result = await found.fn(**arguments)
        else:
            known = ", ".join(tool.name for tool in await tools.list_tools())
            text = f"tool_name is {name!r:.60}; it must be one of {known}"
            error = {"error_type": "tool_not_found", "message": text}
    except InputError as problem:
        error = {"error_type": "invalid_args", "message": str(problem)}
    except ToolError as problem:
        error = {"error_type": "execution_error", "message": str(problem)}
    observation = {"tool_name": name, "result": result or None, "error": error, "metadata": {}}
    reward, done = result.get("reward"), result.get("done", False)
    return {"observation": observation, "reward": reward, "done": done}
