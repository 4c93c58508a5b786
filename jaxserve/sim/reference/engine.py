"""One serving engine, iteration by iteration: continuous batching as vLLM V1 does it.

An iteration first serves what is running, then admits from the waiting queue with the tokens that
are left of its budget; prompts longer than that are prefilled in chunks. KV lives in blocks. When
a running sequence needs a block and there is none, the sequence that would be missed least is
preempted: its KV is dropped, and it is recomputed when it comes to the front of the queue again.
"""

from __future__ import annotations

import math
from enum import Enum

import numpy as np

from jaxserve.sim.machine.acceptance import MAX_DEPTH
from jaxserve.sim.machine.cost_model import MIN_CHUNK_SHARE, IterationTimer
from jaxserve.sim.reference.blocks import BlockPool, CachingBlockPool
from jaxserve.sim.reference.counters import Counters
from jaxserve.sim.reference.device_memory import MemoryMeter
from jaxserve.sim.reference.request import Request, WaitingQueue
from jaxserve.sim.reference.settings import EngineKnobs, SchedulerSettings


class Role(Enum):
    """What a GPU does: everything, only prefill (then hand over), or only decode."""

    MIXED = "mixed"
    PREFILL = "prefill"
    DECODE = "decode"


class Engine:
    """One GPU (or tensor-parallel group) with its own queue, batch and KV pool.

    ``start`` composes an iteration and says when it ends; ``finish`` applies its results. Between
    the two only ``waiting`` and the transfers may change.
    """

    def __init__(
        self,
        timer: IterationTimer,
        knobs: EngineKnobs,
        settings: SchedulerSettings,
        rng: np.random.Generator,
        memory: MemoryMeter | None = None,
    ) -> None:
        self.timer = timer
        self.knobs = knobs
        self.settings = settings
        self.memory = memory
        self.role = Role.MIXED
        self.counters = Counters()
        self.waiting = WaitingQueue(knobs.priority_routing)
        """requests routed here that are not running."""
        self.prefilling: list[Request] = []
        """admitted, part of the prompt still to compute; oldest first."""
        self.decoding: list[Request] = []
        """running sequences in the order in which they were admitted."""
        self.held: list[Request] = []
        """prefilled sequences whose KV waits here for a decoding GPU."""
        self.handoffs: list[Request] = []
        """those of ``held`` that the deployment has not collected."""
        self.displaced: list[Request] = []
        """preempted sequences of a decode-only GPU, to be prefilled elsewhere."""
        self.crashed = False
        """whether an iteration did not fit into device memory."""
        self._incoming: list[tuple[Request, int]] = []
        self._rng = rng
        pool = CachingBlockPool if settings.prefix_caching else BlockPool
        self.pool = pool(self._capacity_blocks())
        # Row i of these arrays belongs to decoding[i].
        self._context = np.zeros(64, np.int64)  # KV tokens held
        self._remaining = np.zeros(64, np.int64)  # output tokens to come
        self._blocks = np.zeros(64, np.int64)  # KV blocks held
        self._survival = np.zeros((64, MAX_DEPTH))  # chance that draft position 1..8 is accepted
        self._kv_tokens = 0  # sum of _context
        self._decode_blocks = 0  # sum of _blocks
        self._steps_to_finish = 0  # lower bound of the smallest _remaining
        # The iteration in flight.
        self._chunks: list[tuple[Request, int]] = []
        self._duration_s = 0.0
        self._depth = 0

    @property
    def running(self) -> int:
        """Sequences that count against the batch cap."""
        return len(self.prefilling) + len(self.decoding) + len(self._incoming)

    @property
    def load_tokens(self) -> int:
        """Tokens that the GPU holds or still has to prefill: the router's measure of load."""
        prefilling = sum(request.prefill_target for request in self.prefilling)
        incoming = sum(request.prefill_target for request, _ in self._incoming)
        return self._kv_tokens + self.waiting.prefill_tokens + prefilling + incoming

    def set_knobs(self, knobs: EngineKnobs) -> None:
        """Applies ``knobs`` from the next iteration on."""
        self.knobs = knobs
        self.waiting.set_order(knobs.priority_routing)
        if self._capacity_blocks() != self.pool.capacity:
            self.pool.resize(self._capacity_blocks())

    def start(self, now: float) -> float | None:
        """Composes the next iteration; returns when it ends, or None when there is nothing to do.

        Check ``crashed`` and ``displaced`` afterwards.
        """
        for request, blocks in self._incoming:
            self._join(request, blocks)
        self._incoming.clear()
        depth, tier = self.knobs.speculation_depth, self.knobs.tier
        preempted = self._fit_running(depth + 1)
        sequences = len(self.decoding)
        verified = sequences * (depth + 1)
        budget = self.settings.token_budget
        # Verifying deep drafts of a large batch may not starve prefill.
        room = max(budget - verified, int(budget * MIN_CHUNK_SHARE))
        # Whatever was preempted stays out for an iteration, unless that leaves nothing to run.
        admit = not preempted or not (self.decoding or self.prefilling)
        self._chunks = self._schedule_prefill(now, room, admit)
        if not verified and not self._chunks:
            return None

        chunks = tuple((chunk, request.computed) for request, chunk in self._chunks)
        tokens = verified + sum(chunk for chunk, _ in chunks)
        rows = verified + len(chunks)
        if self.memory is not None:
            used_bytes = self.memory.used_bytes(
                kv_capacity_tokens=self.knobs.kv_capacity_tokens,
                tokens=tokens,
                logits_rows=rows,
                speculation_depth=depth,
                tier=tier,
            )
            self.counters.peak_memory_bytes = max(self.counters.peak_memory_bytes, used_bytes)
            self.crashed = used_bytes > self.memory.device_bytes
            if self.crashed:
                return None

        # Each decode step also reads the token that it has just written.
        kv_tokens = self._kv_tokens + sequences
        self._depth = depth
        self._duration_s = self.timer.iteration_s(
            decode_seqs=sequences,
            kv_tokens=kv_tokens,
            chunks=chunks,
            speculation_depth=depth,
            tier=tier,
        )
        work = self.counters.work[tier]
        work.iterations += 1
        work.tokens += tokens
        work.kv_tokens += kv_tokens
        return now + self._duration_s

    def finish(self, now: float) -> None:
        """Applies the iteration that ``start`` composed and that ends at ``now``."""
        if self.decoding:
            self._advance_decoding(now)
        for request, chunk in self._chunks:
            request.computed += chunk
            if request.computed == request.prefill_target:
                self.prefilling.remove(request)
                self._end_prefill(request, now)
        self._chunks = []

    def record_generated(self) -> None:
        """Writes the decoding sequences' progress into their requests; ``finish`` does not."""
        for request, remaining in zip(self.decoding, self._remaining.tolist(), strict=False):
            request.generated = request.output_tokens - remaining

    def abort(self, request: Request) -> None:
        """Drops ``request``, which waits or runs here, between two iterations: nobody wants it."""
        if request in self.decoding:
            row = self.decoding.index(request)
            self.pool.release(int(self._blocks[row]))
            self._drop_rows(np.array([row]))
        elif request in self.prefilling:
            self.prefilling.remove(request)
            self.pool.release(request.blocks)
        else:
            self.waiting.remove(request)

    def transfer_blocks(self, request: Request) -> int:
        """Blocks that ``request``, prefilled elsewhere, needs for its first step here."""
        return self._blocks_for(request.prefill_target + self.knobs.speculation_depth)

    def can_receive(self, request: Request) -> bool:
        """Whether there are blocks for ``request`` and one more for every sequence running here.

        Without that reserve the next steps would preempt, and a preempted sequence has to go all
        the way through a prefill GPU again.
        """
        return self.transfer_blocks(request) + self.running <= self.pool.free

    def could_ever_receive(self, request: Request) -> bool:
        """Whether the whole pool would be enough for ``request``."""
        return self.transfer_blocks(request) <= self.pool.capacity

    def receive(self, request: Request, blocks: int) -> None:
        """Takes over a sequence whose KV has arrived in ``blocks`` that were allocated before."""
        self._incoming.append((request, blocks))

    def release_held(self, request: Request) -> None:
        """Frees the blocks of a handed-over sequence: its KV has arrived elsewhere."""
        self.held.remove(request)
        self.pool.release(request.blocks)

    def evacuate(self) -> list[Request]:
        """Stops the process: all KV is lost. Returns what was running, oldest first.

        Requests in ``waiting`` stay there for the caller to collect.
        """
        self.record_generated()
        running = self.decoding + [request for request, _ in self._incoming]
        running += self.prefilling + self.held
        for requests in (self.decoding, self._incoming, self.prefilling, self.held, self.handoffs):
            requests.clear()
        self._chunks = []
        self._kv_tokens = self._decode_blocks = 0
        self.pool.clear()
        self.crashed = False
        return running

    def _capacity_blocks(self) -> int:
        return self.knobs.kv_capacity_tokens // self.settings.block_tokens

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.settings.block_tokens)

    def _fit_running(self, positions: int) -> bool:
        """Gives every decoding sequence blocks for its next step; True if that took preemption."""
        preempted = False
        while self.decoding:
            count = len(self.decoding)
            size = self.settings.block_tokens
            needed = (self._context[:count] + (positions + size - 1)) // size
            total = int(needed.sum())
            growth = total - self._decode_blocks
            if growth <= self.pool.free:
                if growth > 0:
                    self.pool.allocate(growth)
                elif growth < 0:
                    self.pool.release(-growth)
                self._blocks[:count] = needed
                self._decode_blocks = total
                return preempted
            self._preempt()
            preempted = True
        while self.prefilling and self.pool.free < 0:
            self._preempt()
            preempted = True
        return preempted

    def _preempt(self) -> None:
        """Drops the KV of the newest running sequence, or of the least important one."""
        if self.knobs.priority_routing:
            victim = max(
                self.decoding + self.prefilling, key=lambda r: (r.priority, r.arrival_s, r.id)
            )
        else:
            victim = (self.prefilling or self.decoding)[-1]
        if victim in self.prefilling:
            self.prefilling.remove(victim)
            full = victim.computed // self.settings.block_tokens
            self.pool.evict(victim.id, victim.blocks, full)
        else:
            row = self.decoding.index(victim)
            victim.generated = victim.output_tokens - int(self._remaining[row])
            full = int(self._context[row]) // self.settings.block_tokens
            self.pool.evict(victim.id, int(self._blocks[row]), full)
            self._drop_rows(np.array([row]))
        victim.preemptions += 1
        self.counters.preemptions += 1
        if self.role is Role.DECODE:
            self.displaced.append(victim)
        else:
            self.waiting.push(victim)

    def _schedule_prefill(self, now: float, room: int, admit: bool) -> list[tuple[Request, int]]:
        """(request, tokens) of this iteration's prefill chunks, at most ``room`` tokens in all."""
        chunks = []
        for request in self.prefilling:
            if room <= 0:
                break
            chunk = min(request.prefill_target - request.computed, room)
            chunks.append((request, chunk))
            room -= chunk
        while admit and room > 0 and (request := self._admit(now)) is not None:
            chunk = min(request.prefill_target - request.computed, room)
            chunks.append((request, chunk))
            room -= chunk
        return chunks

    def _admit(self, now: float) -> Request | None:
        """Moves the head of the queue into the batch if slots and KV blocks allow."""
        reserve = int(self.pool.capacity * self.settings.watermark)
        while self.waiting and self.running < self.knobs.batch_cap:
            request = self.waiting.peek()
            blocks = self._blocks_for(request.prefill_target)
            if blocks + reserve > self.pool.capacity:
                self._give_up(self.waiting.pop())
                continue
            if blocks + reserve > self.pool.free:
                return None
            self.waiting.pop()
            cached = self.pool.admit(request.id, blocks)
            request.computed = cached * self.settings.block_tokens
            request.blocks = blocks
            if math.isnan(request.first_scheduled_s):
                request.first_scheduled_s = now
            self.prefilling.append(request)
            return request
        return None

    def _give_up(self, request: Request) -> None:
        """Drops a request whose context is longer than the whole KV pool."""
        if request.generated:
            request.lost = True
            self.counters.lost.append(request)
        else:
            request.rejected = True
            self.counters.rejected.append(request)

    def _end_prefill(self, request: Request, now: float) -> None:
        """The last chunk of a prefill also samples a token."""
        request.generated += 1
        self.counters.tokens += 1
        if math.isnan(request.first_token_s):
            request.first_token_s = now
            self.counters.first_tokens.append(request)
        if request.generated == request.output_tokens:
            self.pool.release(request.blocks)
            self._complete(request, now)
        elif self.role is Role.PREFILL:
            self.held.append(request)
            self.handoffs.append(request)
        else:
            self._join(request, request.blocks)

    def _join(self, request: Request, blocks: int) -> None:
        """Adds a prefilled sequence to the decode batch."""
        row = len(self.decoding)
        if row == len(self._context):
            grow = ((0, row),)
            self._context = np.pad(self._context, grow)
            self._remaining = np.pad(self._remaining, grow)
            self._blocks = np.pad(self._blocks, grow)
            self._survival = np.pad(self._survival, (*grow, (0, 0)))
        # The newest token has been sampled, but its KV is written by its own step.
        context = request.prompt_tokens + request.generated - 1
        remaining = request.output_tokens - request.generated
        self._context[row] = context
        self._remaining[row] = remaining
        self._blocks[row] = blocks
        self._survival[row] = request.draft_survival()
        self._kv_tokens += context
        self._decode_blocks += blocks
        self._steps_to_finish = min(self._steps_to_finish, remaining) if row else remaining
        self.decoding.append(request)

    def _advance_decoding(self, now: float) -> None:
        """One step of every decoding sequence."""
        count, depth = len(self.decoding), self._depth
        remaining = self._remaining[:count]
        if depth == 0:
            self._context[:count] += 1
            remaining -= 1
            tokens = count
        else:
            # A position counts if it survives and all before it did: one draw decides how far.
            draws = self._rng.random((count, 1))
            steps = 1 + (draws < self._survival[:count, :depth]).sum(axis=1)
            np.minimum(steps, remaining, out=steps)
            self._context[:count] += steps
            remaining -= steps
            tokens = int(steps.sum())
            self.counters.drafted += count * depth
            self.counters.draft_accepted += tokens - count
        self._kv_tokens += tokens
        self.counters.tokens += tokens
        self.counters.decodes.append((self._duration_s, count))
        self._steps_to_finish -= depth + 1
        if self._steps_to_finish <= 0:
            rows = np.flatnonzero(remaining == 0)
            for row in rows:
                request = self.decoding[row]
                request.generated = request.output_tokens
                self.pool.release(int(self._blocks[row]))
                self._complete(request, now)
            if len(rows):
                self._drop_rows(rows)
            self._steps_to_finish = int(self._remaining[: len(self.decoding)].min(initial=2**60))

    def _complete(self, request: Request, now: float) -> None:
        request.finish_s = now
        request.tier = self.knobs.tier
        self.counters.completed.append(request)

    def _drop_rows(self, rows: np.ndarray) -> None:
        """Takes decoding sequences out of the batch, keeping the order of the others."""
        count = len(self.decoding)
        self._kv_tokens -= int(self._context[rows].sum())
        self._decode_blocks -= int(self._blocks[rows].sum())
        kept = np.delete(np.arange(count), rows)
        for array in (self._context, self._remaining, self._blocks, self._survival):
            array[: len(kept)] = array[kept]
        self.decoding = [self.decoding[row] for row in kept]
