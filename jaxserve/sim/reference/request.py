"""Requests of the reference simulator: their lengths, their history, their queues."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from jaxserve import checks
from jaxserve.fields import MAX_DEPTH

LOG_DTYPE = np.dtype(
    [
        ("id", "i8"),
        ("traffic_class", "i4"),
        ("priority", "i4"),
        ("prompt_tokens", "i8"),
        ("output_tokens", "i8"),
        ("arrival_s", "f8"),
        ("first_scheduled_s", "f8"),
        ("first_token_s", "f8"),
        ("finish_s", "f8"),
        ("ttft_s", "f8"),
        ("tpot_s", "f8"),
        ("preemptions", "i4"),
        ("tier", "i4"),
        ("cached_tokens", "i8"),
        ("rejected", "?"),
        ("lost", "?"),
    ]
)
"""Columns of a log with a row per request. Times that have not happened are NaN; ``tier`` is -1
until the request finishes."""


_NO_IDS = np.zeros(0, np.int64)
_PLACES = 1 << 24  # more blocks than a sequence has


@dataclass(slots=True, eq=False)
class Request:
    """A request and its history."""

    id: int
    """unique; breaks ties between equal arrival times."""
    arrival_s: float
    """when it reaches the router."""
    prompt_tokens: int
    """length of the prompt, at least 1."""
    output_tokens: int
    """length of the output, at least 1."""
    traffic_class: int = 0
    """class of the workload that it belongs to."""
    priority: int = 0
    """0 is served first when priority routing is on."""
    acceptance: np.ndarray | None = None
    """float[9], mean tokens per verify step at depth 0..8; None means that every draft token is
    rejected."""
    prefix_ids: np.ndarray = field(default_factory=lambda: _NO_IDS)
    """int64[h], names (from 0 on) of the prompt's blocks of ``prefix_tokens`` tokens, the last of
    which may not be full. Equal names in two requests mean equal tokens up to the block's end.
    Empty where no other prompt has any of its tokens."""
    prefix_tokens: int = 1
    """tokens that each of ``prefix_ids`` stands for."""
    frontend_s: float = 0.0
    """delay of the front end, part of TTFT but not of the engine's time."""
    generated: int = 0
    """output tokens so far; a preemption does not lose them."""
    computed: int = 0
    """prompt tokens prefilled since it was last admitted."""
    blocks: int = 0
    """KV blocks held while it is prefilling or being handed over."""
    first_scheduled_s: float = math.nan
    """engine time of the first chunk, NaN until then."""
    first_token_s: float = math.nan
    """engine time of the first token, NaN until then."""
    finish_s: float = math.nan
    """engine time of the last token, NaN until then."""
    preemptions: int = 0
    """times that it lost its KV and had to be recomputed."""
    tier: int = -1
    """quantisation tier that finished it, -1 before."""
    cached_tokens: int = 0
    """prompt tokens that it found in the prefix cache when it was first scheduled."""
    rejected: bool = False
    """turned away by the full queue, or too long for the KV pool."""
    lost: bool = False
    """dropped after it had been admitted: out of memory, or longer than the KV pool."""

    def __post_init__(self) -> None:
        checks.number(f"arrival_s of request {self.id}", self.arrival_s, 0)
        for name in ("prompt_tokens", "output_tokens"):
            checks.whole(f"{name} of request {self.id}", getattr(self, name), 1)
        if self.acceptance is not None and np.shape(self.acceptance) != (MAX_DEPTH + 1,):
            name = f"shape of acceptance of request {self.id}"
            checks.refuse(name, np.shape(self.acceptance), f"({MAX_DEPTH + 1},)")

    @property
    def prefill_target(self) -> int:
        """Tokens to prefill before it can decode: the prompt and, recomputed, its own output."""
        return self.prompt_tokens + self.generated

    @property
    def ttft_s(self) -> float:
        """Time to first token as the client sees it, seconds; NaN before the first token."""
        return self.first_token_s - self.arrival_s + self.frontend_s

    @property
    def tpot_s(self) -> float:
        """Mean seconds per token after the first; NaN while running, 0 for one-token outputs."""
        if self.output_tokens == 1:
            return 0.0 * self.finish_s
        return (self.finish_s - self.first_token_s) / (self.output_tokens - 1)

    def shareable_blocks(self, block_tokens: int) -> int:
        """Full blocks of ``block_tokens`` tokens that other requests may have as well."""
        return min(len(self.prefix_ids) * self.prefix_tokens, self.prompt_tokens) // block_tokens

    def block_names(self, block_tokens: int, count: int) -> list[int]:
        """Names of its first ``count`` blocks of ``block_tokens`` tokens.

        Two blocks have one name only if all tokens up to their end are the same. Blocks behind
        ``shareable_blocks`` belong to this request alone, and have negative names.
        """
        shareable = min(self.shareable_blocks(block_tokens), count)
        places = np.arange(count)
        ids = np.full(count, -1 - self.id)
        ends = (places[:shareable] + 1) * block_tokens - 1
        ids[:shareable] = self.prefix_ids[ends // self.prefix_tokens]
        return (ids * _PLACES + places).tolist()

    def draft_survival(self) -> np.ndarray:
        """float[8], chance that draft position 1..8 is accepted.

        The mean number of tokens at depth k is one (the target model's own) plus the sum of the
        first k chances, so the chances are the steps of the acceptance table.
        """
        if self.acceptance is None:
            return np.zeros(MAX_DEPTH)
        return np.diff(self.acceptance)


def request_log(requests: Iterable[Request]) -> np.ndarray:
    """Structured array of ``LOG_DTYPE``, one row per request in the given order."""
    names = LOG_DTYPE.names
    assert names is not None
    return np.array([tuple(getattr(r, name) for name in names) for r in requests], LOG_DTYPE)


class WaitingQueue:
    """Requests that wait for admission, first come first served or by priority.

    Both orders use the arrival time. By priority a preempted request goes back to its place in the
    order; first come first served it goes to the front.
    """

    def __init__(self, by_priority: bool = False) -> None:
        self.by_priority = by_priority
        self.prefill_tokens = 0
        """Tokens that the waiting requests have to prefill."""
        self._heap: list[tuple[int, float, int, Request]] = []
        self._put_back = 0

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Request]:
        """The requests in no particular order."""
        return (entry[3] for entry in self._heap)

    def push(self, request: Request) -> None:
        """Adds ``request`` at its place in the order."""
        self._push(request, request.priority if self.by_priority else 0)

    def put_back(self, request: Request) -> None:
        """Adds ``request``, which was preempted."""
        self._put_back += 1
        self._push(request, request.priority if self.by_priority else -self._put_back)

    def tokens_before(self, request: Request) -> int:
        """Tokens to prefill of those that would be served before ``request``."""
        if not self.by_priority:
            return self.prefill_tokens
        place = (request.priority, request.arrival_s, request.id)
        return sum(entry[3].prefill_target for entry in self._heap if entry[:3] < place)

    def peek(self) -> Request:
        """The next request; the queue must not be empty."""
        return self._heap[0][3]

    def pop(self) -> Request:
        """Removes and returns the next request; the queue must not be empty."""
        request = heapq.heappop(self._heap)[3]
        self.prefill_tokens -= request.prefill_target
        return request

    def remove(self, request: Request) -> None:
        """Takes out ``request``, which must be here."""
        self._heap = [entry for entry in self._heap if entry[3] is not request]
        heapq.heapify(self._heap)
        self.prefill_tokens -= request.prefill_target

    def drain(self) -> list[Request]:
        """Removes and returns every request, in order."""
        return [self.pop() for _ in range(len(self._heap))]

    def _push(self, request: Request, rank: int) -> None:
        heapq.heappush(self._heap, (rank, request.arrival_s, request.id, request))
        self.prefill_tokens += request.prefill_target

    def set_order(self, by_priority: bool) -> None:
        """Switches between first come first served and priority order."""
        if by_priority != self.by_priority:
            waiting = self.drain()
            self.by_priority = by_priority
            for request in waiting:
                self.push(request)
