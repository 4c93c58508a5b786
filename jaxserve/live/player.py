"""Sends a task's traffic to a real server in time, and measures as a client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from jaxserve.errors import InputError
from jaxserve.live.engine_client import EngineClient
from jaxserve.live.prompts import RandomPrompts
from jaxserve.sim.fast.state import Slo
from jaxserve.sim.reference.request import Request
from jaxserve.tasks.spec import TaskSpec


@dataclass(frozen=True)
class RequestOutcome:
    """The outcome of one request."""

    stream: str
    arrival_s: float
    """scheduled time of the request, s after the start."""
    late_s: float
    """delay of the request after its scheduled time, s."""
    prompt_tokens: int
    output_tokens: int
    ttft_s: float | None
    """None without a first token."""
    tpot_s: float | None
    """None with fewer than two tokens."""
    itl_tokens: int
    """tokens after the first."""
    good: bool
    """whether the request ended inside its objectives."""
    error: str | None
    """reason of a failure; None for a completed request."""


def stream_of_class(spec: TaskSpec) -> list[str]:
    """The name of the stream of each traffic class."""
    return [stream.name for stream in spec.streams for _ in range(stream.bins)]


async def play(
    client: EngineClient,
    streams: Sequence[str],
    slo: Slo,
    requests: Sequence[Request],
    prompts: RandomPrompts,
    ended: Callable[[RequestOutcome], None] = lambda outcome: None,
) -> list[RequestOutcome]:
    """Sends every request at its arrival time and waits for the last response.

    The headers ``X-Class`` and ``X-Priority`` have the stream and the priority, for the gateway.

    Args:
      client: the server.
      streams: name of the stream of each traffic class.
      slo: objectives of each traffic class.
      prompts: source of the prompts.
      ended: called with the outcome of each request.

    Returns:
      the outcomes, in the order of ``requests``.

    Raises:
      InputError: a request is longer than the server's longest sequence.
    """
    longest = client.longest
    for request in requests:
        tokens = request.prompt_tokens + request.output_tokens
        if longest is not None and tokens > longest:
            raise InputError(
                f"the traffic has a request of {tokens} tokens and the server serves {longest}; "
                "start it with a greater --max-model-len"
            )
    ttft_slo_s, tpot_slo_s = np.asarray(slo.ttft_s), np.asarray(slo.tpot_s)
    start_s = time.monotonic()

    async def one(request: Request) -> RequestOutcome:
        await asyncio.sleep(start_s + request.arrival_s - time.monotonic())
        late_s = time.monotonic() - start_s - request.arrival_s
        group = request.traffic_class
        headers = {"X-Class": streams[group], "X-Priority": str(request.priority)}
        prompt = prompts.make(request.prompt_tokens)
        ttft_s = tpot_s = error = None
        tokens = 0
        try:
            answer = await client.complete(prompt, request.output_tokens, headers)
        except InputError as problem:
            error = str(problem)
        else:
            ttft_s, tokens = answer.first_s - answer.sent_s, answer.output_tokens - 1
            tpot_s = (answer.last_s - answer.first_s) / tokens if tokens else None
        outcome = RequestOutcome(
            stream=streams[group],
            arrival_s=request.arrival_s,
            late_s=late_s,
            prompt_tokens=request.prompt_tokens,
            output_tokens=request.output_tokens,
            ttft_s=ttft_s,
            tpot_s=tpot_s,
            itl_tokens=tokens,
            good=ttft_s is not None
            and bool(ttft_s <= ttft_slo_s[group] and (tpot_s or 0.0) <= tpot_slo_s[group]),
            error=error,
        )
        ended(outcome)
        return outcome

    return list(await asyncio.gather(*map(one, requests)))
