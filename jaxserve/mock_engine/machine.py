"""The simulated GPU: step times, KV blocks, and accepted drafts."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

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
