# pyright: reportMissingImports=false
"""vLLM's own scheduler, with knobs that are turned between its steps.

    VLLM_PLUGINS=jaxserve vllm serve MODEL --scheduling-policy priority \\
      --scheduler-cls jaxserve_vllm.scheduler.ControlledScheduler
"""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path
from typing import Any

from vllm.logger import init_logger
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.engine.core import EngineCore
from vllm.version import __version__, __version_tuple__

from jaxserve_vllm import VLLM_BEFORE, VLLM_FROM
from jaxserve_vllm.command_file import CommandFile
from jaxserve_vllm.endpoint import METHOD
from jaxserve_vllm.engine_control.command import CommandError, parse_knobs
from jaxserve_vllm.engine_control.leased_knobs import LeasedKnobs
from jaxserve_vllm.engine_control.routes import Question, answer_question
from jaxserve_vllm.engine_control.step_log import StepLog
from jaxserve_vllm.probe import find_kv_budget, probe
from jaxserve_vllm.step_trace import StepTrace

logger = init_logger("vllm.jaxserve")  # vLLM shows what loggers below its own name say


# From the plain ``Scheduler`` vLLM would conclude that it must not schedule asynchronously.
class ControlledScheduler(AsyncScheduler):
    """vLLM's scheduler with ``LeasedKnobs``.

    ``JAXSERVE_STATIC`` may hold a JSON object of values in force without a lease, instead of vLLM's
    start-up values. ``JAXSERVE_CONTROL_FILE`` may name a ``CommandFile``.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if not VLLM_FROM <= __version_tuple__[:2] < VLLM_BEFORE:
            logger.warning("jaxserve-vllm has not been tried with vLLM %s.", __version__)
        self._id = uuid.uuid4().hex
        self._preemptions = 0
        self._log = StepLog()
        self._trace = StepTrace(self._log)
        self._kv_budget = find_kv_budget(self)
        try:
            static = parse_knobs(os.environ.get("JAXSERVE_STATIC", "{}").encode())
            self._knobs = LeasedKnobs(probe(self, self._kv_budget), static)
        except CommandError as error:
            raise CommandError(f"JAXSERVE_STATIC: {error}") from None
        path = os.environ.get("JAXSERVE_CONTROL_FILE")
        self._file = CommandFile(Path(path)) if path else None

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Composes the next step under the knobs in force."""
        if self._knobs.expire():
            logger.warning("The lease is over; the static values of the knobs are in force.")
        if self._file is not None and (command := self._file.poll()) is not None:
            try:
                self._knobs.put(command)
            except CommandError as error:
                logger.warning("The command file changes nothing: %s", error)
        if hasattr(self, "wanted_batch_cap"):
            self.max_num_running_reqs = max(self.wanted_batch_cap, len(self.running))
        output = super().schedule(*args, **kwargs)
        self._trace.composed(output, *self.get_request_counts())
        return output

    def update_from_output(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        """Takes in the results of a step."""
        self._trace.computed(scheduler_output)
        results = super().update_from_output(scheduler_output, *args, **kwargs)
        self._trace.left(unfinished=any(self.get_request_counts()))
        return results

    def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> Any:
        """Resets the prefix cache; vLLM counts free blocks to see whether any is in use."""
        if self._kv_budget is None:
            return super().reset_prefix_cache(*args, **kwargs)
        with self._kv_budget.lifted():
            return super().reset_prefix_cache(*args, **kwargs)

    def _preempt_request(self, *args: Any, **kwargs: Any) -> Any:
        self._preemptions += 1
        return super()._preempt_request(*args, **kwargs)

    def answer(self, question: Question) -> dict[str, Any]:
        """Answers a question of the endpoint, between two steps."""
        return answer_question(question, self._knobs, self._log, self._state)

    def _state(self) -> dict[str, Any]:
        running, waiting = self.get_request_counts()
        budget = self._kv_budget
        blocks = budget and {
            "kv_blocks": budget.total,
            "kv_blocks_budget": budget.blocks,
            "kv_blocks_used": budget.used,
        }
        return {
            "engine": self.parallel_config.data_parallel_index,
            "engine_id": self._id,
            "vllm": __version__,
            **self._knobs.state(),
            "running": running,
            "waiting": waiting,
            "preemptions": self._preemptions,
            "steps": self._log.steps,
            **(blocks or {}),
        }


def _answer(core: Any, question: str) -> str:
    return json.dumps(core.scheduler.answer(json.loads(question)))


# vLLM looks up the methods that its API server may call by their name.
setattr(EngineCore, METHOD, _answer)
