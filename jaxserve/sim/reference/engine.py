"""One serving engine, iteration by iteration: continuous batching as vLLM V1 does it.

An iteration first serves what is running, in the order of admission, then admits from the waiting
queue with the tokens that are left of its budget; prompts longer than that are prefilled in chunks.
KV lives in blocks, taken as they are needed. When a running sequence needs a block and there is
none, the sequence that would be missed least is preempted: its KV is dropped, and it is recomputed
when it comes to the front of the queue again. docs/fidelity.md says how vLLM's own scheduler was
held against this.
"""

from __future__ import annotations

import math
from enum import Enum

import numpy as np

from jaxserve.sim.machine.cost_model import MIN_CHUNK_SHARE, IterationTimer
from jaxserve.sim.reference.blocks import BlockPool, CachingBlockPool
from jaxserve.sim.reference.counters import Counters
from jaxserve.sim.reference.decode_batch import DecodeBatch
from jaxserve.sim.reference.request import Request, WaitingQueue
from jaxserve.sim.reference.settings import GpuKnobs, MemoryMeter, SchedulerSettings


class Role(Enum):
    """Role of a GPU: everything, only prefill (then hand over), or only decode."""

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
        knobs: GpuKnobs,
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
        self.decoding = DecodeBatch(settings)
        """running sequences whose prompt is computed."""
        self.held: list[Request] = []
        """prefilled sequences whose KV waits here for a decoding GPU."""
        self.handoffs: list[Request] = []
        """requests of ``held`` that the deployment has not collected."""
        self.displaced: list[Request] = []
        """preempted sequences of a decode-only GPU, to be prefilled elsewhere."""
        self.crashed = False
        """whether an iteration did not fit into device memory."""
        self._incoming: list[tuple[Request, int]] = []
        self._rng = rng
        pool = CachingBlockPool if settings.prefix_caching else BlockPool
        self.pool = pool(self._capacity_blocks(), settings.block_tokens)
        # The iteration in flight.
        self._rows = 0  # of decoding
        self._chunks: list[tuple[Request, int]] = []
        self._duration_s = 0.0
        self._depth = 0
        self._scheduled = 0  # sequences of the last iteration

    @property
    def running(self) -> int:
        """Sequences that count against the batch cap."""
        return len(self.prefilling) + len(self.decoding) + len(self._incoming)

    @property
    def load_tokens(self) -> int:
        """Tokens that the GPU holds or still has to prefill: the router's measure of load."""
        prefilling = sum(request.prefill_target for request in self.prefilling)
        incoming = sum(request.prefill_target for request, _ in self._incoming)
        return self.decoding.kv_tokens + self.waiting.prefill_tokens + prefilling + incoming

    @property
    def batch(self) -> list[tuple[Request, int]]:
        """(request, tokens) of the iteration in flight, in the order in which they were served."""
        decoding = self.decoding.sequences[: self._rows]
        return [(request, self._depth + 1) for request in decoding] + self._chunks

    def set_knobs(self, knobs: GpuKnobs) -> None:
        """Applies ``knobs`` from the next iteration on."""
        self.knobs = knobs
        self.waiting.set_order(knobs.priority_routing)
        if self._capacity_blocks() != self.pool.capacity:
            self.pool.resize(self._capacity_blocks())

    def start(self, now: float, undisturbed_s: float = -math.inf) -> float | None:
        """Composes the next iteration; returns when it ends, or None when there is nothing to do.

        Check ``crashed`` and ``displaced`` afterwards.

        Args:
          now: time at which the iteration starts.
          undisturbed_s: time before which nobody changes or asks anything of this engine. Decode
            steps that end before it and complete no sequence are done with, and the iteration is
            the one after them.
        """
        for request, blocks in self._incoming:
            self.decoding.join(request, blocks)
        self._incoming.clear()
        # Drafts are made at the end of an iteration, as many as suit the sequences in it.
        depth = self._depth = self.settings.depth_after(
            self._scheduled, self.knobs.speculation_depth
        )
        tier = self.knobs.tier
        # An iteration that only preempts takes no time; the next one finds the freed blocks.
        while (preempted := self._compose(now)) and not (self._rows or self._chunks):
            pass
        if not (self._rows or self._chunks):
            return None

        chunks = tuple((chunk, request.computed) for request, chunk in self._chunks)
        sequences = self._rows
        self._scheduled = sequences + len(chunks)
        verified = sequences * (depth + 1)
        tokens = verified + sum(chunk for chunk, _ in chunks)
        if self.memory is not None:
            used_bytes = self.memory.used_bytes(
                tokens=tokens,
                logits_rows=verified + len(chunks),
                speculation_depth=depth,
                tier=tier,
            )
            self.counters.peak_memory_bytes = max(self.counters.peak_memory_bytes, used_bytes)
            self.crashed = used_bytes > self.memory.device_bytes
            if self.crashed:
                return None

        all_decode = sequences == len(self.decoding) and not (chunks or preempted or depth)
        if all_decode and now < undisturbed_s:
            now = self._pass_steps(now, undisturbed_s)

        # Each decode step also reads the token that it has just written.
        kv_tokens = self.decoding.tokens_of(sequences) + sequences
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

    def _pass_steps(self, now: float, undisturbed_s: float) -> float:
        """Does decode steps of the whole batch that end before ``undisturbed_s`` and after which
        each sequence has a step to go; returns the end of the last one.

        A request that was not admitted before these steps is not admitted between them: free blocks
        and slots only become fewer.
        """
        decoding, counters = self.decoding, self.counters
        sequences, tier = len(decoding), self.knobs.tier
        if self.settings.depth_after(sequences, self.knobs.speculation_depth):
            return now
        most = decoding.steps_to_finish - 1
        # Blocks of the step after these are taken as well, as those of the first one are.
        while most > 0:
            missing = decoding.missing(0, sequences, most + 1)
            if (blocks := int(missing.sum())) <= max(self.pool.free, 0):
                break
            most //= 2
        work, kv_tokens = counters.work[tier], decoding.kv_tokens
        steps = 0
        while steps < most:
            kv_tokens += sequences
            step_s = self.timer.iteration_s(decode_seqs=sequences, kv_tokens=kv_tokens, tier=tier)
            if now + step_s >= undisturbed_s:
                break
            now += step_s
            steps += 1
            counters.decodes.append((step_s, sequences))
            work.kv_tokens += kv_tokens
        if not steps:
            return now
        if steps < most:
            missing = decoding.missing(0, sequences, steps + 1)
            blocks = int(missing.sum())
        self.pool.allocate(blocks)
        decoding.grow(0, missing)
        decoding.pass_steps(steps)
        counters.tokens += steps * sequences
        work.iterations += steps
        work.tokens += steps * sequences
        return now

    def finish(self, now: float) -> None:
        """Applies the iteration that ``start`` composed and that ends at ``now``."""
        if self._rows:
            self._advance_decoding(now)
        for request, chunk in self._chunks:
            request.computed += chunk
            if request.computed == request.prefill_target:
                self.prefilling.remove(request)
                self._end_prefill(request, now)
        self._chunks = []

    def abort(self, request: Request) -> None:
        """Drops ``request``, which waits or runs here, between two iterations; its client is
        gone."""
        if request in self.decoding.sequences:
            _, blocks, full = self.decoding.remove(request)
            self.pool.release(request, blocks, full)
        elif request in self.prefilling:
            self.prefilling.remove(request)
            self._release(request)
        else:
            self.waiting.remove(request)

    def cached_tokens(self, request: Request) -> int:
        """Tokens of ``request`` that need not be computed here."""
        return self._find_cached(request)[0] * self.settings.block_tokens

    def remember(self, request: Request) -> None:
        """Leaves in the prefix cache what it would hold had ``request`` been served here before."""
        tokens = request.prompt_tokens + request.output_tokens - 1
        blocks = self._blocks_for(tokens)
        if blocks <= self.pool.free:
            found, _ = self._find_cached(request)
            self.pool.reuse(request, found)
            self.pool.allocate(blocks - found)
            self.pool.release(request, blocks, tokens // self.settings.block_tokens)

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
        self._release(request)

    def evacuate(self) -> list[Request]:
        """Stops the process, so that all KV is lost. Returns the running requests, oldest first.

        Requests in ``waiting`` stay there for the caller to collect.
        """
        running = self.decoding.clear() + [request for request, _ in self._incoming]
        running += self.prefilling + self.held
        for requests in (self._incoming, self.prefilling, self.held, self.handoffs, self._chunks):
            requests.clear()
        self._rows = 0
        self.pool.clear()
        self.crashed = False
        return running

    def _capacity_blocks(self) -> int:
        return self.knobs.kv_capacity_tokens // self.settings.block_tokens

    def _blocks_for(self, tokens: int) -> int:
        return int(self.settings.blocks(tokens))

    def _compose(self, now: float) -> bool:
        """Chooses what the next iteration computes; True if that took preemption."""
        before = self.counters.preemptions
        self._rows, self._chunks = 0, []
        budget, depth = self.settings.token_budget, self._depth
        # Verifying deep drafts of a large batch may not starve prefill.
        reserved = int(budget * MIN_CHUNK_SHARE) if depth else 0
        through = self._serve_decoding(len(self.decoding) if depth else budget)
        room = max(budget - self._rows * (depth + 1), reserved)
        if through:
            room = self._serve_prefilling(room)
        preempted = self.counters.preemptions > before
        # Preempted sequences stay out for an iteration.
        while not preempted and room > 0 and (request := self._admit(now)) is not None:
            room -= self._schedule(request, room)
        return preempted

    def _serve_decoding(self, most: int) -> bool:
        """Gives sequences blocks for their next step, in the order of admission, ``most`` of them.

        Returns:
          False where that ended early, because a sequence had to be preempted for want of any
          that would be missed less.
        """
        # ``_preempt`` lowers ``_rows`` when it takes one that has been served.
        while (stop := min(len(self.decoding), most)) > self._rows:
            missing = self.decoding.missing(self._rows, stop, self._depth + 1)
            sums = missing.cumsum()
            fitting = int(sums.searchsorted(max(self.pool.free, 0), side="right"))
            if fitting:
                self.pool.allocate(int(sums[fitting - 1]))
                self.decoding.grow(self._rows, missing[:fitting])
                self._rows += fitting
            elif not self._make_room(int(missing[0]), self.decoding.sequences[self._rows]):
                return False
        return True

    def _serve_prefilling(self, room: int) -> int:
        """Schedules chunks of the prompts that have begun; returns what is left of ``room``."""
        for request in tuple(self.prefilling):
            if room <= 0 or not (chunk := self._schedule(request, room)):
                break
            room -= chunk
        return room

    def _schedule(self, request: Request, room: int) -> int:
        """Schedules the next chunk of a prompt, at most ``room`` tokens.

        Returns:
          its tokens; 0 if there were no blocks for it, so that ``request`` was preempted.
        """
        chunk = min(request.prefill_target - request.computed, room)
        blocks = self._blocks_for(request.computed + chunk) - request.blocks
        if not self._make_room(blocks, request):
            return 0
        self.pool.allocate(blocks)
        request.blocks += blocks
        # vLLM makes blocks known when it schedules them, to others in the same iteration too.
        self.pool.publish(request, (request.computed + chunk) // self.settings.block_tokens)
        self._chunks.append((request, chunk))
        return chunk

    def _make_room(self, blocks: int, request: Request) -> bool:
        """Preempts until ``request`` can have ``blocks``; False if it came to ``request`` itself.

        Without need of a block no sequence is preempted, even if the pool has become too small.
        """
        while blocks > max(self.pool.free, 0):
            victim = self._victim()
            self._preempt(victim)
            if victim is request:
                return False
        return True

    def _victim(self) -> Request:
        """The running sequence that came last, or the least important one."""
        if self.knobs.priority_routing:
            running = self.decoding.sequences + self.prefilling
            return max(running, key=lambda r: (r.priority, r.arrival_s, r.id))
        return (self.prefilling or self.decoding.sequences)[-1]

    def _preempt(self, victim: Request) -> None:
        """Drops the KV of ``victim``."""
        if victim in self.prefilling:
            self.prefilling.remove(victim)
            self._chunks = [part for part in self._chunks if part[0] is not victim]
            self._release(victim)
        else:
            row, blocks, full = self.decoding.remove(victim)
            self.pool.release(victim, blocks, full)
            self._rows -= row < self._rows
        victim.preemptions += 1
        self.counters.preemptions += 1
        if self.role is Role.DECODE:
            self.displaced.append(victim)
        else:
            self.waiting.put_back(victim)

    def _admit(self, now: float) -> Request | None:
        """Moves the head of the queue into the batch if slots and KV blocks allow.

        Its whole prompt must fit, although it takes blocks only chunk by chunk.
        """
        while self.waiting and self.running < self.knobs.batch_cap:
            request = self.waiting.peek()
            blocks = self._blocks_for(request.prefill_target)
            if blocks > self.pool.capacity:
                self._give_up(self.waiting.pop())
                continue
            reserve = int(self.pool.capacity * self.settings.watermark) if self.running else 0
            found, unheld = self._find_cached(request)
            if blocks - (found - unheld) + reserve > self.pool.free:
                return None
            self.waiting.pop()
            self.pool.reuse(request, found)
            request.blocks = found
            request.computed = found * self.settings.block_tokens
            if math.isnan(request.first_scheduled_s):
                request.first_scheduled_s = now
                request.cached_tokens = request.computed
            self.prefilling.append(request)
            return request
        return None

    def _find_cached(self, request: Request) -> tuple[int, int]:
        """Leading blocks of ``request`` that need not be computed, and how many of them are free.

        The last token is always computed, for its logits, and so is the block that it is in. The
        draft model wants the hidden states of one block more.
        """
        most = (request.prefill_target - 1) // self.settings.block_tokens
        found, unheld = self.pool.find(request, most)
        if found and self.knobs.speculation_depth:
            found, unheld = self.pool.find(request, found - 1)
        return found, unheld

    def _release(self, request: Request) -> None:
        """Gives back the blocks of a sequence that is not decoding."""
        full = request.computed // self.settings.block_tokens
        self.pool.release(request, request.blocks, full)

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
            self._complete(request, request.blocks, now)
        elif self.role is Role.PREFILL:
            self.held.append(request)
            self.handoffs.append(request)
        else:
            self.decoding.join(request, request.blocks)

    def _advance_decoding(self, now: float) -> None:
        """Advances the decoding sequences of the iteration by a step."""
        tokens, through = self.decoding.advance(self._rows, self._depth, self._rng)
        self.counters.tokens += tokens
        self.counters.decodes.append((self._duration_s, self._rows))
        if self._depth:
            self.counters.drafted += self._rows * self._depth
            self.counters.draft_accepted += tokens - self._rows
        self._rows = 0
        for request, blocks in through:
            request.generated = request.output_tokens
            self._complete(request, blocks, now)

    def _complete(self, request: Request, blocks: int, now: float) -> None:
        # The last token is not written into the KV.
        tokens = request.prompt_tokens + request.output_tokens - 1
        self.pool.release(request, blocks, tokens // self.settings.block_tokens)
        request.finish_s = now
        request.tier = self.knobs.tier
        self.counters.completed.append(request)
