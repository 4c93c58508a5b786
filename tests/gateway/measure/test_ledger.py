"""Every request that ends is judged by what the gateway saw of it."""

from __future__ import annotations

import time
from typing import Any

import pytest

from jaxserve.gateway.measure.ledger import Ledger
from jaxserve.gateway.measure.metrics import GatewayMetrics
from jaxserve.gateway.measure.objectives import RequestClasses
from jaxserve.gateway.measure.records import Records
from jaxserve.gateway.measure.windows import WindowSeries

LATE, SOON = 50.0, 5.0
"""Ages of a request at its end, s; its limits are 10 s for a first token and 1 s a token."""


@pytest.mark.parametrize(
    ("age_s", "good", "fields"),
    [
        (SOON, True, {}),
        (LATE, None, {}),
        (LATE, True, {"output_tokens": 60}),
        (LATE, False, {"output_tokens": 20}),
        (LATE, None, {"output_tokens": 60, "parallel": True}),
        (LATE, None, {"class_name": "quick", "output_tokens": 20}),
        (LATE, True, {"class_name": "default"}),
        (SOON, None, {"outcome": "cancelled"}),
        (LATE, None, {"outcome": "cancelled", "admitted_s": 0.0}),
        (LATE, False, {"outcome": "cancelled"}),
        (LATE, False, {"outcome": "cancelled", "admitted_s": 0.0, "streamed": True}),
        (LATE, None, {"outcome": "failed"}),
    ],
)
def test_what_is_known_of_a_request_without_events(
    age_s: float, good: bool | None, fields: dict[str, Any]
) -> None:
    """A whole answer is judged by its total time, and a client that left by the limit for a first
    token; what cannot be told counts neither as good nor as missed."""
    classes = RequestClasses(("chat:ttft=10,tpot=1", "quick:ttft=10"))
    windows, records = WindowSeries(classes, 100.0), Records(10)
    ledger = Ledger("g", classes, GatewayMetrics(tuple), windows, records)
    record = ledger.new_record("chat")
    record.arrival_s = time.monotonic() - age_s
    for name, value in {"class_name": "chat", "outcome": "completed", **fields}.items():
        setattr(record, name, value)
    ledger.ended(record)
    assert record.good is good
    found = windows.window(records, record.arrival_s, time.monotonic())
    judged = good is not None
    assert (found["judged"], found["good"]) == (judged, good is True)
    assert found["unjudged"] == (not judged and record.outcome != "failed")
