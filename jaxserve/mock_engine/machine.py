"""The simulated GPU: step times, KV blocks, accepted drafts, and the knobs of its engine."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from jaxserve.engine_control.leased_knobs import LeasedKnobs, NotOffered, OfferedKnob
from jaxserve.errors import InputError
from jaxserve.mock_engine.settings import MockEngineSettings
from jaxserve.sim.machine.acceptance import tokens_per_step
from jaxserve.sim.machine.cost_model import CostModel
from jaxserve.sim.machine.deployment import DeploymentSettings
from jaxserve.sim.machine.hardware import EngineSettings, load_gpu
from jaxserve.sim.machine.memory import BLOCK_TOKENS, kv_bytes_per_token, kv_pool_bytes
from jaxserve.sim.machine.models import load_model
from jaxserve.sim.reference.settings import ShiftedExponentialFrontEnd


@dataclass(frozen=True)
class Machine:
    """Settings of a mock engine, resolved."""

    settings: MockEngineSettings
    """checked settings."""
    cost: CostModel
    """times of a step."""
    vocab: int
    """size of the vocabulary."""
    kv_blocks: int
    """KV blocks of ``BLOCK_TOKENS`` tokens."""
    longest_blocks: int
    """KV blocks of a sequence of the greatest length, its drafts included."""
    acceptance: np.ndarray
    """float[9], mean tokens of a step at depth 0 to 8."""
    front_end: ShiftedExponentialFrontEnd
    """delay between the HTTP request and its arrival in the engine."""


def build_machine(settings: MockEngineSettings) -> Machine:
    """Resolves model, GPU and settings.

    Raises:
      InputError: a name is unknown, the model does not fit, or the KV blocks do not hold a sequence
        of the greatest length.
    """
    settings.check()
    gpu, model = load_gpu(settings.hardware), load_model(settings.model)
    cost = CostModel.of(gpu, model, settings.tensor_parallel)
    blocks = settings.kv_blocks
    if blocks is None:
        engine = replace(
            EngineSettings(),
            token_budget=settings.token_budget,
            max_sequences=settings.batch_cap,
            memory_utilization=settings.memory_utilization,
        )
        speculating, tensor_parallel = settings.speculation_depth > 0, settings.tensor_parallel
        pool = kv_pool_bytes(gpu, model, settings.tier, speculating, tensor_parallel, engine)
        tokens = pool / kv_bytes_per_token(model, speculating, tensor_parallel)
        blocks = int(tokens // BLOCK_TOKENS)
    longest = math.ceil((settings.max_model_len + settings.speculation_depth) / BLOCK_TOKENS)
    if blocks < longest:
        raise InputError(
            f"--max-model-len is {settings.max_model_len}; the {blocks} KV blocks hold "
            f"{max(0, blocks * BLOCK_TOKENS - settings.speculation_depth)} tokens of one sequence"
        )
    usual = DeploymentSettings()
    return Machine(
        settings=settings,
        cost=cost,
        vocab=model.vocab,
        kv_blocks=blocks,
        longest_blocks=longest,
        acceptance=tokens_per_step(settings.acceptance),
        front_end=ShiftedExponentialFrontEnd(usual.frontend_s, usual.frontend_tail_s),
    )


def leased_knobs(
    machine: Machine,
    static: Mapping[str, float],
    clock: Callable[[], float] = time.monotonic,
) -> LeasedKnobs:
    """The knobs of an engine on ``machine``.

    Args:
      machine: bounds of the knobs; an engine starts with the most of each.
      static: values in force without a lease, by knob.
      clock: monotonic time of the host, s.

    Raises:
      CommandError: ``static`` names a knob that is not offered, or a value out of its range.
    """
    settings = machine.settings
    values: dict[str, float] = {}

    def whole_blocks(share: float) -> float:
        return max(least_kv, round(share * machine.kv_blocks) / machine.kv_blocks)

    def knob(
        name: str,
        least: float,
        most: float,
        nearest: Callable[[float], float] = lambda value: value,
    ) -> OfferedKnob:
        def turn(value: float | None) -> None:
            assert value is not None
            values[name] = nearest(value)

        values[name] = most
        return OfferedKnob(least, most, turn, lambda: values[name])

    depth, least_kv = settings.speculation_depth, machine.longest_blocks / machine.kv_blocks
    return LeasedKnobs(
        {
            "batch_cap": knob("batch_cap", 1, settings.batch_cap),
            "token_budget": knob("token_budget", 1 + depth, settings.token_budget),
            "kv_budget_fraction": knob("kv_budget_fraction", least_kv, 1.0, whole_blocks),
            "speculation_depth": knob("speculation_depth", 0, depth)
            if depth
            else NotOffered("the engine was started without --speculation-depth"),
            "priority_routing": knob("priority_routing", 0, 1)
            if settings.scheduling_policy == "priority"
            else NotOffered("the engine was started without --scheduling-policy priority"),
            "quantization_tier": NotOffered(
                "vLLM holds one set of weights; it has to be restarted"
            ),
            "prefill_decode_split": NotOffered("vLLM's roles are fixed when it starts"),
        },
        static,
        clock,
    )
