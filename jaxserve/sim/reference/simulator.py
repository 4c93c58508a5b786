"""The reference simulator: every request, every engine iteration, every KV block.

A deployment is a queue, a router and ``num_gpus`` engines (``sim/reference/engine.py``). The router
keeps requests in one queue and hands the next one to the least loaded GPU once that GPU has less
than an iteration's worth of prompt tokens queued that would go before it. Time advances from event
to event: an arrival, the end of an iteration, of a KV transfer or of a restart.

Knobs that an engine can change at once (batch cap, KV capacity, speculation depth, order) act from
its next iteration on. A tier change reloads weights and a change of the prefill/decode split
re-roles GPUs: both roll over the GPUs one at a time, and what ran on a GPU is recomputed elsewhere.
Replicas of a fleet start and drain as ``sim/reference/replicas.py`` says.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from jaxserve import checks
from jaxserve.errors import InputError
from jaxserve.sim.machine.cost_model import IterationTimer
from jaxserve.sim.reference.counters import WindowStats
from jaxserve.sim.reference.engine import Engine, Role
from jaxserve.sim.reference.gpu import EventQueue, ServingGpu
from jaxserve.sim.reference.handover import Handover
from jaxserve.sim.reference.replicas import Phase, Replicas, Start
from jaxserve.sim.reference.request import Request, WaitingQueue, request_log
from jaxserve.sim.reference.routing import Router
from jaxserve.sim.reference.settings import Knobs, MemoryMeter, ReferenceSettings
from jaxserve.sim.reference.window_tally import WindowTally


class ReferenceSimulator:
    """A deployment under traffic, advanced from one control point to the next.

    Args:
      settings: the deployment.
      timer: seconds of an iteration; a ``CostModel`` or anything with its ``iteration_s``.
      knobs: knobs in force at time 0; no restart is needed to get there.
      requests: traffic; more can be added with ``submit``.
      seed: of speculation and front-end delays. Delays are drawn in the order of arrival, so they
        do not depend on the knobs.
      memory: device memory of iterations; without it there is no out-of-memory restart.
      served: requests that were served before time 0, in order; what prefix caches still hold of
        them can be found. The engines had them in turn. Ids are those of no other request.
    """

    def __init__(
        self,
        settings: ReferenceSettings,
        timer: IterationTimer,
        knobs: Knobs,
        requests: Iterable[Request] = (),
        seed: int = 0,
        memory: MemoryMeter | None = None,
        served: Iterable[Request] = (),
    ) -> None:
        self.settings = settings
        self.now_s = 0.0
        self._check(knobs)
        self._knobs = knobs
        self._tier, self._prefill_gpus = knobs.tier, knobs.prefill_gpus
        delays, *streams, starts = np.random.default_rng(seed).spawn(settings.num_gpus + 2)
        self._delays = delays
        self._gpus = [
            ServingGpu(Engine(timer, knobs, settings.scheduler, stream, memory))
            for stream in streams
        ]
        self.replicas = Replicas(settings.num_gpus, settings.fleet, knobs.replicas, starts)
        for gpu in self._gpus[: knobs.prefill_gpus]:
            gpu.prefills = True
        prefilling = self._gpus[: knobs.prefill_gpus] or self._gpus
        for request, gpu in zip(served, itertools.cycle(prefilling), strict=False):
            gpu.engine.remember(request)
        self._split_from = knobs.prefill_gpus
        self._router = Router(settings.routing)
        self._queue = WaitingQueue(knobs.priority_routing)
        self._events = EventQueue()
        self._handover = Handover(settings, self._events, knobs.priority_routing)
        self._ids: set[int] = set()
        self._future: list[tuple[float, int, Request]] = []
        self._held_back: list[tuple[float, int, Request]] = []  # in a closed loop
        self._in_flight = 0
        self._arrived: list[Request] = []
        self._steady = False
        self._drains = 0
        self._until_s = 0.0
        in_force = (knobs.tier, knobs.prefill_gpus)
        self._window = WindowTally(self._gpus, self.replicas, in_force, 0.0)
        self.submit(requests)

    def submit(self, requests: Iterable[Request]) -> None:
        """Adds requests to the traffic.

        Raises:
          InputError: a request arrives before the simulator's present, or an id is taken.
        """
        for request in requests:
            if request.id in self._ids:
                raise InputError(f"id {request.id} belongs to two requests; ids must be unique")
            self._ids.add(request.id)
            if request.arrival_s < self.now_s:
                name = f"arrival_s of request {request.id}"
                checks.refuse(name, request.arrival_s, f"{self.now_s} (now) or later")
            heapq.heappush(self._held_back, (request.arrival_s, request.id, request))
        self._let_in(self.now_s)

    def advance(self, until_s: float, knobs: Knobs) -> WindowStats:
        """Runs from the last control point to ``until_s`` under ``knobs``.

        Raises:
          InputError: ``until_s`` is in the past or ``knobs.prefill_gpus`` leaves no GPU to decode.
        """
        if not self.now_s <= until_s < math.inf:
            checks.refuse("until_s", until_s, f"{self.now_s} (now) or later")
        self._check(knobs)
        self._window = WindowTally(self._gpus, self.replicas, self._window.in_force, self.now_s)
        self._until_s, self._steady = until_s, False
        self._knobs = knobs
        self._queue.set_order(knobs.priority_routing)
        self._handover.set_order(knobs.priority_routing)
        for gpu in self._gpus:
            self._set_knobs(gpu.engine, gpu.engine.knobs.tier)
        if knobs.replicas is not None:
            self._scale(knobs.replicas)
        self._settle()
        while (next_s := self._next_event_s()) <= until_s:
            self.now_s = next_s
            while self._future and self._future[0][0] <= next_s:
                self._arrive(heapq.heappop(self._future)[2])
            self._events.handle(next_s)
            self._settle()
        self.now_s = until_s
        return self._window.close(until_s, self._running(), self._waiting())

    def log(self) -> np.ndarray:
        """``LOG_DTYPE`` row of every request that has arrived, in order of arrival."""
        return request_log(self._arrived)

    def queued(self) -> list[Request]:
        """The requests that wait for admission now, in no particular order."""
        waiting = [request for gpu in self._gpus for request in gpu.engine.waiting]
        return [*self._queue, *waiting]

    def _let_in(self, earliest_s: float) -> None:
        """Lets held-back requests in, as many as may be in flight."""
        most = self.settings.concurrency
        while self._held_back and (most is None or self._in_flight < most):
            _, number, request = heapq.heappop(self._held_back)
            request.arrival_s = max(request.arrival_s, earliest_s)
            heapq.heappush(self._future, (request.arrival_s, number, request))
            self._in_flight += 1

    def _note_ended(self) -> None:
        """Lets as many requests in as have ended since the last call."""
        if ended := self._window.newly_ended():
            self._in_flight -= ended
            self._let_in(self.now_s + self.settings.front_end.fixed_s)

    def _arrive(self, request: Request) -> None:
        self._arrived.append(request)
        self._window.arrivals += 1
        request.frontend_s = self.settings.front_end.draw(self._delays)
        longest = self.settings.context_tokens
        too_long = longest is not None and request.prompt_tokens + request.output_tokens > longest
        if too_long or self._waiting() >= self.settings.queue_capacity:
            request.rejected = True
            self._window.counters.rejected.append(request)
        else:
            self._queue.push(request)

    def _settle(self) -> None:
        """Brings everything that can move at this instant into motion."""
        self._note_ended()
        changed = not self._steady
        if changed:
            self._stop_drained()
            self._roll()
        moved = True
        while moved:
            if not self._steady:
                changed = True
                self._assign_roles()
                self._steady = self._is_steady()
            self._route()
            self._hand_over()
            moved = self._start_idle()
        if changed:
            self._window.note_in_force(self.now_s)
        self._note_ended()

    def _is_steady(self) -> bool:
        """Whether no GPU is down, drains or has to change, so that only requests move."""
        knobs = self._knobs
        return (
            (self._tier, self._prefill_gpus) == (knobs.tier, knobs.prefill_gpus)
            and self._split_from == knobs.prefill_gpus
            and not self.replicas.count(Phase.DRAINING)
            and all(gpu.up for gpu in self._serving())
            and all(self._restart_s(index) is None for index in range(len(self._gpus)))
        )

    def _undisturbed_s(self) -> float:
        """Time before which iterations that complete no request concern their own GPU alone: until
        the next arrival, the next control point or any other event, where GPUs neither change nor
        hand sequences over, no request waits for a GPU, and in a closed loop only where there is no
        other GPU whose completions let requests in."""
        alone = self.settings.concurrency is None or len(self._gpus) == 1
        if not self._steady or self._prefill_gpus or self._queue or not alone:
            return -math.inf
        arrival_s = self._future[0][0] if self._future else math.inf
        return min(self._until_s, arrival_s, self._events.next_interruption_s(self.now_s))

    def _assign_roles(self) -> None:
        """Splits the GPUs once all that are to prefill are up; until then each does both.

        A GPU that begins to prefill only still finishes the sequences that it was decoding.
        """
        before, after = self._split_from, self._prefill_gpus
        needed = after if before == 0 else min(before, after)
        ready = sum(gpu.up and gpu.prefills for gpu in self._gpus)
        split = ready >= max(needed, 1)
        for gpu in self._gpus:
            engine = gpu.engine
            engine.role = Role.MIXED
            if split:
                engine.role = Role.PREFILL if gpu.prefills else Role.DECODE
            if engine.role is Role.DECODE and engine.waiting:
                for request in engine.waiting.drain():
                    self._queue.push(request)

    def _route(self) -> None:
        """Hands the next requests to GPUs, where the routing waits for it once they have room."""
        budget = self.settings.scheduler.token_budget
        while self._queue:
            request = self._queue.peek()
            ready = [
                gpu.engine
                for gpu in self._serving()
                if gpu.up and gpu.engine.role is not Role.DECODE
            ]
            if self._router.waits:
                ready = [
                    engine
                    for engine in ready
                    if engine.waiting.tokens_before(request) < budget
                    and engine.running + len(engine.waiting) < self._knobs.batch_cap
                ]
            if not ready:
                return
            self._router.choose(request, ready).waiting.push(self._queue.pop())

    def _hand_over(self) -> None:
        """Starts KV transfers to decoding GPUs."""
        if not self._handover.waiting:
            return
        decoders = [g for g in self._serving() if g.up and g.engine.role is not Role.PREFILL]
        self._handover.start(self.now_s, decoders, self._knobs.batch_cap, self._lose)

    def _start_idle(self) -> bool:
        """Starts an iteration on every idle GPU; True if requests can move again: some were sent
        back to the router, or one that fits no GPU made room for the next."""
        moved, ended = False, self._window.counters.ended
        undisturbed_s = self._undisturbed_s()
        for gpu in self._gpus:
            if not gpu.up or gpu.busy:
                continue
            engine = gpu.engine
            end_s = engine.start(self.now_s, undisturbed_s)
            if engine.crashed:
                self._crash(gpu)
                moved = True
            elif end_s is not None:
                gpu.busy = True
                self._events.add(end_s, self._end_iteration, gpu)
            for request in engine.displaced:
                self._queue.push(request)
                moved = True
            engine.displaced.clear()
        return moved or self._window.counters.ended > ended

    def _end_iteration(self, gpu: ServingGpu) -> None:
        gpu.busy = False
        gpu.engine.finish(self.now_s)
        self._handover.collect(gpu)

    def _restart_s(self, index: int) -> float | None:
        """Seconds that GPU ``index`` needs for the tier and role that the roll leads to; None if
        it has both."""
        gpu = self._gpus[index]
        if self.replicas.phases[index] is not Phase.SERVING:
            return None
        reload = gpu.engine.knobs.tier != self._tier
        re_role = gpu.prefills != (index < self._prefill_gpus)
        if not reload and not re_role:
            return None
        return max(
            self.settings.restart_s if reload else 0.0, self.settings.rerole_s if re_role else 0.0
        )

    def _roll(self) -> None:
        """Takes the next GPU down that has to change, when no other is down.

        A roll that has begun is finished before the knobs can start another.
        """
        if not all(gpu.up for gpu in self._serving()):
            return
        needs = [self._restart_s(index) for index in range(len(self._gpus))]
        if all(seconds is None for seconds in needs):
            self._split_from = self._prefill_gpus
            self._tier, self._prefill_gpus = self._knobs.tier, self._knobs.prefill_gpus
            needs = [self._restart_s(index) for index in range(len(self._gpus))]
        for gpu, seconds in zip(self._gpus, needs, strict=True):
            if seconds is not None:
                # An iteration in flight is let finish; its end comes back here.
                if not gpu.busy:
                    self._take_down(gpu, seconds)
                    self._evict_all(gpu)
                return

    def _crash(self, gpu: ServingGpu) -> None:
        """Out of memory: everything that was running on the GPU is lost."""
        self._window.counters.oom_restarts += 1
        self._take_down(gpu, self.settings.oom_restart_s)
        for request in self._strand(gpu):
            self._lose(request)

    def _lose(self, request: Request) -> None:
        request.lost = True
        self._window.counters.lost.append(request)

    def _take_down(self, gpu: ServingGpu, seconds: float) -> None:
        """Stops a GPU for ``seconds``."""
        gpu.up = self._steady = False
        gpu.down_since_s = self.now_s
        self._events.interrupt(self.now_s + seconds, self._bring_up, gpu)

    def _evict_all(self, gpu: ServingGpu) -> None:
        """Sends all requests of a stopped GPU back to the router, to be recomputed."""
        for request in self._strand(gpu):
            request.preemptions += 1
            self._window.counters.preemptions += 1
            self._queue.push(request)

    def _strand(self, gpu: ServingGpu) -> list[Request]:
        """Ends the process of a GPU; its waiting requests go back to the router.

        Returns:
          the requests whose KV went with it.
        """
        stranded = self._handover.forget(gpu)
        for request in gpu.engine.waiting.drain():
            self._queue.push(request)
        return stranded

    def _serving(self) -> list[ServingGpu]:
        """GPUs that new requests may go to, a restart not counted."""
        phases = self.replicas.phases
        return [
            gpu for gpu, phase in zip(self._gpus, phases, strict=True) if phase is Phase.SERVING
        ]

    def _scale(self, wanted: int) -> None:
        """Starts, cancels and drains replicas until as many as are wanted serve or start."""
        begun, drained = self.replicas.order(wanted, self.now_s)
        for start in begun:
            self._events.interrupt(start.ready_s, self._end_start, start)
        for gpu in (self._gpus[index] for index in drained):
            for request in gpu.engine.waiting.drain():
                self._queue.push(request)
            assert self.settings.fleet is not None
            self._drains += 1
            gpu.drain = self._drains
            end_s = self.now_s + self.settings.fleet.drain_s
            self._events.interrupt(end_s, self._end_drain, (gpu, gpu.drain))

    def _end_start(self, start: Start) -> None:
        self._steady = False
        if start.cancelled or not self.replicas.ready(start, self.now_s):
            return
        gpu = self._gpus[start.index]
        gpu.prefills = start.index < self._prefill_gpus
        self._set_knobs(gpu.engine, self._tier)

    def _end_drain(self, drain: tuple[ServingGpu, int]) -> None:
        """Stops a replica whose time to drain is over; what runs there is recomputed elsewhere."""
        gpu, number = drain
        gpu.late = gpu.late or gpu.drain == number

    def _stop_drained(self) -> None:
        """Stops draining replicas that are empty or out of time, between two iterations."""
        for index, (gpu, phase) in enumerate(zip(self._gpus, self.replicas.phases, strict=True)):
            if phase is not Phase.DRAINING or gpu.busy:
                continue
            left = gpu.engine.running + len(gpu.engine.held) + len(gpu.engine.waiting)
            if left and not gpu.late:
                continue
            self._evict_all(gpu)
            gpu.drain, gpu.late = 0, False
            self.replicas.stop(index, self.now_s)

    def _bring_up(self, gpu: ServingGpu) -> None:
        gpu.up, self._steady = True, False
        self._window.note_up(gpu, self.now_s)
        gpu.prefills = self._gpus.index(gpu) < self._prefill_gpus
        self._set_knobs(gpu.engine, self._tier)

    def _check(self, knobs: Knobs) -> None:
        checks.whole("prefill_gpus", knobs.prefill_gpus, 0, self.settings.num_gpus - 1)
        if knobs.replicas is not None:
            checks.whole("replicas", knobs.replicas, 1, self.settings.num_gpus)
            if self.settings.fleet is None:
                raise InputError("replicas is given, but all replicas of the deployment serve")

    def _set_knobs(self, engine: Engine, tier: int) -> None:
        """Knobs in force on an engine that runs in ``tier``, which may not be the one asked for."""
        knobs = self._knobs
        if tier != knobs.tier:
            # The capacity asked for belongs to the weights of the other tier.
            capacity = engine.knobs.kv_capacity_tokens
            knobs = replace(knobs, tier=tier, kv_capacity_tokens=capacity)
        engine.set_knobs(knobs)

    def _next_event_s(self) -> float:
        arrival_s = self._future[0][0] if self._future else math.inf
        return min(arrival_s, self._events.next_s)

    def _waiting(self) -> int:
        return len(self._queue) + sum(len(gpu.engine.waiting) for gpu in self._gpus)

    def _running(self) -> int:
        return sum(gpu.engine.running + len(gpu.engine.held) for gpu in self._gpus)
