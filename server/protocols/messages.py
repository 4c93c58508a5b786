"""Messages of OpenEnv's WebSocket protocol and of MCP, checked before OpenEnv reads them.

OpenEnv itself answers an invalid action with "Invalid message" and a list, an invalid JSON-RPC call
with a paragraph, and closes the connection on a message that is no JSON object.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jaxserve.errors import InputError
from server.json_responses import OrjsonResponse, to_json
from server.middleware.proxies import route_path
from server.protocols.mcp_tools import called_tool, listed_tools
from server.protocols.mcp_transport import McpTransport
from server.protocols.openenv_environment import CONNECTION, SocketConnection
from server.request_errors import RefusedRequest
from server.routes.openapi import responses
from server.wire.error_sentences import checked, read_object
from server.wire.request_bodies import Body
from server.wire.response_models import CallAnswer
from server.wire.schemas import ActionModel

_PARSE_ERROR = -32700
_INVALID_REQUEST = -32600
_INVALID_PARAMS = -32602
_LEFT = 1006
_TOOL_ACTIONS = ("list_tools", "call_tool")


_MCP_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["jsonrpc", "method"],
                    "properties": {
                        "jsonrpc": {"const": "2.0", "type": "string"},
                        "method": {"type": "string"},
                        "id": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
                        "params": {"type": "object"},
                    },
                }
            }
        },
    }
}


class CheckMessages:
    """ASGI middleware of the WebSockets ``/ws`` and ``/mcp``: answers invalid messages, and steps.

    OpenEnv would read, check and write the message of a step once more by its own models.
    """

    def __init__(self, app: ASGIApp, transport: McpTransport) -> None:
        """Args: the application, and the MCP transport, for calls that OpenEnv does not know."""
        self._app, self._transport = app, transport

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hands other messages on."""
        path = route_path(scope) if scope["type"] == "websocket" else None
        if path not in ("/ws", "/mcp"):
            await self._app(scope, receive, send)
            return
        connection = SocketConnection()
        CONNECTION.set(connection)

        async def own_answer(text: str | None) -> dict[str, Any] | None:
            """The answer; empty for none, None for a message that OpenEnv answers."""
            if path == "/mcp":
                return _answer_call(self._transport, text)
            return await _answer_message(self._transport, connection, text)

        async def checked_message() -> Message:
            while True:
                message = await receive()
                if message["type"] != "websocket.receive":
                    return message
                answer = await own_answer(message.get("text"))
                if answer is None:
                    return message
                if not answer:
                    continue
                try:
                    await send({"type": "websocket.send", "text": to_json(answer).decode()})
                except OSError:  # the client has left: ASGI's servers raise it
                    return {"type": "websocket.disconnect", "code": _LEFT}

        await self._app(scope, checked_message, send)


def mcp_route(openenv: Callable[[Request], Any], transport: McpTransport) -> APIRouter:
    """``POST /mcp`` with the same checks, for OpenEnv's clients and for MCP's own.

    Args:
      openenv: OpenEnv's own handler of that route.
    """
    router = APIRouter(default_response_class=OrjsonResponse)

    @router.post(
        "/mcp",
        summary="Call a tool, by JSON-RPC",
        tags=["MCP"],
        responses=responses(CallAnswer),
        openapi_extra=_MCP_BODY,
    )
    async def mcp(request: Request) -> Response:
        body = await request.body()
        answer = _invalid_call(body)
        if answer is None and transport.serves(request):
            return transport.answer(body)
        if answer is None:
            answer = _answer_call(transport, body)
        if answer is None:
            return OrjsonResponse(await openenv(request))
        return OrjsonResponse(answer) if answer else Response(status_code=202)

    return router


class _Params(BaseModel):
    """Parameters that some method takes."""

    name: str = ""
    arguments: dict[str, Any] = Field(default_factory=dict)
    session_id: str = ""


class _Call(Body):
    """A JSON-RPC call."""

    jsonrpc: Literal["2.0"]
    method: str
    params: _Params = _Params()
    id: int | str | None = None


class _Reset(Body):
    type: Literal["reset"]
    data: dict[str, Any] = Field(default_factory=dict)


class _Step(Body):
    type: Literal["step"]
    data: ActionModel


class _ListTools(Body):
    type: Literal["list_tools"]
    metadata: dict[str, Any] = Field(default_factory=dict)


class _CallTool(Body):
    type: Literal["call_tool"]
    tool_name: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    metadata: dict[str, Any] = Field(default_factory=dict)


class _ToolStep(Body):
    type: Literal["step"]
    data: Annotated[_ListTools | _CallTool, Field(discriminator="type")]


class _Bare(Body):
    type: Literal["state", "close"]


class _Mcp(Body):
    type: Literal["mcp"]
    data: dict[str, Any]


_KINDS: dict[str, type[Body]] = {
    "reset": _Reset,
    "step": _Step,
    "state": _Bare,
    "close": _Bare,
    "mcp": _Mcp,
}


async def _answer_message(
    transport: McpTransport, connection: SocketConnection, text: str | None
) -> dict[str, Any] | None:
    """The answer to a step, and to a message of ``/ws`` that is invalid or unknown to OpenEnv; else
    None."""
    try:
        message = read_object(text)
    except InputError as error:
        return _error(error, "INVALID_JSON")
    kind = message.get("type")
    model = _KINDS.get(kind) if isinstance(kind, str) else None
    if model is None:
        allowed = ", ".join(_KINDS)
        return _error(f"type is {kind!r:.60}; it must be one of {allowed}", "UNKNOWN_TYPE")
    data = message.get("data")
    if model is _Step and isinstance(data, dict) and data.get("type") in _TOOL_ACTIONS:
        model = _ToolStep
    try:
        found = checked(model, message)
    except InputError as error:
        return _error(error, "VALIDATION_ERROR")
    if isinstance(found, _Mcp):
        answer = _refusal(found.data) or transport.handshake(found.data)
        return answer and {"type": "mcp", "data": answer}
    try:
        if isinstance(found, _ToolStep):
            return _observed(await _play_tool(transport, connection, found.data))
        if isinstance(found, _Step) and connection.takes_step():
            return _observed(await connection.step(found.data))
    except (InputError, RefusedRequest) as error:
        return _error(error, "EXECUTION_ERROR")
    return None


async def _play_tool(
    transport: McpTransport, connection: SocketConnection, action: _ListTools | _CallTool
) -> dict[str, Any]:
    """Data of the answer to an action of OpenEnv's ``MCPToolClient``, version 0.3 of
    openenv-core."""
    if isinstance(action, _ListTools):
        return await listed_tools(transport.tools)
    answer = await called_tool(transport.tools, action.tool_name, action.arguments)
    await connection.look_again()
    return answer


def _observed(data: dict[str, Any]) -> dict[str, Any]:
    return {"type": "observation", "data": data}


def _error(text: object, code: str) -> dict[str, Any]:
    return {"type": "error", "data": {"message": str(text), "code": code}}


def _answer_call(transport: McpTransport, text: str | bytes | None) -> dict[str, Any] | None:
    """The answer to a JSON-RPC call that is invalid or unknown to OpenEnv; else None. Notifications
    have an empty answer."""
    wrong = _invalid_call(text)
    return transport.handshake(read_object(text)) if wrong is None else wrong


def _invalid_call(text: str | bytes | None) -> dict[str, Any] | None:
    """The answer to an invalid JSON-RPC call; None if the call is valid."""
    try:
        call = read_object(text)
    except InputError as error:
        is_json = not str(error).startswith("the request is no JSON")
        return _rpc_error(error, _INVALID_REQUEST if is_json else _PARSE_ERROR, None)
    return _refusal(call)


def _refusal(call: dict[str, Any]) -> dict[str, Any] | None:
    try:
        checked(_Call, call)
    except InputError as error:
        code = _INVALID_PARAMS if str(error).startswith("params") else _INVALID_REQUEST
        given = call.get("id")
        return _rpc_error(error, code, given if isinstance(given, int | str) else None)
    return None


def _rpc_error(error: object, code: int, call_id: int | str | None) -> dict[str, Any]:
    return {
        "jsonrpc": "2.0",
        "id": call_id,
        "error": {"code": code, "message": str(error), "data": None},
    }
