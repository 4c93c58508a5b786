"""Duration of an engine step on a device that a JSON file describes.

The duration is a sum of seconds per unit of the step's load, plus rooflines: p-norms of two or more
such sums, in which the greatest sum counts most (alone if ``p`` is absent). For example

    {"seconds": {"step": 0.02, "token": 2e-4, "context_token": 1e-6, "pair": 1e-9},
     "rooflines": [{"p": 2.0, "sides": [{"step": 0.01}, {"token": 1e-5}]}],
     "by_tokens": [{"up_to": 512, "seconds": {"step": 1e-4}}, {"seconds": {"step": 2e-4}}],
     "time_dilation": 3.0, "hidden_s": 0.005}

``by_tokens`` adds the sum of the range that has the step's number of tokens; the last range has no
limit. ``hidden_s`` is the work of vLLM between two steps that leaves the device busy: beside a GPU,
vLLM composes a step while the previous one is computed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxserve_vllm.engine_control.step_log import StepLoad

LOAD = (
    "step",  # 1
    "token",  # all tokens of the step
    "row",  # tokens whose logits are needed
    "decoding",  # 1 if any sequence decodes
    "sequence",  # decoding sequences
    "context_token",  # KV tokens that the decoding sequences read
    "prefilling",  # 1 if any prompt is computed
    "prompt_token",  # prompt tokens
    "pair",  # pairs of query and key in the attention of prompts, prefixes included
    "drafting",  # 1 if tokens are drafted
    "draft",  # tokens drafted for each sequence
    "drafting_token",  # token if tokens are drafted, else 0
    "drafting_context_token",  # context_token if tokens are drafted, else 0
)


def load_units(load: StepLoad) -> dict[str, float]:
    """Amount of every unit of ``LOAD`` in a step."""
    tokens = load.decode_tokens + load.prompt_tokens
    drafting = int(load.depth > 0)
    return {
        "step": 1,
        "token": tokens,
        "row": load.decode_tokens + load.chunks,
        "decoding": int(load.decode_seqs > 0),
        "sequence": load.decode_seqs,
        "context_token": load.kv_tokens,
        "prefilling": int(load.chunks > 0),
        "prompt_token": load.prompt_tokens,
        "pair": load.pairs,
        "drafting": drafting,
        "draft": load.depth,
        "drafting_token": drafting * tokens,
        "drafting_context_token": drafting * load.kv_tokens,
    }


def step_load(output: Any) -> StepLoad:
    """Load of the step that a vLLM ``SchedulerOutput`` describes.

    A running request decodes if it gets one token beside its drafts. A last piece of a prompt that
    is one token counts as decoding; it costs the same.
    """
    computed = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
    fresh = set(computed)
    cached = output.scheduled_cached_reqs
    computed.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    drafts = output.scheduled_spec_decode_tokens
    decode_seqs = decode_tokens = kv_tokens = chunks = prompt_tokens = 0
    pairs = 0.0
    for request, tokens in output.num_scheduled_tokens.items():
        before = computed[request]
        if request not in fresh and tokens - len(drafts.get(request, ())) == 1:
            decode_seqs += 1
            decode_tokens += tokens
            kv_tokens += before + 1
        else:
            chunks += 1
            prompt_tokens += tokens
            pairs += tokens * (before + 0.5 * tokens)
    return StepLoad(
        decode_seqs=decode_seqs,
        decode_tokens=decode_tokens,
        kv_tokens=kv_tokens,
        chunks=chunks,
        prompt_tokens=prompt_tokens,
        pairs=pairs,
        depth=output.num_spec_tokens_to_schedule,
    )


@dataclass(frozen=True)
class Roofline:
    """p-norm of sums of seconds; an infinite p is the greatest sum alone."""

    p: float
    sides: tuple[dict[str, float], ...]

    def seconds(self, units: Mapping[str, float]) -> float:
        """Seconds of a step with these units."""
        sides = [_sum(side, units) for side in self.sides]
        greatest = max(sides)
        if greatest == 0 or math.isinf(self.p):
            return greatest
        return greatest * sum((side / greatest) ** self.p for side in sides) ** (1 / self.p)


@dataclass(frozen=True)
class StepTime:
    """Step times of one device."""

    linear: dict[str, float]
    rooflines: tuple[Roofline, ...]
    time_dilation: float
    hidden_s: float
    by_tokens: tuple[tuple[float, dict[str, float]], ...] = ()

    def seconds(self, load: StepLoad) -> float:
        """Seconds of a step, multiplied by the dilation."""
        units = load_units(load)
        total = _sum(self.linear, units) + sum(line.seconds(units) for line in self.rooflines)
        if self.by_tokens:
            tokens = units["token"]
            total += _sum(next(each for most, each in self.by_tokens if tokens <= most), units)
        return self.time_dilation * total


class Device:
    """An emulated device that computes one step at a time."""

    def __init__(self, step_time: StepTime, clock: Callable[[], float]) -> None:
        self._step_time = step_time
        self._clock = clock
        self._free_at = 0.0

    def submit(self, load: StepLoad) -> float:
        """Submits a step now; returns the clock's time of its end."""
        now = self._clock()
        begin = now if now > self._free_at + self._step_time.hidden_s else self._free_at
        self._free_at = begin + self._step_time.seconds(load)
        return self._free_at


def read_step_time(path: Path) -> StepTime:
    """Step times from a JSON file.

    Raises:
      ValueError: the file cannot be read, a field is unknown, a number is negative or infinite,
        or an exponent or the dilation is too small.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"the step times in {path} cannot be read: {error}") from None
    data = _fields(
        data,
        {"seconds", "rooflines", "by_tokens", "time_dilation", "hidden_s"},
        "the file of step times",
    )
    rooflines = data.get("rooflines", [])
    if not isinstance(rooflines, list):
        raise ValueError(f"rooflines is {rooflines!r:.60}; it must be a list")
    dilation = _number(data.get("time_dilation", 1.0), "time_dilation")
    if dilation == 0:
        raise ValueError("time_dilation is 0; it must be above 0")
    linear = _rates(data.get("seconds", {}), "seconds")
    lines = tuple(_roofline(line) for line in rooflines)
    ranges = _ranges(data.get("by_tokens", []))
    if not linear and not lines and not ranges:
        raise ValueError("the file of step times has neither seconds nor rooflines")
    hidden_s = _number(data.get("hidden_s", 0.0), "hidden_s")
    return StepTime(linear, lines, dilation, hidden_s, ranges)


def _roofline(data: Any) -> Roofline:
    data = _fields(data, {"p", "sides"}, "a roofline")
    p = _number(data["p"], "p of a roofline") if "p" in data else math.inf
    if p < 1:
        raise ValueError(f"p of a roofline is {p:g}; it must be 1 or more")
    sides = data.get("sides")
    if not isinstance(sides, list) or not sides:
        raise ValueError(f"sides of a roofline is {sides!r:.60}; it must be a list of sums")
    return Roofline(p, tuple(_rates(side, "a side of a roofline") for side in sides))


def _ranges(data: Any) -> tuple[tuple[float, dict[str, float]], ...]:
    if not isinstance(data, list):
        raise ValueError(f"by_tokens is {data!r:.60}; it must be a list")
    parts = [_fields(each, {"up_to", "seconds"}, "a range of by_tokens") for each in data]
    most = [
        _number(each["up_to"], "up_to of by_tokens") if "up_to" in each else math.inf
        for each in parts
    ]
    if most and (most != sorted(most) or most[-1] != math.inf):
        raise ValueError("up_to of by_tokens must not fall, and the last range must have none")
    sums = [_rates(each.get("seconds", {}), "a range of by_tokens") for each in parts]
    return tuple(zip(most, sums, strict=True))


def _rates(data: Any, name: str) -> dict[str, float]:
    data = _fields(data, set(LOAD), name)
    return {unit: _number(value, f"{unit} of {name}") for unit, value in data.items()}


def _fields(data: Any, allowed: set[str], name: str) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise ValueError(f"{name} is {data!r:.60}; it must be an object")
    unknown = sorted(set(data) - allowed)
    if unknown:
        raise ValueError(
            f"field {unknown[0]!r} of {name} is unknown; allowed are {', '.join(sorted(allowed))}"
        )
    return data


def _number(value: Any, name: str) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 <= value < math.inf:
        raise ValueError(f"{name} is {value!r:.60}; it must be a finite number from 0")
    return float(value)


def _sum(rates: Mapping[str, float], units: Mapping[str, float]) -> float:
    return sum(rate * units[unit] for unit, rate in rates.items())
