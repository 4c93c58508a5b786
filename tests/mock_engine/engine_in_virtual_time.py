"""A mock engine in virtual time: nothing waits, and a busy machine changes nothing."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any

from jaxserve.mock_engine.clock import Clock
from jaxserve.mock_engine.loop import EngineLoop
from jaxserve.mock_engine.machine import Machine, build_machine, leased_knobs
from jaxserve.mock_engine.outputs import PseudoModel, SamplingParams
from jaxserve.mock_engine.requests import CompletionRequest
from jaxserve.mock_engine.sequences import SequenceGroup
from jaxserve.mock_engine.settings import MockEngineSettings
from jaxserve.mock_engine.tokens import Vocabulary
from jaxserve.sim.reference.request import Request

VOCABULARY = Vocabulary(128_256)


def machine(**settings: Any) -> Machine:
    """A small engine."""
    usual = {"max_model_len": 512, "kv_blocks": 200, "batch_cap": 8, "token_budget": 128}
    chosen = MockEngineSettings("llama-3.1-8b", "h100-sxm-80gb", **(usual | settings))
    return build_machine(chosen)


def group_of(request: Request, stream: bool = True) -> SequenceGroup:
    """A completion with the lengths and priority of a request."""
    sampling = SamplingParams(request.output_tokens, ignore_eos=True)
    asked = CompletionRequest(
        chat=False,
        prompts=[[0] * request.prompt_tokens],
        samplings=[sampling],
        choices=1,
        logprobs=None,
        token_ids=False,
        stream=stream,
        usage=False,
        running_usage=False,
        priority=request.priority,
    )
    return SequenceGroup(asked, PseudoModel(VOCABULARY, 100, 0))


class VirtualClock(Clock):
    """Time that jumps to whatever is waited for; what is due on the way happens on the way."""

    def __init__(self, events: Sequence[tuple[float, Any]]) -> None:
        """Args: times, and functions without arguments."""
        self._events = sorted(events, key=lambda event: event[0])
        self._now_s = 0.0
        self.over = asyncio.Event()
        """set when nothing will happen any more."""

    def now(self) -> float:
        return self._now_s

    async def reach(self, time_s: float) -> None:
        while self._events and self._events[0][0] <= time_s:
            self._now_s, happen = self._events.pop(0)
            happen()
        self._now_s = time_s
        await asyncio.sleep(0)

    async def reach_or(self, time_s: float, wake: asyncio.Event) -> None:
        if self._events and self._events[0][0] <= time_s:
            self._now_s, happen = self._events.pop(0)
            happen()
        elif math.isfinite(time_s):
            self._now_s = time_s
        else:
            self.over.set()
            await wake.wait()


class Played:
    """Requests that were played in virtual time."""

    def __init__(
        self,
        machine: Machine,
        requests: Sequence[Request],
        events: Sequence[tuple[float, Any]] = (),
    ) -> None:
        """Plays to the end.

        Args:
          machine: the engine.
          requests: sent at their arrivals.
          events: times, and functions of this object.
        """
        self.groups = [group_of(request) for request in requests]
        self.knobs = leased_knobs(machine, {}, clock=lambda: self.clock.now())
        asyncio.run(self._play(machine, requests, events))

    async def _play(
        self, machine: Machine, requests: Sequence[Request], events: Sequence[tuple[float, Any]]
    ) -> None:
        def submit(group: SequenceGroup, at_s: float) -> Any:
            return lambda: self.loop.submit(group, at_s)

        self.clock = VirtualClock(
            [
                (request.arrival_s, submit(group, request.arrival_s))
                for group, request in zip(self.groups, requests, strict=True)
            ]
            + [(at_s, lambda happen=happen: happen(self)) for at_s, happen in events]
        )
        self.loop = EngineLoop(machine, self.knobs, self.clock)
        task = asyncio.create_task(self.loop.run())
        await asyncio.wait(
            [task, asyncio.ensure_future(self.clock.over.wait())], return_when="FIRST_COMPLETED"
        )
        assert not self.loop.failed
        task.cancel()

    @property
    def requests(self) -> list[Request]:
        """As the engine filled them in."""
        return [group.sequences[0].request for group in self.groups]
