"""The inputs of a plan: model, traffic, objectives, GPUs and their prices, checked once."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from jaxserve import checks
from jaxserve.checks import JsonObject
from jaxserve.datafiles import read_json, source_digest
from jaxserve.errors import InputError
from jaxserve.sim.machine.acceptance import timed_profiles
from jaxserve.sim.machine.formats import KV_FORMATS, STORED_BYTES
from jaxserve.sim.machine.hardware import gpu_names, load_gpu
from jaxserve.sim.machine.models import load_model
from jaxserve.sim.traffic.lengths import length_quantiles
from jaxserve.sim.traffic.request_logs import load_request_log
from jaxserve.sim.traffic.trace_files.part import WHOLE, TracePart
from jaxserve.sim.traffic.trace_files.text import Advance
from jaxserve.sim.traffic.traces import Trace
from jaxserve.tasks.spec import TPOT_SLO_S, TTFT_SLO_S

MOST_GPUS = 64
"""GPUs of a deployment, at most."""
MOST_PRICE = 10_000.0
"""USD per GPU and hour, at most."""
_STEADY_REQUESTS = 4000
_STEADY_S = (300.0, 3600.0)
_LENGTH_STEP = 1024
_USUAL = (0.25, 0.75, 0.95)
"""Quantiles of the prompts that are worth a load test."""


@dataclass(frozen=True)
class PlanObjective:
    """Service level objective of every request, and the share of requests that must meet it."""

    ttft_s: float
    """greatest time to first token, s."""
    tpot_s: float
    """greatest mean time per output token after the first, s."""
    attainment: float = 0.99
    """share of the requests that must meet both."""

    def __post_init__(self) -> None:
        checks.seconds("--ttft", self.ttft_s, *TTFT_SLO_S)
        checks.seconds("--tpot", self.tpot_s, *TPOT_SLO_S)
        checks.number("--attainment", self.attainment, 0.5, 1.0)


@dataclass(frozen=True, eq=False)
class PlanInputs:
    """Everything that a plan is made for."""

    model: str
    """name of a model, or path of its config.json."""
    trace: Trace
    """the traffic."""
    traffic: str
    """description of the traffic, a noun phrase."""
    objective: PlanObjective
    """the objectives."""
    prices: dict[str, float]
    """USD per hour of one GPU, by the name or path of each kind that may be rented."""
    max_gpus: int = 16
    """GPUs of a deployment, at most."""
    formats: tuple[str, ...] = ("bf16", "fp8")
    """number formats of the weights that are allowed, the most precise first."""
    kv_formats: tuple[str, ...] = KV_FORMATS
    """number formats of the KV cache that are allowed, the most precise first."""
    unpriced: tuple[str, ...] = ()
    """GPU kinds that were left out because no price of them was given."""
    frontend_s: float = 0.0
    """delay between client and engine, part of TTFT, s."""
    trace_file: Path | None = None
    """file of the traffic; None for a steady rate."""
    draft: str | None = None
    """acceptance profile of the drafts that engines may speculate with; None for no speculation."""
    split: bool = False
    """whether some replicas may only prefill and the others only decode."""

    def __post_init__(self) -> None:
        checks.whole("--max-gpus", self.max_gpus, 1, MOST_GPUS)
        for each in self.formats:
            checks.one_of("--format", each, STORED_BYTES)
        for each in self.kv_formats:
            checks.one_of("--kv-format", each, KV_FORMATS)
        model = load_model(self.model)
        if self.draft is not None:
            checks.one_of("--draft", self.draft, timed_profiles())
            if getattr(model, "experts", None) is not None:
                raise InputError(
                    f"--draft is {self.draft}, but drafts were measured for dense models alone and "
                    f"{model.name} has experts; leave --draft out"
                )
        known, longest = model.context_tokens, self.longest_request
        if known is not None and longest > known:
            raise InputError(
                f"the longest request of the traffic has {longest:,} tokens, but the context of "
                f"{model.name} has {known:,}; leave such requests out or name another model"
            )

    @cached_property
    def longest_request(self) -> int:
        """Tokens of the longest request, prompt and output together."""
        return int((self.trace.prompt_tokens.astype(np.int64) + self.trace.output_tokens).max())

    @cached_property
    def mean_lengths(self) -> tuple[float, float]:
        """Mean prompt and output tokens of the traffic, at least 1 and 2."""
        trace = self.trace
        return float(trace.prompt_tokens.mean()), float(max(np.mean(trace.output_tokens), 2.0))

    @cached_property
    def usual_prompts(self) -> tuple[int, ...]:
        """Tokens of a short, a long and a very long prompt of the traffic: its quantiles."""
        found = length_quantiles(self.trace.prompt_tokens, _USUAL)
        return tuple(found.astype(int).tolist())

    @property
    def model_length(self) -> int:
        """Context length that engines are started with, tokens: that of the longest request,
        rounded up as far as the model allows."""
        rounded = -(-self.longest_request // _LENGTH_STEP) * _LENGTH_STEP
        known = load_model(self.model).context_tokens
        return rounded if known is None else min(rounded, known)


def read_traffic(
    path: Path,
    time_unit: str | None = None,
    part: TracePart = WHOLE,
    advance: Advance | None = None,
) -> tuple[Trace, str]:
    """The requests of a trace or a log, and their description.

    Args:
      path: the file.
      time_unit, part, advance: see ``load_trace``.

    Raises:
      InputError: the file cannot be read, or all requests arrive at once.
    """
    trace = load_request_log(path, None, time_unit, part, advance).trace
    if trace.duration_s <= 0:
        raise InputError(f"the requests of {path} all arrive at once; a plan needs a rate")
    return trace, f"{path.name}: {trace.summary}"


def steady_traffic(rate: float, prompt: int, output: int, seed: int = 0) -> tuple[Trace, str]:
    """Poisson arrivals of requests of one length, and their description.

    Args:
      rate: requests per second.
      prompt, output: tokens of every request.

    Raises:
      InputError: a number is out of range.
    """
    checks.number("--rate", rate, 0.01, 2000)
    checks.whole("--prompt", prompt, 1, 1_000_000)
    checks.whole("--output", output, 1, 1_000_000)
    seconds = min(max(_STEADY_REQUESTS / rate, _STEADY_S[0]), _STEADY_S[1])
    count = max(int(rate * seconds), 2)
    arrival_s = np.cumsum(np.random.default_rng(seed).exponential(1 / rate, count))
    trace = Trace(
        arrival_s - arrival_s[0],
        np.full(count, prompt, np.int32),
        np.full(count, output, np.int32),
    )
    return trace, f"{rate:g} requests/s (Poisson) of {prompt:,} prompt and {output:,} output tokens"


def gpu_prices(
    hardware: Sequence[str] | None, path: Path | None
) -> tuple[dict[str, float], tuple[str, ...]]:
    """Prices of the GPU kinds to choose from.

    Args:
      hardware: names or paths of GPU files; None for all packaged kinds.
      path: JSON object of USD per GPU and hour by name; None for the prices of the GPU files.

    Returns:
      USD per hour by kind, and the packaged kinds that were left out for want of a price.

    Raises:
      InputError: a kind is unknown, or is named and has no price in ``path``.
    """
    kinds = tuple(hardware or gpu_names())
    gpus = {kind: load_gpu(kind) for kind in kinds}
    if path is None:
        return {kind: gpu.price_usd_per_hour for kind, gpu in gpus.items()}, ()
    where = f"price file {path}"
    given = JsonObject(read_json(path, where), where)
    known = {gpu.name for gpu in gpus.values()}
    unknown = sorted(set(given) - known - set(gpu_names()))
    if unknown:
        raise InputError(
            f"{where} names the GPU {unknown[0]}, which is not known; known are "
            f"{', '.join(sorted(known | set(gpu_names())))}"
        )
    missing = [kind for kind, gpu in gpus.items() if gpu.name not in given]
    if missing and (hardware or len(missing) == len(kinds)):
        raise InputError(
            f"{where} has no price of {gpus[missing[0]].name}; add its USD per GPU and hour or "
            "leave it out of --hardware"
        )
    prices = {
        kind: given.number(gpu.name, 0.001, MOST_PRICE)
        for kind, gpu in gpus.items()
        if kind not in missing
    }
    return prices, tuple(missing)


def inputs_digest(inputs: PlanInputs) -> str:
    """Digest of the traffic, the objectives and the source that plays them: results of one belong
    to no other."""
    import hashlib

    limits = (*dataclasses.astuple(inputs.objective), inputs.frontend_s)
    digest = hashlib.sha256(json.dumps(limits).encode())
    digest.update(source_digest("sim", "plan"))
    trace, blocks = inputs.trace, inputs.trace.blocks
    columns = [trace.arrival_s, trace.prompt_tokens, trace.output_tokens]
    if blocks is not None:
        columns += [np.array([blocks.tokens]), blocks.names, blocks.starts]
    for values in columns:
        digest.update(np.ascontiguousarray(values).data)
    return digest.hexdigest()
