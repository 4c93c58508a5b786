"""The latest steps of an engine, each with its load and its time, to calibrate from."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import astuple, fields
from typing import Any

from jaxserve_vllm.step_time import StepLoad, step_load

KEPT_STEPS = 8192
COLUMNS = (
    "step",
    "seconds",
    *(field.name for field in fields(StepLoad)),
    "running",
    "waiting",
)


class StepTrace:
    """Rows of ``COLUMNS`` for the latest ``KEPT_STEPS`` steps.

    The time of a step counts from the end of the one before it: with asynchronous scheduling it is
    composed while that one is computed, and otherwise what vLLM does in between is part of it.
    After a pause without requests it counts from when it was sent off.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._rows: deque[tuple[float, ...]] = deque(maxlen=KEPT_STEPS)
        self._composed: dict[int, tuple[tuple[float, ...], float]] = {}
        self.steps = 0
        """steps computed since the start."""
        self._ended = float("-inf")
        self._busy = False

    def composed(self, output: Any, running: int, waiting: int) -> None:
        """Notes the step that a vLLM ``SchedulerOutput`` describes, when it is sent off."""
        if output.total_num_scheduled_tokens:
            row = (*astuple(step_load(output)), running, waiting)
            self._composed[id(output)] = row, self._clock()

    def computed(self, output: Any) -> None:
        """Notes that the results of the step are there."""
        if (noted := self._composed.pop(id(output), None)) is None:
            return
        row, sent = noted
        now = self._clock()
        self.steps += 1
        began = self._ended if self._busy else max(sent, self._ended)
        self._rows.append((self.steps, now - began, *row))
        self._ended = now

    def left(self, unfinished: bool) -> None:
        """Notes whether any request is left after a step, so that the next one follows at once."""
        self._busy = unfinished

    def after(self, step: int) -> dict[str, Any]:
        """The rows of the steps after number ``step``, 0 for all that are kept; JSON-able."""
        return {"columns": COLUMNS, "rows": [row for row in self._rows if row[0] > step]}
