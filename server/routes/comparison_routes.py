"""HTTP routes that explain an episode: by traffic class, and compared with other agents."""

from __future__ import annotations

from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import Response
from orjson import Fragment

from jaxserve.tasks.traffic import stream_classes
from jaxserve.types import TimeStep
from server.background import while_connected
from server.json_responses import OrjsonResponse
from server.routes.openapi import SESSION, responses
from server.routes.router import NamedSession, json_router
from server.service import Service
from server.sessions.episodes import built_in_task
from server.wire.catalogue import describe_task
from server.wire.response_models import ClassesAnswer, YardsticksAnswer

_HARDLY_ANY = 0.01
"""Requests of a window, which are fractions, below which a mean over them is noise."""


def comparison_routes(service: Service) -> APIRouter:
    """Routes that change no session; computed in the background."""
    router = json_router("Comparison")

    @router.get(
        "/yardsticks",
        summary="The session's traffic in the hands of other agents",
        responses=responses(YardsticksAnswer, *SESSION, 503),
    )
    async def yardsticks(request: Request, named: NamedSession) -> Response:
        found = await while_connected(request, service.compared(named))
        return OrjsonResponse(
            {
                "session_id": found.view.session_id,
                "mean_arrival_rate_rps": found.mean_arrival_rate_rps,
                "agents": {name: Fragment(played) for name, played in found.agents.items()},
            }
        )

    @router.get(
        "/classes",
        summary="Figures of each traffic class, window by window",
        responses=responses(ClassesAnswer, *SESSION, 503),
    )
    async def classes(request: Request, named: NamedSession) -> Response:
        view, timesteps = await while_connected(request, service.replayed(named))
        return OrjsonResponse(
            {
                "session_id": view.session_id,
                "steps": len(timesteps.reward),
                "classes": _by_class(view.episode.task, timesteps),
            }
        )

    return router


def _by_class(task: str, timesteps: TimeStep) -> list[dict[str, Any]]:
    """An entry for each traffic class of the task, with lists over the windows."""
    metrics = timesteps.metrics
    itl_p99_ms = 1000.0 * np.asarray(metrics.p99_itl_s, np.float64)
    described = []
    places = stream_classes(built_in_task(task)).values()
    for about, bins in zip(describe_task(task)["classes"], places, strict=True):

        def total(counts: Any, bins: slice = bins) -> np.ndarray:
            return np.asarray(counts, np.float64)[:, bins].sum(axis=1)

        completed, first_tokens = total(metrics.completed), total(metrics.first_tokens)
        ended = completed + total(metrics.rejected) + total(metrics.lost)
        tpot_s = total(metrics.tpot_s * metrics.completed)
        decoding = completed + total(metrics.running)
        described.append(
            about
            | {
                "arrivals": total(metrics.arrivals).tolist(),
                "waiting": total(metrics.waiting).tolist(),
                "ended": ended.tolist(),
                "good": total(metrics.good).tolist(),
                "first_tokens": first_tokens.tolist(),
                "ttft_met": total(metrics.ttft_met).tolist(),
                "tpot_ms": _ratio(1000.0 * tpot_s, completed),
                # Engine iterations are shared by all requests that decode.
                "itl_p99_ms": _ratio(itl_p99_ms * decoding, decoding),
            }
        )
    return described


def _ratio(values: np.ndarray, counts: np.ndarray) -> list[float | None]:
    """values / counts; None if the count is near 0."""
    return [
        value / count if count > _HARDLY_ANY else None
        for value, count in zip(values.tolist(), counts.tolist(), strict=True)
    ]
