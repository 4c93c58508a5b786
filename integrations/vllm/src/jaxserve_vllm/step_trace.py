"""Timing of vLLM's steps: when each was composed and when its results came."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from jaxserve_vllm.engine_control.step_log import StepLoad, StepLog
from jaxserve_vllm.step_time import step_load


class StepTrace:
    """Times steps for a ``StepLog``.

    The time of a step starts at the end of the step before it: asynchronous scheduling composes a
    step while the previous one is computed; otherwise vLLM's work between two steps is part of the
    second. After a pause without requests the time starts when the step is sent off.
    """

    def __init__(self, log: StepLog, clock: Callable[[], float] = time.monotonic) -> None:
        """Args: log of the steps, and monotonic time, s."""
        self._log = log
        self._clock = clock
        self._composed: dict[int, tuple[StepLoad, int, int, float]] = {}
        self._ended_s = float("-inf")
        self._busy = False

    def composed(self, output: Any, running: int, waiting: int) -> None:
        """Notes a step, a vLLM ``SchedulerOutput``, when it is sent off."""
        if output.total_num_scheduled_tokens:
            self._composed[id(output)] = step_load(output), running, waiting, self._clock()

    def computed(self, output: Any) -> None:
        """Logs a step when its results arrive."""
        if (noted := self._composed.pop(id(output), None)) is None:
            return
        load, running, waiting, sent_s = noted
        now_s = self._clock()
        began_s = self._ended_s if self._busy else max(sent_s, self._ended_s)
        self._log.add(now_s - began_s, load, running, waiting)
        self._ended_s = now_s

    def left(self, unfinished: bool) -> None:
        """Notes after a step whether unfinished requests are left, so that another one follows."""
        self._busy = unfinished
