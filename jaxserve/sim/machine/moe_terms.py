"""Terms of an iteration that a dense model on one GPU has none of: collectives, experts, windows.

    t_all-reduce = sublayers (fixed + bytes / rate of the algorithm that their size chooses)
    t_experts    = Le c + [(touched(m) We)^p + (m ae)^p]^(1/p) + m k h v / BW
    touched(m)   = 1 - (1 - k / E)^(m^z)

m are the tokens of the iteration, Le the layers with E experts of which a token runs through k, We
the seconds to read all of their weights, ae the arithmetic of a token in its k, each of which moves
v bytes for each of the h numbers of the token's row. An iteration that
has prompt tokens, and more tokens than recorded graphs cover, takes ``eager_s`` at least: the host
launches its kernels one by one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from jaxserve.sim.machine.architecture import LargeModel
from jaxserve.sim.machine.collectives import AllReduce
from jaxserve.sim.machine.hardware import LlmModel
from jaxserve.sim.machine.other_mixers import OtherMixers
from jaxserve.sim.machine.stack import ServedGpu

# A layer of a group that attends for sequences of its own sends tokens to their experts and back.
_EXCHANGES = 2
# Bytes of one number that is sent: bf16.
_SENT_BYTES = 2


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
    expert_move_s_per_token: tuple[float, float, float]
    """seconds in which the rows of a token are moved to its experts and back, each tier."""
    missed_share: float
    """share of a layer's experts that one token does not run through; 1 without experts."""
    routing_spread: float
    """exponent z of the tokens, see ``ServedGpu.routing_spread``."""
    batch_share: float
    """share of an iteration's tokens that run through the experts together: one batch of those
    under way in a pipeline."""
    window_layers: float
    """layers that attend to a window only."""
    window_tokens: float
    """tokens of that window."""
    eager_s: float
    """least seconds of an iteration that has prompt tokens and more than ``captured_tokens``."""
    captured_tokens: float = 0.0
    """most tokens of an iteration with prompt tokens that is a recorded graph."""
    sequence_s: float = 0.0
    """seconds for each sequence that an iteration gives a token; GPUs with sequences of their own
    have hosts of their own."""
    ranks: float = 1.0
    """GPUs with sequences of their own; the one with most of them ends the attention of all."""
    prefill_first: float = 0.0
    """1 where prompts have iterations of their own, for which running sequences wait; else 0."""
    drafting_layers: float = 0.0
    """layers of the model's own kind that draft; 0 where an EAGLE draft does."""
    draft_pass_s: float = 0.0
    """seconds outside the kernels of each pass through them."""
    mixers: OtherMixers | None = None
    """layers with states and indexers; None without."""

    @classmethod
    def of(cls, gpu: ServedGpu, model: LargeModel, tensor_parallel: int) -> Beyond:
        """These terms of ``model`` on ``tensor_parallel`` GPUs, its pipeline included."""
        tp, pp, experts = tensor_parallel, model.pipeline_parallel, model.experts
        fits = gpu.expert_linear
        chosen = experts.per_token / experts.count if experts else 0.0
        stored = model.expert_parameters / tp
        window = model.window
        ranks = float(tp) if model.attention_data_parallel else 1.0
        # Each GPU of a group has a part of every expert, or some experts whole.
        rows = model.expert_layers * model.hidden * (experts.per_token if experts else 0)
        rows /= gpu.bandwidth_bytes_per_s * (tp if model.expert_parallel else ranks) * pp
        return cls(
            collectives=_collectives(gpu, model, tp),
            expert_constant_s=model.expert_layers
            * (gpu.engine.expert_layer_s + fits[0].layer_constant_s),
            expert_read_s=by_tier(
                stored * fit.weight_bytes / (gpu.bandwidth_bytes_per_s * fit.bandwidth_efficiency)
                for fit in fits
            ),
            expert_s_per_token=by_tier(
                2 * chosen * stored / pp / (fit.flops_per_s * fit.flops_efficiency) for fit in fits
            ),
            expert_p=by_tier(fit.p_norm for fit in fits),
            expert_move_s_per_token=by_tier(rows * each for each in gpu.moved_bytes),
            missed_share=1 - chosen,
            routing_spread=gpu.routing_spread,
            batch_share=1 / pp,
            window_layers=float(window.layers) if window else 0.0,
            window_tokens=float(window.tokens) if window else 0.0,
            eager_s=gpu.engine.eager_layer_s * (model.layers - model.expert_layers)
            + gpu.engine.eager_expert_layer_s * model.expert_layers,
            captured_tokens=gpu.engine.captured_tokens,
            sequence_s=gpu.engine.sequence_s / pp / ranks,
            ranks=ranks,
            prefill_first=float(gpu.engine.prefill_first),
            drafting_layers=float(model.drafting_layers),
            draft_pass_s=gpu.engine.draft_pass_s if model.drafting_layers else 0.0,
            mixers=OtherMixers.of(gpu, model, tp),
        )

    @property
    def links_only(self) -> bool:
        """Whether collectives are the only terms that add anything."""
        engine_s = self.eager_s + self.sequence_s
        mixers = self.window_layers or self.mixers is not None
        return self.missed_share == 1 and not (mixers or engine_s or self.prefill_first)

    @classmethod
    def of_links(cls, all_reduce: AllReduce, model: LlmModel, tensor_parallel: int) -> Beyond:
        """The collectives alone, for a dense model without a stack."""
        return cls(
            collectives=_all_reduces(all_reduce, model, tensor_parallel),
            expert_constant_s=0.0,
            expert_read_s=(0.0, 0.0, 0.0),
            expert_s_per_token=(0.0, 0.0, 0.0),
            expert_p=(1.0, 1.0, 1.0),
            expert_move_s_per_token=(0.0, 0.0, 0.0),
            missed_share=1.0,
            routing_spread=1.0,
            batch_share=1.0,
            window_layers=0.0,
            window_tokens=0.0,
            eager_s=0.0,
        )

    def fullest(self, sequences: np.ndarray) -> np.ndarray:
        """Sequences of the fullest GPU with its own, relative to the mean of all; 1 without."""
        even = np.ceil(sequences / self.ranks) * self.ranks
        return np.where((self.ranks > 1) & (sequences > 0), even / np.maximum(sequences, 1e-9), 1.0)

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
            total_s = total_s + self.expert_move_s_per_token[tier] * tokens
        return total_s


def _collectives(
    gpu: ServedGpu, model: LargeModel, tensor_parallel: int
) -> tuple[tuple[float, float, float], ...]:
    if tensor_parallel == 1:
        return ((0.0, 0.0, 0.0),)
    if model.attention_data_parallel:
        # A token is sent once to every GPU that has some of its experts.
        chosen = model.experts.per_token if model.experts else 1
        reached = tensor_parallel * (1 - (1 - 1 / tensor_parallel) ** chosen)
        sent = _SENT_BYTES * model.hidden * reached
        away = (tensor_parallel - 1) / tensor_parallel**2
        rate = gpu.all_reduce.ring_bytes_per_s
        fixed_s = _EXCHANGES * model.expert_layers * gpu.all_reduce.two_shot_s
        per_token_s = _EXCHANGES * model.expert_layers * sent * away / rate
        return ((0.0, fixed_s, per_token_s / model.pipeline_parallel),)
    return _all_reduces(gpu.all_reduce, model, tensor_parallel)


def _all_reduces(
    all_reduce: AllReduce, model: LlmModel, tensor_parallel: int
) -> tuple[tuple[float, float, float], ...]:
    """Lines of all all-reduces of an iteration, one of each sublayer."""
    share = 1 / model.pipeline_parallel
    lines = all_reduce.lines(tensor_parallel, _SENT_BYTES * model.hidden)
    count = model.sublayers
    return tuple(
        (0.0 if largest == float("inf") else largest / share, count * fixed_s, count * each * share)
        for largest, fixed_s, each in lines
    )


def by_tier(values: Iterable[float]) -> tuple[float, float, float]:
    """Three numbers, one for each tier, as a tuple."""
    first, second, third = values
    return first, second, third
