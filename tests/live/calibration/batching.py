"""A small engine with continuous batching, by what its steps cost: in virtual time or over HTTP."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from jaxserve.live.calibration.plan import CalibrationPlan, longest_output
from jaxserve.live.calibration.steps import COLUMNS, Steps
from jaxserve.live.calibration.sweep import EngineMeasurements
from jaxserve.sim.fit.sweep import Sweep
from jaxserve.sim.machine.cost_model import IterationTimer
from tests.server_thread import FakeServer

BUDGET = 2048


@dataclass(eq=False)
class Sequence:
    """A request inside the engine."""

    prompt: int
    output: int
    prefilled: int = 0
    made: int = 0
    tokens: Any = None
    """queue of the HTTP answer that waits for them."""
    sent_s: float = 0.0
    first_s: float = 0.0
    last_s: float = 0.0


@dataclass
class Batch:
    """The scheduler: decodes first, then prompts in order of arrival within the token budget."""

    timer: IterationTimer
    sequences: list[Sequence] = field(default_factory=list)
    rows: list[tuple[float, ...]] = field(default_factory=list)
    """of ``steps.COLUMNS``."""

    def step(self) -> tuple[float, list[Sequence]]:
        """Seconds of the next step, and who gets a token by it."""
        decoding = [each for each in self.sequences if each.prefilled == each.prompt]
        kv_tokens = sum(each.prompt + each.made for each in decoding)
        room, chunks, getting = BUDGET - len(decoding), [], list(decoding)
        for each in self.sequences:
            if each.prefilled < each.prompt and room > 0:
                chunk = min(room, each.prompt - each.prefilled)
                chunks.append((chunk, each.prefilled))
                each.prefilled += chunk
                room -= chunk
                if each.prefilled == each.prompt:
                    getting.append(each)
        seconds = self.timer.iteration_s(
            decode_seqs=len(decoding), kv_tokens=kv_tokens, chunks=tuple(chunks)
        )
        pairs = sum(chunk * (prefix + chunk / 2) for chunk, prefix in chunks)
        prompt = sum(chunk for chunk, _ in chunks)
        self.rows.append((seconds, len(decoding), len(decoding), kv_tokens, prompt, pairs, 0))
        for each in getting:
            each.made += 1
        self.sequences = [each for each in self.sequences if each.made < each.output]
        return seconds, getting


def measured_in_virtual_time(
    timer: IterationTimer,
    plan: CalibrationPlan,
    *,
    frontend_s: float = 0.0,
    steps_told: bool = True,
    noise: float = 0.0,
    kv_pool_tokens: int | None = None,
) -> EngineMeasurements:
    """What ``measure`` finds at an engine without HTTP; ``noise`` is the spread of step times."""
    random_ = random.Random(1)
    rows, latencies_s, steps, requests = [], [], [], 0
    for in_flight, prompt, output in plan.points:
        batch, now = Batch(timer), 0.0
        batch.sequences = [
            Sequence(prompt, max(2, output * (place + 1) // in_flight))
            for place in range(in_flight)
        ]
        done: list[Sequence] = []
        while len(done) < 6 * in_flight + 6:
            seconds, getting = batch.step()
            now += seconds * random_.lognormvariate(0.0, noise)
            for each in getting:
                each.first_s, each.last_s = each.first_s or now, now
                if each.made == each.output:
                    done.append(each)
                    length = random_.randint(output // 2, longest_output(output))
                    batch.sequences.append(Sequence(prompt, length, sent_s=now))
        counted = [each for each in done if each.sent_s > 0]
        requests += len(counted)
        decoding_s = sum(each.last_s - each.first_s for each in counted)
        ttft_s = np.median([each.first_s - each.sent_s for each in counted]) + frontend_s
        tokens = [each.output for each in counted]
        tpot_s = decoding_s / sum(count - 1 for count in tokens)
        latencies_s.append(np.mean([each.last_s - each.sent_s for each in counted]) + frontend_s)
        rows.append((in_flight, prompt, np.mean(tokens), tpot_s, ttft_s))
        steps += batch.rows
    seconds, *loads = np.array(steps, float).T
    spread = np.exp(noise * np.random.default_rng(2).standard_normal(len(seconds)))
    return EngineMeasurements(
        load_test=Sweep(*np.array(rows, float).T),
        latency_s=np.array(latencies_s),
        requests=requests,
        steps=Steps(seconds * spread, *loads) if steps_told else None,
        kv_pool_tokens=kv_pool_tokens,
        batch_cap=None,
        token_budget=BUDGET,
    )


class HttpEngine(FakeServer):
    """``with HttpEngine(timer) as engine: ... engine.url``."""

    def __init__(
        self,
        timer: IterationTimer,
        *,
        plug_in: bool = False,
        ids: bool = True,
        fails_after: int = 10**9,
    ) -> None:
        """Args:
        plug_in: whether steps, KV blocks and knobs are told as vLLM with jaxserve-vllm does.
        ids: whether prompts may be token ids; words have two tokens each.
        fails_after: completions that are answered before the first error.
        """
        self.batch = Batch(timer)
        self.asked: list[dict[str, Any]] = []
        self._ids, self._fails_after, self._plug_in = ids, fails_after, plug_in
        routes = [
            Route("/v1/models", self._models),
            Route("/v1/completions", self._complete, methods=["POST"]),
        ]
        if plug_in:
            routes += [
                Route("/metrics", self._metrics),
                Route("/jaxserve/steps", self._steps),
                Route("/jaxserve/control", self._control),
            ]
        super().__init__(routes)
        self._running: asyncio.Task[None] | None = None

    async def _run(self) -> None:
        while self.batch.sequences:
            seconds, getting = self.batch.step()
            await asyncio.sleep(seconds)
            for each in getting:
                each.tokens.put_nowait(each.made)

    async def _models(self, request: Request) -> Response:
        return JSONResponse({"data": [{"id": "small", "max_model_len": 4096}]})

    async def _complete(self, request: Request) -> Response:
        body = await request.json()
        self.asked.append(body)
        prompt = body["prompt"]
        if len(self.asked) > self._fails_after or isinstance(prompt, list) > self._ids:
            return JSONResponse({"error": {"message": "out of order"}}, 400)
        count = len(prompt) if isinstance(prompt, list) else 1 + 2 * len(prompt.split())
        sequence = Sequence(count, body["max_tokens"], tokens=asyncio.Queue())
        self.batch.sequences.append(sequence)
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run())
        return StreamingResponse(self._stream(sequence), media_type="text/event-stream")

    async def _stream(self, sequence: Sequence) -> Any:
        try:
            made = 0
            while made < sequence.output:
                made = await sequence.tokens.get()
                yield _event({"choices": [{"index": 0, "text": ""}], "usage": None})
            usage = {"prompt_tokens": sequence.prompt, "completion_tokens": made}
            yield _event({"choices": [], "usage": usage})
            yield b"data: [DONE]\n\n"
        finally:
            if sequence in self.batch.sequences:
                self.batch.sequences.remove(sequence)

    async def _metrics(self, request: Request) -> Response:
        labels = 'block_size="16",enable_prefix_caching="False",num_gpu_blocks="500"'
        return PlainTextResponse(f"# TYPE x gauge\nvllm:cache_config_info{{{labels}}} 1.0\n")

    async def _control(self, request: Request) -> Response:
        knobs = {"batch_cap": {"offered": True, "now": 4}, "token_budget": {"offered": False}}
        return JSONResponse({"engines": [{"engine": 0, "knobs": knobs}]})

    async def _steps(self, request: Request) -> Response:
        after = int(request.query_params["after"])
        rows = [(number, *row) for number, row in enumerate(self.batch.rows, 1) if number > after]
        trace = {"columns": ("step", *COLUMNS), "rows": rows}
        return JSONResponse({"engines": [trace]})


def _event(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"
