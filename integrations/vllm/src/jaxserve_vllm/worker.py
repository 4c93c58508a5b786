# pyright: reportMissingImports=false
"""A worker whose steps take as long as on an emulated device.

    JAXSERVE_EMULATE=h100.json vllm serve MODEL --worker-cls jaxserve_vllm.worker.EmulatedWorker

Scheduler, KV manager, API server and HTTP are real. The model is real as well; it must be small
enough to be computed within the device's time.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from vllm.platforms import current_platform
from vllm.v1.outputs import AsyncModelRunnerOutput, ModelRunnerOutput

from jaxserve_vllm.step_time import Device, read_step_time, step_load

if current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker as Worker
else:
    from vllm.v1.worker.gpu_worker import Worker


class EmulatedWorker(Worker):
    """vLLM's worker, with step times from the file that ``JAXSERVE_EMULATE`` names."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        path = os.environ.get("JAXSERVE_EMULATE")
        if not path:
            raise ValueError("JAXSERVE_EMULATE is not set; it must name a file of step times")
        self._device = Device(read_step_time(Path(path)), time.monotonic)
        self._done_at = 0.0

    def execute_model(self, scheduler_output: Any) -> Any:
        """Computes a step; immediate results are held back until the device is done."""
        if scheduler_output.total_num_scheduled_tokens:
            self._done_at = self._device.submit(step_load(scheduler_output))
        return self._in_time(super().execute_model(scheduler_output))

    def sample_tokens(self, grammar_output: Any) -> Any:
        """Results of the step, held back until the device is done."""
        return self._in_time(super().sample_tokens(grammar_output))

    def _in_time(self, output: Any) -> Any:
        if isinstance(output, ModelRunnerOutput | AsyncModelRunnerOutput):
            return OutputInTime(output, self._done_at)
        return output  # None, or the output of a pipeline stage


class OutputInTime(AsyncModelRunnerOutput):
    """Results held back until the device is done; asynchronous scheduling continues meanwhile."""

    def __init__(self, output: Any, done_at: float) -> None:
        self._output = output
        self._done_at = done_at

    def get_output(self) -> ModelRunnerOutput:
        """Waits for the device and returns the results."""
        output = self._output
        if isinstance(output, AsyncModelRunnerOutput):
            output = output.get_output()
        time.sleep(max(0.0, self._done_at - time.monotonic()))
        return output
