"""Terms of an iteration that a dense model on one GPU has none of: collectives, experts, windows.

    t_all-reduce = 2 L (fixed + bytes / rate of the algorithm that their size chooses)
    t_experts    = Le c + [(touched(m) We)^p + (m ae)^p]^(1/p)
    touched(m)   = 1 - (1 - k / E)^(m^z)

m are the tokens of the iteration, Le the layers with E experts of which a token runs through k, We
the seconds to read all of their weights, ae the arithmetic of a token in its k. An iteration that
has prompt tokens takes ``eager_s`` at least: the host launches its kernels one by one.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from jaxserve import checks
from jaxserve.sim.machine.architecture import LargeModel
from jaxserve.sim.machine.stack import ServedGpu

# A layer of a group that attends for sequences of its own sends tokens to their experts and back.
_EXCHANGES = 2
# Bytes of one number that is sent: bf16.
_SENT_BYTES = 2
# KV heads that the attention kernels were measured with.
_KERNEL_KV_HEADS = 8


@dataclass(frozen=True)
class Beyond:
    """Reduced constants of these terms, like those of ``CostModel``; seconds."""

    collectives: tuple[tuple[float, float, float], ...]
    """largest tokens of an iteration, seconds and seconds per token of all its collectives, by
    size; the last has no limit, which reads as 0."""
    expert_constant_s: float
    """fixed seconds of all layers with experts."""
    expert_read_s: tuple[float, float, float]
    """seconds to read the weights of all experts, each tier."""
    expert_s_per_token: tuple[float, float, float]
    """arithmetic of a token in the experts that it runs through, each tier."""
    expert_p: tuple[float, float, float]
    """exponent that joins the two, each tier."""
    missed_share: float
    """share of a layer's experts that one token does not run through; 1 without experts."""
    routing_spread: float
    """exponent z of the tokens, see ``ServedGpu.routing_spread``."""
    batch_share: float
    """share of an iteration's tokens that run through the experts together: one of the batches
    that are under way in a pipeline."""
    window_layers: float
    """layers that attend to a window only."""
    window_tokens: float
    """tokens of that window."""
    eager_s: float
    """least seconds of an iteration that has prompt tokens."""

    @classmethod
    def of(cls, gpu: ServedGpu, model: LargeModel, tensor_parallel: int) -> Beyond:
        """These terms of ``model`` on ``tensor_parallel`` GPUs, its pipeline included."""
        tp, pp, experts = tensor_parallel, model.pipeline_parallel, model.experts
        fits = gpu.expert_linear
        chosen = experts.per_token / experts.count if experts else 0.0
        stored = model.expert_parameters / tp
        window = model.window
        return cls(
            collectives=_collectives(gpu, model, tp),
            expert_constant_s=model.expert_layers
            * (gpu.engine.expert_layer_s + fits[0].layer_constant_s),
            expert_read_s=_three(
                stored * fit.weight_bytes / (gpu.bandwidth_bytes_per_s * fit.bandwidth_efficiency)
                for fit in fits
            ),
            expert_s_per_token=_three(
                2 * chosen * stored / pp / (fit.flops_per_s * fit.flops_efficiency) for fit in fits
            ),
            expert_p=_three(fit.p_norm for fit in fits),
            missed_share=1 - chosen,
            routing_spread=gpu.routing_spread,
            batch_share=1 / pp,
            window_layers=float(window.layers) if window else 0.0,
            window_tokens=float(window.tokens) if window else 0.0,
            eager_s=gpu.engine.eager_layer_s * model.layers,
        )

    def linear_s(self, tokens: ArrayLike, tier: int) -> np.ndarray:
        """Seconds of collectives and experts of ``tokens`` (any shape)."""
        tokens = np.asarray(tokens, np.float64)
        total_s = np.zeros_like(tokens)
        for largest, fixed_s, per_token_s in reversed(self.collectives):
            line_s = fixed_s + per_token_s * tokens
            total_s = line_s if largest == 0 else np.where(tokens <= largest, line_s, total_s)
        if self.missed_share < 1:
            p = self.expert_p[tier]
            together = (tokens * self.batch_share) ** self.routing_spread
            read_s = self.expert_read_s[tier] * (1 - self.missed_share**together)
            arithmetic_s = self.expert_s_per_token[tier] * tokens
            total_s = total_s + self.expert_constant_s + (read_s**p + arithmetic_s**p) ** (1 / p)
        return total_s

    def to_dict(self) -> dict[str, Any]:
        """JSON-able form that ``from_dict`` reads back exactly."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: checks.JsonObject) -> Beyond:
        """Inverse of ``to_dict``, also after a round trip through JSON.

        Raises:
          InputError: a field is missing or not a finite non-negative number; an exponent is 0.
        """
        values: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            if field.name == "collectives":
                name = fields.name("collectives")
                values["collectives"] = tuple(
                    _line(name, line) for line in fields.entries("collectives")
                )
            elif field.type == "float":
                values[field.name] = fields.number(field.name, 0)
            else:
                values[field.name] = fields.numbers(field.name, 3, 0)
        if 0 in values["expert_p"]:
            checks.refuse(fields.name("expert_p"), values["expert_p"], "above 0")
        return cls(**values)


def served_constants(cost: Any, gpu: ServedGpu, model: LargeModel, tp: int) -> dict[str, Any]:
    """Fields of the ``CostModel`` ``cost`` that differ where a stack serves the model."""
    bandwidth, attention = gpu.bandwidth_bytes_per_s, gpu.attention
    pp, share = model.pipeline_parallel, model.kv_share(tp) * model.pipeline_parallel
    body = model.body_parameters / tp
    if model.attention_data_parallel:
        body += (1 - 1 / tp) * model.layers * model.attention_parameters
    kv_s = model.kv_bytes_per_token_layer * share / (bandwidth * attention.bandwidth_efficiency)
    heads_s = cost.attention_s_per_sequence
    if model.attention_data_parallel:
        heads_s = attention.per_sequence_s * model.kv_heads / tp / _KERNEL_KV_HEADS
    if model.latent is not None:
        # All heads share one compressed vector: arithmetic, not memory, may bound its reading.
        width = 2 * model.latent.kv_rank + model.latent.rope_dim
        flops = 2 * model.heads / tp * width
        peak = gpu.linear[0].flops_per_s * gpu.latent_flops_efficiency
        kv_s = max(kv_s, flops / peak)
    return {
        "host_s": cost.host_s + (pp - 1) * gpu.all_reduce.two_shot_s,
        "linear_constant_s": _three(
            fit.layer_constant_s * model.layers * model.products_share for fit in gpu.linear
        ),
        "weight_read_s": _three(
            body * fit.weight_bytes / (bandwidth * fit.bandwidth_efficiency) for fit in gpu.linear
        ),
        "linear_s_per_token": _three(each / pp for each in cost.linear_s_per_token),
        "elementwise_s_per_token": cost.elementwise_s_per_token / pp,
        "allreduce_s": 0.0,
        "allreduce_s_per_token": 0.0,
        "head_s_per_row": cost.head_s_per_row / pp,
        "head_gather_s_per_row": cost.head_gather_s_per_row / pp,
        "attention_s_per_sequence": heads_s / pp,
        "kv_read_s_per_token": kv_s / pp,
        "prefill_s_per_token": cost.prefill_s_per_token / pp,
        "prefill_s_per_pair": cost.prefill_s_per_pair / pp,
        "beyond": Beyond.of(gpu, model, tp),
    }


def _collectives(
    gpu: ServedGpu, model: LargeModel, tensor_parallel: int
) -> tuple[tuple[float, float, float], ...]:
    if tensor_parallel == 1:
        return ((0.0, 0.0, 0.0),)
    share = 1 / model.pipeline_parallel
    if model.attention_data_parallel:
        sent = _SENT_BYTES * model.hidden * (model.experts.per_token if model.experts else 1)
        away = (tensor_parallel - 1) / tensor_parallel**2
        rate = gpu.all_reduce.ring_bytes_per_s
        fixed_s = _EXCHANGES * model.expert_layers * gpu.all_reduce.two_shot_s
        per_token_s = _EXCHANGES * model.expert_layers * sent * away / rate
        return ((0.0, fixed_s, share * per_token_s),)
    lines = gpu.all_reduce.lines(tensor_parallel, _SENT_BYTES * model.hidden)
    count = 2 * model.layers
    return tuple(
        (0.0 if largest == float("inf") else largest / share, count * fixed_s, count * each * share)
        for largest, fixed_s, each in lines
    )


def _line(name: str, line: Any) -> tuple[float, float, float]:
    if not isinstance(line, list | tuple) or len(line) != 3:
        checks.refuse(name, line, "lines of three numbers")
    first, second, third = (checks.number(name, value, 0) for value in line)
    return first, second, third


def _three(values: Any) -> tuple[float, float, float]:
    first, second, third = values
    return first, second, third
