"""Bytes on one GPU: weights, draft, activations and the KV pool that the rest leaves.

Everything is per GPU of a tensor-parallel group. The functions are plain arithmetic, so token
counts and KV fractions may be numbers, NumPy arrays or JAX arrays.
"""

from typing import Any

from jaxserve.errors import InputError
from jaxserve.sim.machine.architecture import LargeModel
from jaxserve.sim.machine.hardware import EngineSettings, Gpu, LlmModel

BF16_BYTES = 2
LOGITS_BYTES = 2 * 4
"""Bytes per logit: the float32 logits and the float32 probabilities of the sampler."""

BLOCK_TOKENS = 16
"""KV tokens of a block, vLLM's default."""
BLOCK_SLACK_TOKENS = BLOCK_TOKENS / 2
"""KV tokens that a sequence holds and does not fill: half of a block on average."""

DEFAULT_ENGINE = EngineSettings()


def weights_bytes(model: LlmModel, tier: int, tensor_parallel: int = 1) -> float:
    """Weights on one GPU: the body in the tier's format, embedding and head always in bf16."""
    body = model.body_parameters * model.body_stored_bytes[tier]
    outer = (model.embedding_parameters + model.head_parameters) * BF16_BYTES
    if isinstance(model, LargeModel):
        body += model.expert_parameters * model.expert_stored_bytes[tier]
        if model.attention_data_parallel:
            copied = model.layers * model.attention_parameters * model.body_stored_bytes[tier]
            body += (tensor_parallel - 1) * copied
        body /= model.pipeline_parallel
    return (body + outer) / tensor_parallel


def draft_bytes(model: LlmModel, tensor_parallel: int = 1) -> float:
    """Weights of an EAGLE draft, which shares the target's embedding and head."""
    return model.draft_parameters * BF16_BYTES / tensor_parallel


def activation_bytes(
    model: LlmModel, tokens_in_iteration: Any, logits_rows: Any, tensor_parallel: int = 1
) -> Any:
    """Peak activations of one iteration.

    Per token the gated MLP holds three intermediate vectors while two residual and two normalised
    hidden vectors live; q, k and v are held in attention. Each row of logits is held twice in
    float32, for logits and probabilities. A verify step has batch x (depth + 1) rows.
    """
    qkv = (model.heads + 2 * model.kv_heads) * model.head_dim
    width = model.intermediate
    if isinstance(model, LargeModel):
        qkv, width = 2 * model.attention_width, model.token_width
    per_token = 4 * model.hidden + (3 * width + qkv) / tensor_parallel
    return tokens_in_iteration * (per_token * BF16_BYTES) + logits_rows * model.vocab * LOGITS_BYTES


def kv_bytes_per_token(model: LlmModel, speculating: bool, tensor_parallel: int = 1) -> float:
    """KV bytes of one token on one GPU; a speculating engine also keeps its draft's one layer."""
    layers = model.kv_layers + (1 if speculating else 0)
    return layers * model.kv_bytes_per_token_layer * model.kv_share(tensor_parallel)


def kv_pool_bytes(
    gpu: Gpu,
    model: LlmModel,
    tier: int,
    speculating: bool,
    tensor_parallel: int = 1,
    engine: EngineSettings = DEFAULT_ENGINE,
) -> float:
    """Bytes for KV at fraction 1: planned memory less weights, draft, runtime and activations.

    The engine plans with a profiling run of a full chunk and one row of logits per sequence, as
    serving engines do; verifying drafts at a large batch needs more than that.

    Args:
      gpu: its memory counts.
      model: shapes of the layers.
      tier: quantisation tier.
      speculating: whether a draft model is resident.
      tensor_parallel: GPUs that share every layer.
      engine: memory settings of the engine.

    Raises:
      InputError: nothing is left, so the model does not fit.
    """
    nominal = activation_bytes(model, engine.token_budget, engine.max_sequences, tensor_parallel)
    left = (
        gpu.memory_bytes * engine.memory_utilization
        - engine.runtime_bytes
        - weights_bytes(model, tier, tensor_parallel)
        - nominal
        - (draft_bytes(model, tensor_parallel) if speculating else 0.0)
    )
    if left <= 0:
        raise InputError(
            f"model {model.name} does not fit on {tensor_parallel} x {gpu.name} in tier {tier}; "
            "a larger tensor_parallel, a larger GPU or a smaller tier is required"
        )
    return left


def kv_capacity_tokens(
    gpu: Gpu,
    model: LlmModel,
    tier: int,
    kv_fraction: Any,
    speculating: bool,
    tensor_parallel: int = 1,
) -> Any:
    """Tokens of KV that the share ``kv_fraction`` of the pool holds.

    Args:
      gpu: its memory counts.
      model: shapes of the layers.
      tier: quantisation tier.
      kv_fraction: share of the pool, 0..1.
      speculating: whether a draft model is resident.
      tensor_parallel: GPUs that share every layer.

    Raises:
      InputError: the model does not fit.
    """
    pool = kv_pool_bytes(gpu, model, tier, speculating, tensor_parallel)
    return kv_fraction * (pool / kv_bytes_per_token(model, speculating, tensor_parallel))


def longest_request_tokens(pool_tokens: float, context_tokens: int | None) -> float:
    """Tokens of the longest request that can be served to its end, prompt and output together.

    Its KV must fit the pool, but for that of its last token, which no step writes.

    Args:
      pool_tokens: KV tokens that one engine has room for.
      context_tokens: context length of the model; None where it is not known.
    """
    in_pool = float(pool_tokens // BLOCK_TOKENS * BLOCK_TOKENS + 1)
    return in_pool if context_tokens is None else min(in_pool, float(context_tokens))


def memory_used_bytes(
    gpu: Gpu,
    model: LlmModel,
    tier: int,
    speculating: bool,
    tokens_in_iteration: Any,
    logits_rows: Any,
    tensor_parallel: int = 1,
) -> Any:
    """Bytes in use during an iteration; more than ``gpu.memory_bytes`` is an out-of-memory restart.

    The KV pool counts as a whole, whatever the KV budget is, because the engine reserves it.

    Args:
      gpu: its memory counts.
      model: shapes of the layers.
      tier: quantisation tier.
      speculating: whether a draft model is resident.
      tokens_in_iteration: tokens that the iteration processes.
      logits_rows: positions whose logits it computes.
      tensor_parallel: GPUs that share every layer.

    Raises:
      InputError: the model does not fit.
    """
    return (
        weights_bytes(model, tier, tensor_parallel)
        + DEFAULT_ENGINE.runtime_bytes
        + (draft_bytes(model, tensor_parallel) if speculating else 0.0)
        + kv_pool_bytes(gpu, model, tier, speculating, tensor_parallel)
        + activation_bytes(model, tokens_in_iteration, logits_rows, tensor_parallel)
    )
