"""The engine's loop: iterations of the reference simulator, each delivered at its time.

The schedule consists of simulated times alone. An iteration begins at the simulated end of the one
before it, even if the host notices that end late; a request enters the engine at its arrival plus
the delay of the front end. That delay covers the way there and back, so the host's recent lateness
with first tokens counts towards it. A slower host delivers tokens late and changes nothing else.
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

from jaxserve.engine_control.leased_knobs import LeasedKnobs
from jaxserve.engine_control.routes import Question, answer_question
from jaxserve.engine_control.step_log import StepLoad, StepLog
from jaxserve.mock_engine import VERSION
from jaxserve.mock_engine.clock import Clock
from jaxserve.mock_engine.errors import engine_failed
from jaxserve.mock_engine.machine import Machine
from jaxserve.mock_engine.metrics import MetricsCollector
from jaxserve.mock_engine.sequences import Sequence, SequenceGroup
from jaxserve.sim.machine.cost_model import CostModel
from jaxserve.sim.machine.memory import BLOCK_TOKENS
from jaxserve.sim.reference.counters import Counters
from jaxserve.sim.reference.engine import Engine
from jaxserve.sim.reference.request import Request
from jaxserve.sim.reference.settings import GpuKnobs, SchedulerSettings

_log = logging.getLogger(__name__)
_NEWEST_SHARE = 0.1
"""Weight of the latest first token in the running mean of the host's lateness."""

_Progress = tuple[Sequence, int]
"""A sequence, and its number of tokens."""


class _MeteredCost:
    """A cost model that keeps the load of the latest iteration."""

    def __init__(self, cost: CostModel) -> None:
        self._cost = cost
        self.seconds = 0.0
        self.load = StepLoad(0, 0, 0.0, 0, 0, 0.0, 0)

    def iteration_s(
        self,
        *,
        decode_seqs: int,
        kv_tokens: float,
        chunks: tuple[tuple[int, int], ...] = (),
        speculation_depth: int = 0,
        tier: int = 0,
    ) -> float:
        """Seconds of one iteration; see ``CostModel.iteration_s``."""
        self.load = StepLoad(
            decode_seqs=decode_seqs,
            decode_tokens=decode_seqs * (speculation_depth + 1),
            kv_tokens=kv_tokens,
            chunks=len(chunks),
            prompt_tokens=sum(chunk for chunk, _ in chunks),
            pairs=sum(chunk * (prefix + 0.5 * chunk) for chunk, prefix in chunks),
            depth=speculation_depth,
        )
        self.seconds = self._cost.iteration_s(
            decode_seqs=decode_seqs,
            kv_tokens=kv_tokens,
            chunks=chunks,
            speculation_depth=speculation_depth,
            tier=tier,
        )
        return self.seconds


class EngineLoop:
    """One engine that serves sequence groups in the time of a clock."""

    def __init__(self, machine: Machine, knobs: LeasedKnobs, clock: Clock) -> None:
        """Args: the GPU, its knobs, and the engine's time."""
        self._machine = machine
        self._leased = knobs
        self._clock = clock
        self.log = StepLog()
        self._cost = _MeteredCost(machine.cost)
        self.metrics = MetricsCollector(machine, self._gauges)
        # Streams as in the reference simulator: the same seed gives the same delays and drafts.
        self._delays, rng = np.random.default_rng(machine.settings.seed).spawn(2)
        self._engine = Engine(self._cost, self._knobs(), SchedulerSettings(), rng)
        self._ids = itertools.count()
        self._entering: list[tuple[float, int, Sequence]] = []
        self._present: dict[int, Sequence] = {}
        self._aborted: list[Sequence] = []
        self._wake = asyncio.Event()
        self._id = uuid4().hex
        self._applied: int | None = None
        self._preemptions = 0
        self._late_s = 0.0
        """running mean of the lateness of first tokens, s."""
        self.failed = False
        """whether the loop has ended by an exception."""

    def submit(self, group: SequenceGroup, received_s: float) -> None:
        """Takes a group whose HTTP request was received at ``received_s``.

        Raises:
          Problem: the loop has ended by a defect.
        """
        if self.failed:
            raise engine_failed()
        front_end = self._machine.front_end
        delay_s = front_end.draw(self._delays)
        # The host's own lateness on the way back is part of the delay.
        entry_s = received_s + delay_s - min(self._late_s, front_end.fixed_s)
        for sequence in group.sequences:
            sequence.request = Request(
                id=next(self._ids),
                arrival_s=entry_s,
                prompt_tokens=len(group.prompt_of(sequence.index)),
                output_tokens=sequence.length,
                priority=group.asked.priority,
                acceptance=self._machine.acceptance,
                frontend_s=delay_s,
            )
            self._present[sequence.request.id] = sequence
            entry = (sequence.request.arrival_s, sequence.request.id, sequence)
            heapq.heappush(self._entering, entry)
        self._wake.set()

    def delivered(self, sequence: Sequence) -> None:
        """Notes that the first token of a sequence has been sent."""
        late_s = self._clock.now() - sequence.request.first_token_s
        self._late_s += _NEWEST_SHARE * (late_s - self._late_s)

    def abandon(self, group: SequenceGroup) -> None:
        """Aborts the unfinished sequences of a group before the next iteration."""
        self._aborted += group.sequences
        self._wake.set()

    def answer(self, question: Question) -> dict[str, Any]:
        """Answers a question of the control routes, between two iterations."""
        return answer_question(question, self._leased, self.log, self.state)

    def state(self) -> dict[str, Any]:
        """State of the engine in answers of the control routes."""
        running, waiting = self._load()
        return {
            "engine": 0,
            "engine_id": self._id,
            "vllm": VERSION,
            **self._leased.state(),
            "running": running,
            "waiting": waiting,
            "preemptions": self._preemptions,
            "steps": self.log.steps,
            "kv_blocks": self._machine.kv_blocks,
            "kv_blocks_budget": self._kv_blocks(),
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
                sequence.group.fail(engine_failed())

    async def _serve(self) -> None:
        now_s = 0.0
        while True:
            self._enter(now_s)
            self._abort()
            self._apply_knobs()
            end_s = self._engine.start(now_s)
            if end_s is not None:
                load = self._engine.running, len(self._engine.waiting)
                await self._clock.reach(end_s)
                self.metrics.observe("jaxserve:host_late_seconds", self._clock.now() - end_s)
                self._engine.finish(end_s)
                self.log.add(self._cost.seconds, self._cost.load, *load)
                first, more = self._count_iteration(end_s)
                # First tokens are sent before other tokens become events, which would delay TTFT by
                # a whole batch; all tokens are sent before the next iteration is composed.
                for progress in (first, more):
                    for sequence, upto in progress:
                        sequence.group.advance(sequence, upto)
                    await asyncio.sleep(0)
                now_s = end_s
                continue
            self._wake.clear()
            next_s = self._entering[0][0] if self._entering else math.inf
            await self._clock.reach_or(next_s, self._wake)
            if self._entering and self._entering[0][0] <= self._clock.now():
                now_s = max(now_s, self._entering[0][0])

    def _enter(self, now_s: float) -> None:
        """Queues the requests that have passed the front end."""
        while self._entering and self._entering[0][0] <= now_s:
            self._engine.waiting.push(heapq.heappop(self._entering)[2].request)

    def _abort(self) -> None:
        for sequence in self._aborted:
            if self._present.pop(sequence.request.id, None) is None:
                continue  # the sequence was complete
            entry = (sequence.request.arrival_s, sequence.request.id, sequence)
            if entry in self._entering:
                self._entering.remove(entry)
                heapq.heapify(self._entering)
            else:
                self._engine.abort(sequence.request)
            self.metrics.finished("abort")
        self._aborted.clear()

    def _apply_knobs(self) -> None:
        """Applies the knobs after a command or the end of a lease."""
        self._leased.expire()
        if self._leased.version == self._applied:
            return
        self._applied = self._leased.version
        self._engine.set_knobs(self._knobs())
        budget = int(self._leased.values["token_budget"])
        self._engine.settings = replace(self._engine.settings, token_budget=budget)

    def _knobs(self) -> GpuKnobs:
        values = self._leased.values
        return GpuKnobs(
            batch_cap=int(values["batch_cap"]),
            kv_capacity_tokens=self._kv_blocks() * BLOCK_TOKENS,
            speculation_depth=int(values.get("speculation_depth", 0)),
            tier=self._machine.settings.tier,
            priority_routing=bool(values.get("priority_routing", False)),
        )

    def _kv_blocks(self) -> int:
        """KV blocks of the budget."""
        return round(self._leased.values["kv_budget_fraction"] * self._machine.kv_blocks)

    def _count_iteration(self, end_s: float) -> tuple[list[_Progress], list[_Progress]]:
        """Counts an iteration; returns sequences with a first token, and others with new ones."""
        first: list[_Progress] = []
        more: list[_Progress] = []
        engine, metrics = self._engine, self.metrics
        counters, engine.counters = engine.counters, Counters()
        engine.decoding.record_generated()
        gaps: Counter[float] = Counter()
        for request in itertools.chain(engine.decoding.sequences, counters.completed):
            sequence = self._present[request.id]
            if sequence.sent == request.generated:
                continue  # outside this iteration's token budget
            if sequence.sent:
                gaps[end_s - sequence.last_s] += 1
            sequence.last_s = end_s
            (more if sequence.sent else first).append((sequence, request.generated))
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
        """Counts a complete sequence."""
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
        metrics.observe("vllm:request_prompt_tokens", request.prompt_tokens)
        metrics.observe("vllm:request_generation_tokens", sequence.length)
        if sequence is sequence.group.longest(sequence.index):
            metrics.observe("vllm:request_max_num_generation_tokens", sequence.length)
            max_tokens = sequence.group.sampling_of(sequence.index).max_tokens
            metrics.observe("vllm:request_params_max_tokens", max_tokens)
        if request.output_tokens > 1:
            metrics.observe("vllm:request_time_per_output_token_seconds", request.tpot_s)

    def _load(self) -> tuple[int, int]:
        """Numbers of running and waiting requests."""
        now_s = self._clock.now()
        entered = sum(entry_s <= now_s for entry_s, _, _ in self._entering)
        return self._engine.running, len(self._engine.waiting) + entered

    def _gauges(self) -> dict[str, float]:
        running, waiting = self._load()
        usage = self._engine.pool.used / self._kv_blocks()
        return {
            "running": running,
            "waiting": waiting,
            "kv_usage": min(1.0, usage),
        }
