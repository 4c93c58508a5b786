"""Ledger: passes every step of a request to metrics, windows and records."""

from __future__ import annotations

import itertools
import time

from jaxserve.gateway.measure.metrics import GatewayMetrics
from jaxserve.gateway.measure.objectives import RequestClasses
from jaxserve.gateway.measure.records import Records, RequestRecord
from jaxserve.gateway.measure.windows import WindowSeries


class Ledger:
    """All measurements of one gateway."""

    def __init__(
        self,
        gateway_id: str,
        classes: RequestClasses,
        metrics: GatewayMetrics,
        windows: WindowSeries,
        records: Records,
    ) -> None:
        """Args:
        gateway_id: id of this start of the gateway.
        classes: classes of requests with their objectives.
        metrics: Prometheus metrics.
        windows: series for windows of time.
        records: records of requests that ended.
        """
        self.classes = classes
        self.metrics = metrics
        self.windows = windows
        self.records = records
        self.id = gateway_id
        self._numbers = itertools.count(1)

    def new_record(self, dialect: str) -> RequestRecord:
        """A new record, for a request whose headers have been read."""
        return RequestRecord(
            id=f"{self.id}-{next(self._numbers)}",
            dialect=dialect,
            arrival_unix_s=time.time(),
            arrival_s=time.monotonic(),
        )

    def arrived(self, record: RequestRecord) -> None:
        """Notes a request whose body was read, or could not be."""
        self.metrics.arrived(record)
        self.windows.arrivals.add(
            time.monotonic(), record.priority, self.windows.class_index(record.class_name)
        )

    def admitted(self, record: RequestRecord) -> None:
        """Notes that a request got a place at an engine."""
        if record.admitted_s is None:
            record.admitted_s = time.monotonic()
            self.metrics.admitted(record)

    def ended(self, record: RequestRecord) -> None:
        """Notes the end of a request, whose record has ``outcome`` and ``reason``."""
        record.ended_s = time.monotonic()
        record.good = self._judged(record, record.ended_s - record.arrival_s)
        self.metrics.ended(record)
        self.records.add(record)

    def _judged(self, record: RequestRecord, total_s: float) -> bool | None:
        """Whether a request that ended after ``total_s`` is good; None if nothing tells."""
        slo = self.classes.slos[record.class_name]
        if record.outcome == "completed":
            if record.ttft_s is not None:
                return slo.met(record.ttft_s, record.tpot_s)
            return slo.met_in_total(total_s, None if record.parallel else record.output_tokens)
        # A client that left after the limit for a first token saw it missed.
        if record.outcome == "cancelled" and (record.streamed or record.admitted_s is None):
            waited_s = total_s if record.ttft_s is None else record.ttft_s
            return False if waited_s > slo.ttft_s else None
        return None


class TokenClock:
    """Measures the output events of one stream."""

    def __init__(self, ledger: Ledger, record: RequestRecord) -> None:
        """Args: the ledger, and the record of the request."""
        self._ledger = ledger
        self._record = record
        self._class = ledger.windows.class_index(record.class_name)
        self._itl_s = ledger.windows.itl_s
        self._histogram = ledger.metrics.gaps(record.class_name)

    def tick(self, events: int) -> None:
        """Notes events with output that arrived now.

        Events that are read together share the time since the last one equally: the time of
        reading is not the time of their generation.
        """
        now_s = time.monotonic()
        record = self._record
        record.token_events += events
        gap_s = 0.0 if record.last_token_s is None else (now_s - record.last_token_s) / events
        if record.last_token_s is None:
            record.first_token_s = now_s
            self._ledger.metrics.first_token(record)
            self._ledger.windows.ttft_s.add(now_s, now_s - record.arrival_s, self._class)
            events -= 1
        for _ in range(0 if record.parallel else events):
            self._histogram.observe(gap_s)
            self._itl_s.add(now_s, gap_s, self._class)
        record.last_token_s = now_s
