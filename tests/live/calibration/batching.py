"""A small engine with continuous batching in virtual time, by what its steps cost."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np

from jaxserve.live.calibration.plan import CalibrationPlan, longest_output
from jaxserve.live.calibration.steps import Steps
from jaxserve.live.calibration.sweep import EngineMeasurements
from jaxserve.sim.fit.sweep import Sweep
from jaxserve.sim.machine.cost_model import IterationTimer

BUDGET = 2048


@dataclass(eq=False)
class Sequence:
    """A request inside the engine."""

    prompt: int
    output: int
    prefilled: int = 0
    made: int = 0
    sent_s: float = 0.0
    first_s: float = 0.0
    last_s: float = 0.0


@dataclass
class Batch:
    """The scheduler: decodes first, then prompts in order of arrival within the token budget."""

    timer: IterationTimer
    sequences: list[Sequence] = field(default_factory=list)
    rows: list[tuple[float, ...]] = field(default_factory=list)
    """of ``steps.COLUMNS``."""

    def step(self) -> tuple[float, list[Sequence]]:
        """Seconds of the next step, and who gets a token by it."""
        decoding = [each for each in self.sequences if each.prefilled == each.prompt]
        kv_tokens = sum(each.prompt + each.made for each in decoding)
        room, chunks, getting = BUDGET - len(decoding), [], list(decoding)
        for each in self.sequences:
            if each.prefilled < each.prompt and room > 0:
                chunk = min(room, each.prompt - each.prefilled)
                chunks.append((chunk, each.prefilled))
                each.prefilled += chunk
                room -= chunk
                if each.prefilled == each.prompt:
                    getting.append(each)
        seconds = self.timer.iteration_s(
            decode_seqs=len(decoding), kv_tokens=kv_tokens, chunks=tuple(chunks)
        )
        pairs = sum(chunk * (prefix + chunk / 2) for chunk, prefix in chunks)
        prompt = sum(chunk for chunk, _ in chunks)
        self.rows.append((seconds, len(decoding), len(decoding), kv_tokens, prompt, pairs, 0))
        for each in getting:
            each.made += 1
        self.sequences = [each for each in self.sequences if each.made < each.output]
        return seconds, getting


def measured_in_virtual_time(
    timer: IterationTimer,
    plan: CalibrationPlan,
    *,
    frontend_s: float = 0.0,
    steps_told: bool = True,
    noise: float = 0.0,
    kv_pool_tokens: int | None = None,
) -> EngineMeasurements:
    """What ``measure`` finds at an engine without HTTP; ``noise`` is the spread of step times."""
    random_ = random.Random(1)
    rows, latencies_s, steps, requests = [], [], [], 0
    for in_flight, prompt, output in plan.points:
        batch, now = Batch(timer), 0.0
        batch.sequences = [
            Sequence(prompt, max(2, output * (place + 1) // in_flight))
            for place in range(in_flight)
        ]
        done: list[Sequence] = []
        while len(done) < 6 * in_flight + 6:
            seconds, getting = batch.step()
            now += seconds * random_.lognormvariate(0.0, noise)
            for each in getting:
                each.first_s, each.last_s = each.first_s or now, now
                if each.made == each.output:
                    done.append(each)
                    length = random_.randint(output // 2, longest_output(output))
                    batch.sequences.append(Sequence(prompt, length, sent_s=now))
        counted = [each for each in done if each.sent_s > 0]
        requests += len(counted)
        decoding_s = sum(each.last_s - each.first_s for each in counted)
        ttft_s = np.median([each.first_s - each.sent_s for each in counted]) + frontend_s
        tokens = [each.output for each in counted]
        tpot_s = decoding_s / sum(count - 1 for count in tokens)
        latencies_s.append(np.mean([each.last_s - each.sent_s for each in counted]) + frontend_s)
        rows.append((in_flight, prompt, np.mean(tokens), tpot_s, ttft_s))
        steps += batch.rows
    seconds, *loads = np.array(steps, float).T
    spread = np.exp(noise * np.random.default_rng(2).standard_normal(len(seconds)))
    return EngineMeasurements(
        load_test=Sweep(*np.array(rows, float).T),
        latency_s=np.array(latencies_s),
        requests=requests,
        steps=Steps(seconds * spread, *loads) if steps_told else None,
        kv_pool_tokens=kv_pool_tokens,
        batch_cap=None,
        token_budget=BUDGET,
    )
