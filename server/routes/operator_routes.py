"""The HTTP route that lets the operator's language model play a session."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Body, Request
from fastapi.responses import Response

from jaxserve.spaces import DEFAULT_ACTION
from server.background import while_connected
from server.json_responses import OrjsonResponse
from server.players.operator import Decision, Operator
from server.routes.openapi import SESSION, responses
from server.routes.router import NamedSession, json_router, one_session
from server.service import Service
from server.sessions import programs
from server.sessions.session import SessionName, View, check_running
from server.sessions.store import LoggedDecision
from server.wire.request_bodies import OperateBody
from server.wire.response_models import OperatorAnswer
from server.wire.schemas import action_fields, step_answer


def operator_routes(service: Service) -> APIRouter:
    """The route plays one decision, so that a client can show it and stop."""
    router = json_router("Environment Control")
    operator = Operator(service.model_budget)

    async def operate(session: SessionName, windows: int) -> tuple[Decision, list[View]]:
        history = await service.history(session)
        view = history.view
        check_running(view.session_id, view.steps, view.window.done)
        seen = await service.windows(history)
        last = view.knobs or programs.knobs_of(DEFAULT_ACTION)
        decision = await operator.decide(view.episode.task, seen, last)
        views = []
        reason = decision.reason
        for number in range(view.steps, view.steps + windows):
            # The number refuses a window if another client has stepped meanwhile.
            chosen = LoggedDecision("language_model", reason)
            views.append(await service.step(view.session_id, decision.knobs, number, chosen))
            reason = None
            if views[-1].window.done:
                break
        return decision, views

    @router.post(
        "/operator",
        summary="Let the operator's language model decide and play on",
        responses=responses(OperatorAnswer, *SESSION, 402, 502, 503, 507),
    )
    async def operator_route(
        request: Request,
        named: NamedSession,
        body: Annotated[OperateBody, Body(default_factory=OperateBody.model_construct)],
    ) -> Response:
        operated = operate(one_session(body.session_id, named), body.windows)
        decision, views = await while_connected(request, operated)
        return OrjsonResponse(
            {
                "decision": {
                    "action": action_fields(decision.knobs),
                    "reason": decision.reason,
                    "model": decision.model,
                    "tokens": decision.tokens,
                    "seconds": decision.seconds,
                },
                "results": [step_answer(view) for view in views],
            }
        )

    return router
