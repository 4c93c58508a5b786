"""Windows of requests that this process sends itself, where there is no gateway to measure them.

What is measured, and in which window it counts, is as at the gateway
(``jaxserve.gateway.measure.windows``).
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass

from jaxserve.gateway.engines.scrape import parse_metrics
from jaxserve.gateway.measure.objectives import RequestClasses
from jaxserve.gateway.measure.records import Records, RequestRecord
from jaxserve.gateway.measure.windows import WindowSeries
from jaxserve.live.engine_client import Answer, EngineClient
from jaxserve.live.player import stream_of_class
from jaxserve.live.readings import (
    COUNTERS,
    EngineState,
    LiveWindow,
    parse_engine_state,
    parse_window,
)
from jaxserve.sim.reference.request import Request
from jaxserve.tasks.spec import TaskSpec

_KEPT_S = 3600.0
_KEPT = 1_000_000
_ENGINE = "engine"


@dataclass
class Sending:
    """One request on its way."""

    record: RequestRecord
    class_index: int


@dataclass
class ClientWindows:
    """What became of requests, by the stream of the task that each belongs to."""

    spec: TaskSpec

    def __post_init__(self) -> None:
        self._stream_of = stream_of_class(self.spec)
        self._classes = RequestClasses(
            [
                f"{stream.name}:ttft={stream.ttft_slo_s!r},tpot={stream.tpot_slo_s!r}"
                for stream in self.spec.streams
            ]
        )
        self._windows = WindowSeries(self._classes, _KEPT_S)
        self._records = Records(_KEPT)
        self._in_flight: dict[str, RequestRecord] = {}

    def arrived(self, request: Request, due_s: float) -> Sending:
        """A request is to be sent.

        Args:
          due_s: when it was meant to be, from which its TTFT counts; monotonic clock.
        """
        name = self._stream_of[request.traffic_class]
        record = RequestRecord(
            id=str(request.id),
            dialect="completions",
            arrival_unix_s=time.time(),
            arrival_s=due_s,
            class_name=name,
            priority=request.priority,
            streamed=True,
        )
        sending = Sending(record, self._windows.class_index(name))
        self._windows.arrivals.add(time.monotonic(), request.priority, sending.class_index)
        self._in_flight[record.id] = record
        return sending

    def output(self, sending: Sending, time_s: float) -> None:
        """An event with output came."""
        record = sending.record
        if record.last_token_s is None:
            record.first_token_s = time_s
            self._windows.ttft_s.add(time_s, time_s - record.arrival_s, sending.class_index)
        else:
            self._windows.itl_s.add(time_s, time_s - record.last_token_s, sending.class_index)
        record.last_token_s = time_s
        record.token_events += 1

    def completed(self, sending: Sending, answer: Answer) -> None:
        """The answer is whole."""
        record = sending.record
        record.prompt_tokens, record.output_tokens = answer.prompt_tokens, answer.output_tokens
        slo = self._classes.slos[record.class_name]
        record.good = record.ttft_s is not None and slo.met(record.ttft_s, record.tpot_s)
        self._ended(sending, "completed")

    def rejected(self, sending: Sending, reason: str) -> None:
        """The engine has no room for it."""
        sending.record.reason = reason
        self._ended(sending, "rejected")

    def window(self, since_s: float, until_s: float) -> LiveWindow:
        """What happened in ``(since_s, until_s]``, monotonic clock."""
        found = self._windows.window(self._records, since_s, until_s, slices=1)
        states = ("waiting", "running", "on_track")
        flight = {stream.name: dict.fromkeys(states, 0) for stream in self.spec.streams}
        for record in self._in_flight.values():
            counts = flight[record.class_name]
            counts["waiting" if record.first_token_s is None else "running"] += 1
            counts["on_track"] += self._is_on_track(record, until_s)
        return parse_window({"gateway": "none", "in_flight": flight, "pools": {}, **found})

    def _is_on_track(self, record: RequestRecord, now_s: float) -> bool:
        """Whether a request would meet its objectives if it went on as it did so far. An event may
        bring several tokens, which counts as one: a request on track may be missed."""
        if record.first_token_s is None or record.ttft_s is None:
            return False
        tpot_s = (now_s - record.first_token_s) / record.token_events
        return self._classes.slos[record.class_name].met(record.ttft_s, tpot_s)

    def _ended(self, sending: Sending, outcome: str) -> None:
        record = sending.record
        record.outcome, record.ended_s = outcome, time.monotonic()
        del self._in_flight[record.id]
        self._records.add(record)


async def read_state(engine: EngineClient) -> EngineState | None:
    """What a vLLM server says of itself; None where it has no metrics of that kind.

    Raises:
      InputError: it cannot be reached, or its metrics are no numbers.
    """
    text = await engine.metrics()
    if text is None or "vllm:num_requests_running" not in text:
        return None
    return parse_engine_state({_ENGINE: asdict(parse_metrics("vllm", text))}, {"engines": {}})


def silent_state() -> EngineState:
    """An engine that says nothing of itself."""
    return EngineState(
        counters=dict.fromkeys(COUNTERS),
        waiting=None,
        kv_use=None,
        kv_tokens=None,
        identity=(),
        up=1,
        count=1,
    )
