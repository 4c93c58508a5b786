"""KV on its way from GPUs that prefill to GPUs that decode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jaxserve.sim.reference.gpu import EventQueue, ServingGpu
from jaxserve.sim.reference.request import Request, WaitingQueue
from jaxserve.sim.reference.settings import ReferenceSettings


@dataclass(eq=False)
class _Transfer:
    """KV on its way from a prefill GPU to a decoding one."""

    request: Request
    source: ServingGpu
    target: ServingGpu
    blocks: int
    cancelled: bool = False


class Handover:
    """Prefilled requests that wait for a decoding GPU, and transfers under way."""

    def __init__(self, settings: ReferenceSettings, events: EventQueue, by_priority: bool) -> None:
        """Args: the deployment, its events, and whether requests go by priority."""
        self._settings, self._events = settings, events
        self._queue = WaitingQueue(by_priority)
        self._source: dict[int, ServingGpu] = {}  # where the KV of a request is, by id
        self._transfers: list[_Transfer] = []

    @property
    def waiting(self) -> int:
        """Requests that wait for a decoding GPU."""
        return len(self._queue)

    def set_order(self, by_priority: bool) -> None:
        """Orders the waiting requests anew."""
        self._queue.set_order(by_priority)

    def collect(self, gpu: ServingGpu) -> None:
        """Takes the requests that a GPU has prefilled; it holds their KV until it is elsewhere."""
        for request in gpu.engine.handoffs:
            self._source[request.id] = gpu
            self._queue.push(request)
        gpu.engine.handoffs.clear()

    def start(
        self,
        now_s: float,
        decoders: Sequence[ServingGpu],
        batch_cap: int,
        lose: Callable[[Request], None],
    ) -> None:
        """Starts transfers to the least loaded decoding GPUs that have blocks for them.

        Args:
          now_s: present time.
          decoders: GPUs that decode and are up.
          batch_cap: sequences that a GPU runs at once.
          lose: told of a request that fits none of them.
        """
        while self._queue:
            request = self._queue.peek()
            if decoders and not any(g.engine.could_ever_receive(request) for g in decoders):
                self._queue.pop()
                self._source.pop(request.id).engine.release_held(request)
                lose(request)
                continue
            ready = [
                gpu
                for gpu in decoders
                if gpu.engine.running + self._arriving(gpu) < batch_cap
                and gpu.engine.can_receive(request)
            ]
            if not ready:
                return
            target = min(ready, key=lambda gpu: gpu.engine.load_tokens)
            self._queue.pop()
            blocks = target.engine.transfer_blocks(request)
            target.engine.pool.allocate(blocks)
            transfer = _Transfer(request, self._source[request.id], target, blocks)
            self._transfers.append(transfer)
            target.link_free_s = max(now_s, target.link_free_s) + self._seconds(request)
            self._events.interrupt(target.link_free_s, self._end, transfer)

    def forget(self, gpu: ServingGpu) -> list[Request]:
        """Cancels what a GPU that stops sends and receives.

        Returns:
          the requests whose KV went with it.
        """
        for transfer in [t for t in self._transfers if gpu in (t.source, t.target)]:
            transfer.cancelled = True
            self._transfers.remove(transfer)
            if transfer.target is gpu:
                self._queue.push(transfer.request)  # its KV is still at the source
            else:
                transfer.target.engine.pool.release(transfer.request, transfer.blocks, 0)
        stranded = gpu.engine.evacuate()
        for request in stranded:
            self._source.pop(request.id, None)
        for request in self._queue.drain():
            if request.id in self._source:
                self._queue.push(request)
        return stranded

    def _seconds(self, request: Request) -> float:
        """Time on the link."""
        # KV exists for all tokens but the newest.
        kv_tokens = float(request.prefill_target - 1)
        if (sequence := self._settings.scheduler.sequence_kv) is not None:
            kv_tokens += sequence.beside(kv_tokens)
        return kv_tokens * self._settings.kv_bytes_per_token / self._settings.link_bytes_per_s

    def _arriving(self, gpu: ServingGpu) -> int:
        return sum(transfer.target is gpu for transfer in self._transfers)

    def _end(self, transfer: _Transfer) -> None:
        if transfer.cancelled:
            return
        self._transfers.remove(transfer)
        del self._source[transfer.request.id]
        transfer.source.engine.release_held(transfer.request)
        transfer.target.engine.receive(transfer.request, transfer.blocks)
