"""Bytes on one GPU: weights, draft, activations and the KV pool that the rest leaves.

Everything is per GPU of a tensor-parallel group. The functions are plain arithmetic, so token
counts and KV fractions may be numbers, NumPy arrays or JAX arrays.
"""

import math
from dataclasses import replace
from typing import Any, NamedTuple

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
            copied = model.mixer_parameters * model.body_stored_bytes[tier]
            body += (tensor_parallel - 1) * copied
            outer *= tensor_parallel
        body /= model.pipeline_parallel
    return (body + outer) / tensor_parallel


def draft_bytes(model: LlmModel, tensor_parallel: int = 1) -> float:
    """Weights of a draft, which shares the target's embedding and head: EAGLE's in bf16, the
    model's own drafting layers in the format of tier 0."""
    if isinstance(model, LargeModel) and model.drafting_layers:
        stored = model.body_parameters * model.body_stored_bytes[0]
        stored += model.expert_parameters * model.expert_stored_bytes[0]
        return stored * model.drafting_layers / model.layers / tensor_parallel
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
    """KV bytes of one token on one GPU, beside its sequence's ``SequenceKv``; a speculating engine
    also keeps its draft's one layer."""
    held = _kv_groups(model).held_layers if isinstance(model, LargeModel) else model.kv_layers
    layers = held + (1 if speculating else 0)
    return layers * model.kv_bytes_per_token_layer * model.kv_share(tensor_parallel)


class SequenceKv(NamedTuple):
    """KV of a sequence beside that of its tokens in layers that keep all of them. Its unit is the
    KV that one token has in those layers, by which pools are measured."""

    window_tokens: Any
    """tokens that layers with a window keep."""
    window_share: Any
    """KV of one of these tokens."""
    state_tokens: Any
    """KV as large as the states, with what the last of their larger blocks leaves empty."""

    def beside(self, context: Any) -> Any:
        """KV of a sequence of ``context`` tokens beside theirs; a number or an array."""
        nearest = (context + self.window_tokens - abs(context - self.window_tokens)) / 2
        return self.window_share * nearest + self.state_tokens

    def longest(self, pool: Any) -> Any:
        """Tokens of the longest sequence that ``pool`` holds."""
        left = pool - self.state_tokens
        beyond = left - self.window_share * self.window_tokens
        within = left / (1 + self.window_share)
        return (beyond + within + abs(beyond - within)) / 2


class _KvGroups(NamedTuple):
    """Groups of layers whose blocks vLLM keeps in one pool: equally many layers in each, as many as
    the rarest kind has, or as the most frequent one where that is less than half as many again
    (``_get_kv_cache_groups_uniform_page_size`` of its v1/core/kv_cache_utils.py)."""

    layers: int
    """layers of a group; those that a last group lacks are allocated too."""
    full: int
    """groups of layers that keep all tokens."""
    window: int
    """groups of layers that keep the last ones."""
    state: int
    """groups of layers with a state."""

    @property
    def held_layers(self) -> int:
        """Layers in which a token takes room."""
        return self.layers * self.full


_RARE = 1.5


def _kv_groups(model: LargeModel) -> _KvGroups:
    window = model.window.layers if model.window else 0
    state = model.linear.layers if model.linear else 0
    counts = (model.kv_layers, window, state)
    least, most = min(filter(None, counts)), max(counts)
    each = most if most < _RARE * least else least
    return _KvGroups(each, *(math.ceil(count / each) for count in counts))


def sequence_kv(model: LlmModel, tensor_parallel: int = 1) -> SequenceKv | None:
    """State of each sequence beside its tokens on one GPU; None for layers of one kind.

    A state takes one block of its group. All blocks are equally large, so those of attention have
    the tokens, in steps of ``BLOCK_TOKENS``, that make them as large as a state (vLLM's
    ``Platform._align_hybrid_block_size``), and the last of a sequence is half empty.

    Args:
      model: shapes of the layers.
      tensor_parallel: GPUs that share every layer.
    """
    if not isinstance(model, LargeModel) or (model.window is None and model.linear is None):
        return None
    groups, state_tokens = _kv_groups(model), 0.0
    token_bytes = model.kv_bytes_per_token_layer * model.kv_share(tensor_parallel)
    window_bytes = 0.0
    if model.window is not None:
        kv_heads, head_dim = model.window_kv
        alike = replace(model, kv_heads=kv_heads, head_dim=head_dim, window=None)
        window_bytes = alike.kv_bytes_per_token_layer * alike.kv_share(tensor_parallel)
    if model.linear is not None:
        state_bytes = model.linear.state_bytes / tensor_parallel / model.pipeline_parallel
        block = BLOCK_TOKENS * math.ceil(state_bytes / token_bytes / BLOCK_TOKENS)
        state_tokens = groups.state / groups.full * block + block / 2 - BLOCK_SLACK_TOKENS
    return SequenceKv(
        float(model.window.tokens) if model.window else 0.0,
        groups.window / groups.full * window_bytes / token_bytes,
        state_tokens,
    )


def check_prefix_caching(prefix_caching: bool, sequence: SequenceKv | None) -> None:
    """Refuses a prefix cache of states, whose room and hits are not modelled.

    Raises:
      InputError: prefixes are cached, and ``sequence`` has states.
    """
    if prefix_caching and sequence is not None and sequence.state_tokens > 0:
        raise InputError(
            "prefix caching is not modelled of a model with layers that keep a state in place of "
            "KV; leave it off"
        )


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


def longest_request_tokens(
    pool_tokens: float, context_tokens: int | None, sequence: SequenceKv | None
) -> float:
    """Tokens of the longest request that can be served to its end, prompt and output together.

    Its KV must fit the pool, but for that of its last token, which no step writes.

    Args:
      pool_tokens: KV tokens that one engine has room for.
      context_tokens: context length of the model; None where it is not known.
      sequence: what a sequence keeps beside its tokens, see ``sequence_kv``.
    """
    if sequence is not None:
        pool_tokens = max(sequence.longest(pool_tokens), 0.0)
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
