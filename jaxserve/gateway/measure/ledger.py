"""Keeps the books: every step of a request goes to metrics, windows and records from here."""

from __future__ import annotations

import itertools
import secrets
import time

from jaxserve.gateway.measure.metrics import Metrics
from jaxserve.gateway.measure.objectives import Classes
from jaxserve.gateway.measure.records import Records, RequestRecord
from jaxserve.gateway.measure.windows import Windows


class Ledger:
    """The books of one gateway."""

    def __init__(
        self, classes: Classes, metrics: Metrics, windows: Windows, records: Records
    ) -> None:
        """Args: the classes of requests, and the three kinds of books."""
        self.classes = classes
        self.metrics = metrics
        self.windows = windows
        self.records = records
        self.id = secrets.token_hex(4)
        """of this start of the gateway."""
        self._numbers = itertools.count(1)

    def new_record(self, dialect: str) -> RequestRecord:
        """Of a request whose headers have been read."""
        return RequestRecord(
            id=f"{self.id}-{next(self._numbers)}",
            dialect=dialect,
            arrival_unix_s=time.time(),
            arrival_s=time.monotonic(),
        )

    def arrived(self, record: RequestRecord) -> None:
        """It is read, or could not be."""
        self.metrics.arrived(record)
        self.windows.arrivals.add(
            time.monotonic(), record.priority, self.windows.class_index(record.class_name)
        )

    def admitted(self, record: RequestRecord) -> None:
        """It got a place."""
        if record.admitted_s is None:
            record.admitted_s = time.monotonic()
            self.metrics.admitted(record)

    def ended(self, record: RequestRecord) -> None:
        """It is over, with ``outcome`` and ``reason`` set."""
        record.ended_s = time.monotonic()
        if record.outcome == "completed" and record.ttft_s is not None:
            slo = self.classes.slos[record.class_name]
            record.good = slo.met(record.ttft_s, record.tpot_s)
        self.metrics.ended(record)
        self.records.add(record)


class TokenClock:
    """Times of one stream's events with output."""

    def __init__(self, ledger: Ledger, record: RequestRecord) -> None:
        """Args: the books, and whose stream it is."""
        self._ledger = ledger
        self._record = record
        self._class = ledger.windows.class_index(record.class_name)
        self._itl_s = ledger.windows.itl_s
        self._histogram = ledger.metrics.gaps(record.class_name)

    def tick(self, events: int) -> None:
        """Some events arrived together, now. Their gaps are equal shares of the time since the last
        one: they were read together, which is not when the engine made them."""
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
