"""The engine's loop: the reference simulator's iterations, each handed over when its time comes.

The schedule is made of simulated times alone. An iteration begins when the one before it has ended,
not when the host has noticed; a request enters at the time at which it came, a front end's delay
later. That delay is of the way there and back, so what the host lately took to hand over first
tokens is part of it. A host that is later still hands tokens over late, and changes nothing else.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import math
from collections import Counter
from dataclasses import replace
from typing import Any
from uuid import uuid4

import numpy as np

from jaxserve.mock_engine import VERSION
from jaxserve.mock_engine.clock import Clock
from jaxserve.mock_engine.control import Control
from jaxserve.mock_engine.errors import engine_failed
from jaxserve.mock_engine.machine import Machine
from jaxserve.mock_engine.metrics import MetricsCollector
from jaxserve.mock_engine.sequences import Sequence, SequenceGroup
from jaxserve.mock_engine.steps import StepTrace
from jaxserve.sim.machine.memory import BLOCK_TOKENS
from jaxserve.sim.reference.counters import Counters
from jaxserve.sim.reference.engine import Engine
from jaxserve.sim.reference.request import Request
from jaxserve.sim.reference.settings import GpuKnobs, SchedulerSettings

_log = logging.getLogger(__name__)
_NEWEST_SHARE = 0.1
"""of the latest first token in the mean of how late they are."""

_News = tuple[Sequence, int]
"""A sequence, and how many tokens it has."""


class EngineLoop:
    """One engine that serves calls in the time of a clock."""

    def __init__(self, machine: Machine, control: Control, clock: Clock) -> None:
        """Args: the GPU, the knobs, and the time."""
        self._machine = machine
        self._control = control
        self._clock = clock
        self.trace = StepTrace(machine.cost)
        self.metrics = MetricsCollector(machine, self._gauges)
        # Streams as in the reference simulator: the same seed gives the same delays and drafts.
        self._delays, rng = np.random.default_rng(machine.settings.seed).spawn(2)
        self._engine = Engine(self.trace, self._knobs(), SchedulerSettings(), rng)
        self._ids = itertools.count()
        self._entering: list[tuple[float, int, Sequence]] = []
        self._present: dict[int, Sequence] = {}
        self._leaving: list[Sequence] = []
        self._wake = asyncio.Event()
        self._id = uuid4().hex
        self._obeyed: int | None = None
        self._preemptions = 0
        self._late_s = 0.0
        """how late first tokens lately were."""
        self.failed = False
        """whether the loop has ended by a defect."""

    def submit(self, call: SequenceGroup, received_s: float) -> None:
        """Takes a call that came at ``received_s``.

        Raises:
          Problem: the loop has ended by a defect.
        """
        if self.failed:
            raise engine_failed()
        front_end = self._machine.front_end
        delay_s = front_end.draw(self._delays)
        # What the host will take for the way back does not have to be waited for as well.
        entry_s = received_s + delay_s - min(self._late_s, front_end.fixed_s)
        for sequence in call.sequences:
            sequence.request = Request(
                id=next(self._ids),
                arrival_s=entry_s,
                prompt_tokens=len(call.prompt_of(sequence.index)),
                output_tokens=sequence.length,
                priority=call.asked.priority,
                acceptance=self._machine.acceptance,
                frontend_s=delay_s,
            )
            self._present[sequence.request.id] = sequence
            entry = (sequence.request.arrival_s, sequence.request.id, sequence)
            heapq.heappush(self._entering, entry)
        self._wake.set()

    def delivered(self, sequence: Sequence) -> None:
        """The first token of a sequence has left."""
        late_s = self._clock.now() - sequence.request.first_token_s
        self._late_s += _NEWEST_SHARE * (late_s - self._late_s)

    def abandon(self, call: SequenceGroup) -> None:
        """Ends what is left of a call before the next iteration."""
        self._leaving += call.sequences
        self._wake.set()

    def state(self) -> dict[str, Any]:
        """What the control endpoint shows."""
        running, waiting = self._load()
        return {
            "engine": 0,
            "engine_id": self._id,
            "vllm": VERSION,
            **self._control.state(),
            "running": running,
            "waiting": waiting,
            "preemptions": self._preemptions,
            "steps": self.trace.steps,
            "kv_blocks": self._machine.kv_blocks,
            "kv_blocks_budget": self._control.kv_blocks,
            "kv_blocks_used": self._engine.pool.used,
        }

    async def run(self) -> None:
        """Serves until it is cancelled."""
        try:
            await self._serve()
        except Exception:
            _log.exception("The engine has failed.")
            self.failed = True
            for sequence in self._present.values():
                sequence.call.fail(engine_failed())

    async def _serve(self) -> None:
        now_s = 0.0
        while True:
            self._enter(now_s)
            self._drop_the_left()
            self._obey()
            end_s = self._engine.start(now_s)
            if end_s is not None:
                load = self._engine.running, len(self._engine.waiting)
                await self._clock.reach(end_s)
                self.metrics.observe("jaxserve:host_late_seconds", self._clock.now() - end_s)
                self._engine.finish(end_s)
                self.trace.ended(*load)
                first, more = self._count_iteration(end_s)
                # First tokens leave before the others are made into events: TTFT would be late by
                # the time of a whole batch. And all leave before the next iteration is composed.
                for told in (first, more):
                    for sequence, upto in told:
                        sequence.call.advance(sequence, upto)
                    await asyncio.sleep(0)
                now_s = end_s
                continue
            self._wake.clear()
            next_s = self._entering[0][0] if self._entering else math.inf
            await self._clock.reach_or(next_s, self._wake)
            if self._entering and self._entering[0][0] <= self._clock.now():
                now_s = max(now_s, self._entering[0][0])

    def _enter(self, now_s: float) -> None:
        """Queues the requests that have come through the front end."""
        while self._entering and self._entering[0][0] <= now_s:
            self._engine.waiting.push(heapq.heappop(self._entering)[2].request)

    def _drop_the_left(self) -> None:
        for sequence in self._leaving:
            if self._present.pop(sequence.request.id, None) is None:
                continue  # it was complete
            entry = (sequence.request.arrival_s, sequence.request.id, sequence)
            if entry in self._entering:
                self._entering.remove(entry)
                heapq.heapify(self._entering)
            else:
                self._engine.abort(sequence.request)
            self.metrics.finished("abort")
        self._leaving.clear()

    def _obey(self) -> None:
        """Puts the knobs into force if any has changed."""
        values = self._control.values  # ends a lease that is over
        if self._control.version == self._obeyed:
            return
        self._obeyed = self._control.version
        self._engine.set_knobs(self._knobs())
        budget = int(values["token_budget"])
        self._engine.settings = replace(self._engine.settings, token_budget=budget)

    def _knobs(self) -> GpuKnobs:
        values = self._control.values
        return GpuKnobs(
            batch_cap=int(values["batch_cap"]),
            kv_capacity_tokens=self._control.kv_blocks * BLOCK_TOKENS,
            speculation_depth=int(values.get("speculation_depth", 0)),
            tier=self._machine.settings.tier,
            priority_routing=bool(values.get("priority_routing", False)),
        )

    def _count_iteration(self, end_s: float) -> tuple[list[_News], list[_News]]:
        """Counts an iteration.

        Returns:
          what its calls are to be told: of first tokens, and of the others.
        """
        first: list[_News] = []
        more: list[_News] = []
        engine, metrics = self._engine, self.metrics
        counters, engine.counters = engine.counters, Counters()
        engine.decoding.record_generated()
        gaps: Counter[float] = Counter()
        for request in itertools.chain(engine.decoding.sequences, counters.completed):
            sequence = self._present[request.id]
            if sequence.told == request.generated:
                continue  # the token budget left it out of this iteration
            if sequence.told:
                gaps[end_s - sequence.last_s] += 1
            sequence.last_s = end_s
            (more if sequence.told else first).append((sequence, request.generated))
        for gap_s, count in gaps.items():
            metrics.observe("vllm:inter_token_latency_seconds", gap_s, count)
        for request in counters.first_tokens:
            metrics.observe("vllm:time_to_first_token_seconds", request.ttft_s)
            metrics.count("vllm:prompt_tokens", request.prompt_tokens)
        for request in counters.completed:
            self._count(self._present.pop(request.id))
        self._preemptions += counters.preemptions
        metrics.count("vllm:num_preemptions", counters.preemptions)
        metrics.count("vllm:generation_tokens", counters.tokens)
        if counters.drafted:
            drafts = sum(sequences for _, sequences in counters.decodes)
            metrics.count("vllm:spec_decode_num_drafts", drafts)
            metrics.count("vllm:spec_decode_num_draft_tokens", counters.drafted)
            metrics.count("vllm:spec_decode_num_accepted_tokens", counters.draft_accepted)
        return first, more

    def _count(self, sequence: Sequence) -> None:
        """A request is complete."""
        request, metrics = sequence.request, self.metrics
        metrics.finished(sequence.output.finish_reason)
        e2e_s = request.finish_s - request.arrival_s + request.frontend_s
        metrics.observe("vllm:e2e_request_latency_seconds", e2e_s)
        metrics.observe(
            "vllm:request_queue_time_seconds", request.first_scheduled_s - request.arrival_s
        )
        prefill_s = request.first_token_s - request.first_scheduled_s
        metrics.observe("vllm:request_prefill_time_seconds", prefill_s)
        metrics.observe(
            "vllm:request_decode_time_seconds", request.finish_s - request.first_token_s
        )
        if request.output_tokens > 1:
            metrics.observe("vllm:request_time_per_output_token_seconds", request.tpot_s)

    def _load(self) -> tuple[int, int]:
        """Requests that run, and that wait."""
        now_s = self._clock.now()
        entered = sum(entry_s <= now_s for entry_s, _, _ in self._entering)
        return self._engine.running, len(self._engine.waiting) + entered

    def _gauges(self) -> dict[str, float]:
        running, waiting = self._load()
        usage = self._engine.pool.used / self._control.kv_blocks
        return {
            "running": running,
            "waiting": waiting,
            "kv_usage": min(1.0, usage),
        }
