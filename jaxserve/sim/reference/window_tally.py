"""Sums of a window: what happened between two control points, and what was in force."""

from __future__ import annotations

from collections.abc import Sequence

from jaxserve.sim.reference.counters import Counters, WindowStats
from jaxserve.sim.reference.engine import Role
from jaxserve.sim.reference.gpu import ServingGpu
from jaxserve.sim.reference.replicas import Phase, Replicas
from jaxserve.sim.reference.request import request_log


class WindowTally:
    """The window that is open; all GPUs of the deployment count in its ``counters``."""

    def __init__(
        self,
        gpus: Sequence[ServingGpu],
        replicas: Replicas,
        in_force: tuple[int, int],
        now_s: float,
    ) -> None:
        """Args:
        gpus: all GPUs.
        replicas: phases of them.
        in_force: tier, and GPUs that only prefill, at ``now_s``.
        now_s: time at which the window begins.
        """
        self._gpus, self._replicas = gpus, replicas
        self.start_s = self._noted_s = now_s
        self.in_force = in_force
        self._in_force_s: dict[tuple[int, int], float] = {}
        replicas.note(now_s)
        self._replica_s = (replicas.serving_s, replicas.rented_s)
        self.arrivals = 0
        self._down_s = 0.0
        self.counters = Counters()
        self._ended = 0
        for gpu in gpus:
            gpu.engine.counters = self.counters

    def newly_ended(self) -> int:
        """Requests that have ended since the last call."""
        before, self._ended = self._ended, self.counters.ended
        return self._ended - before

    def note_up(self, gpu: ServingGpu, now_s: float) -> None:
        """Counts the time in which a GPU was down."""
        self._down_s += now_s - max(gpu.down_since_s, self.start_s)

    def note_in_force(self, now_s: float) -> None:
        """Credits the time since the last call to what was in force, and notes what is now."""
        past_s = self._in_force_s.get(self.in_force, 0.0)
        self._in_force_s[self.in_force] = past_s + now_s - self._noted_s
        self._noted_s = now_s
        tiers = [gpu.engine.knobs.tier for gpu in self._gpus]
        prefilling = sum(gpu.engine.role is Role.PREFILL for gpu in self._gpus)
        self.in_force = (max(tiers, key=tiers.count), prefilling)

    def close(self, now_s: float, running: int, waiting: int) -> WindowStats:
        """The sums.

        Args:
          now_s: time at which the window ends.
          running, waiting: requests then.
        """
        self.note_in_force(now_s)
        tier, prefill_gpus = max(self._in_force_s, key=lambda pair: self._in_force_s[pair])
        counters, replicas, length_s = self.counters, self._replicas, now_s - self.start_s
        down_s = self._down_s + sum(
            now_s - max(gpu.down_since_s, self.start_s) for gpu in self._gpus if not gpu.up
        )
        replicas.note(now_s)
        gpu_s, rented_s = (
            total_s - before_s
            for total_s, before_s in zip(
                (replicas.serving_s, replicas.rented_s), self._replica_s, strict=True
            )
        )
        itl_s, p50_itl_s, p99_itl_s = counters.itl_s()
        pools = [
            gpu.engine.pool
            for gpu, phase in zip(self._gpus, replicas.phases, strict=True)
            if phase is Phase.SERVING and gpu.up
        ]
        blocks = sum(pool.capacity for pool in pools)
        return WindowStats(
            end_s=now_s,
            arrivals=self.arrivals,
            rejected=len(counters.rejected),
            completed=len(counters.completed),
            lost=len(counters.lost),
            oom_restarts=counters.oom_restarts,
            preemptions=counters.preemptions,
            running=running,
            waiting=waiting,
            first_tokens=request_log(counters.first_tokens),
            completions=request_log(counters.completed),
            tokens=counters.tokens,
            itl_s=itl_s,
            p50_itl_s=p50_itl_s,
            p99_itl_s=p99_itl_s,
            drafted=counters.drafted,
            draft_accepted=counters.draft_accepted,
            kv_occupancy=sum(pool.used for pool in pools) / blocks if blocks else 0.0,
            peak_memory_bytes=counters.peak_memory_bytes,
            capacity=1.0 - down_s / gpu_s if gpu_s else 1.0,
            tier=tier,
            prefill_gpus=prefill_gpus,
            work=counters.work,
            serving=gpu_s / length_s if length_s else float(replicas.count(Phase.SERVING)),
            rented_s=rented_s,
        )
