"""Control windows measured by the client that sends the requests, without a gateway.

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
from jaxserve.live.engine_client import EngineClient, TimedCompletion
from jaxserve.live.player import stream_of_class
from jaxserve.live.readings import (
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
    """One request in flight."""

    record: RequestRecord
    class_index: int


@dataclass
class ClientWindows:
    """Records of requests, by the task's streams."""

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
        """Records the arrival of a request that is about to be sent.

        Args:
          due_s: scheduled time of the arrival, at which TTFT starts; monotonic clock.
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
        """Records an event with output."""
        record = sending.record
        if record.last_token_s is None:
            record.first_token_s = time_s
            self._windows.ttft_s.add(time_s, time_s - record.arrival_s, sending.class_index)
        else:
            self._windows.itl_s.add(time_s, time_s - record.last_token_s, sending.class_index)
        record.last_token_s = time_s
        record.token_events += 1

    def completed(self, sending: Sending, completion: TimedCompletion) -> None:
        """Records the complete response."""
        record = sending.record
        record.prompt_tokens = completion.prompt_tokens
        record.output_tokens = completion.output_tokens
        slo = self._classes.slos[record.class_name]
        record.good = record.ttft_s is not None and slo.met(record.ttft_s, record.tpot_s)
        self._ended(sending, "completed")

    def rejected(self, sending: Sending, reason: str) -> None:
        """Records that the engine rejected the request."""
        sending.record.reason = reason
        self._ended(sending, "rejected")

    def window(self, since_s: float, until_s: float) -> LiveWindow:
        """The window ``(since_s, until_s]``, monotonic clock."""
        found = self._windows.window(self._records, since_s, until_s, slices=1)
        states = ("waiting", "running", "on_track")
        flight = {stream.name: dict.fromkeys(states, 0) for stream in self.spec.streams}
        for record in self._in_flight.values():
            counts = flight[record.class_name]
            counts["waiting" if record.first_token_s is None else "running"] += 1
            counts["on_track"] += self._is_on_track(record, until_s)
        return parse_window({"gateway": "none", "in_flight": flight, "pools": {}, **found})

    def _is_on_track(self, record: RequestRecord, now_s: float) -> bool:
        """Whether a request would meet its objectives at its pace so far.

        An event with several tokens counts as one token, so some requests on track are missed.
        """
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
    """State of a vLLM server by its metrics; None if it has no metrics of vLLM.

    Raises:
      InputError: the server cannot be reached, or a metric is no number.
    """
    text = await engine.metrics()
    if text is None or "vllm:num_requests_running" not in text:
        return None
    return parse_engine_state({_ENGINE: asdict(parse_metrics("vllm", text))}, {"engines": {}})


def silent_state() -> EngineState:
    """State of an engine without metrics."""
    return EngineState(
        counters={},
        waiting=None,
        kv_use=None,
        kv_tokens=None,
        up=1,
        count=1,
    )
