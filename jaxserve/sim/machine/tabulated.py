"""Times of iterations from lists: the same as a cost model's, in less time.

A cost model with terms of served formats computes each iteration with NumPy scalars, which takes
longer than the reference simulator takes for the rest of an iteration. Tokens and rows are whole
numbers, so what depends on them alone is computed once for all of them.

``attention_s`` and ``iteration_s`` are plain functions of numbers, so that compiled code
(``sim/reference/compiled.py``) has the same equations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxserve.sim.machine.cost_model import CostModel

MOST_TOKENS = 16_384
"""Tokens of the largest iteration in the lists."""
MOST_ROWS = 1_024
"""Rows of the head in the largest iteration in the lists."""


class Times(NamedTuple):
    """Constants of the iterations of one tier, in seconds where no other unit is said; see
    ``CostModel``."""

    linear_s: Sequence[float]
    """host and linear layers, by the tokens of the iteration."""
    head_s: Sequence[float]
    """head, by its rows."""
    layers: float
    host_s: float
    sequence_s: float
    attention_q: float
    attention_base_s: float
    attention_constant_s: float
    attention_s_per_sequence: float
    kv_read_s_per_token: float
    prefill_constant_s: float
    prefill_s_per_token: float
    prefill_s_per_pair: float
    mixed_share: float
    mixed_s_per_sequence: float
    eager_s: float
    """least time of an iteration with prompts and more tokens than CUDA graphs have."""
    captured_tokens: float
    """tokens of the largest CUDA graph."""
    ranks: float
    """ranks that share the sequences where attention is data parallel; 1 otherwise."""
    prefill_first: bool
    """whether prompts and decoding are iterations of their own."""
    slowdown: float
    """factor on all times."""

    @classmethod
    def of(cls, cost: CostModel, tier: int, slowdown: float) -> Times:
        """Constants of a tier of a cost model."""
        beyond = cost.beyond
        return cls(
            linear_s=(cost.host_s + cost.linear_s(np.arange(MOST_TOKENS + 1), tier)).tolist(),
            head_s=cost.head_s(np.arange(MOST_ROWS + 1)).tolist(),
            layers=float(cost.layers),
            host_s=float(cost.host_s),
            sequence_s=0.0 if beyond is None else float(beyond.sequence_s),
            attention_q=float(cost.attention_q),
            attention_base_s=float(cost.attention_base_s),
            attention_constant_s=float(cost.attention_constant_s),
            attention_s_per_sequence=float(cost.attention_s_per_sequence),
            kv_read_s_per_token=float(cost.kv_read_s_per_token),
            prefill_constant_s=float(cost.prefill_constant_s),
            prefill_s_per_token=float(cost.prefill_s_per_token),
            prefill_s_per_pair=float(cost.prefill_s_per_pair),
            mixed_share=float(cost.mixed_share),
            mixed_s_per_sequence=float(cost.mixed_s_per_sequence),
            eager_s=0.0 if beyond is None else float(beyond.eager_s),
            captured_tokens=0.0 if beyond is None else float(beyond.captured_tokens),
            ranks=1.0 if beyond is None else float(beyond.ranks),
            prefill_first=beyond is not None and bool(beyond.prefill_first),
            slowdown=float(slowdown),
        )


def fullest_rank(times: Times, seqs: float) -> float:
    """Factor on the work of the rank that has the most sequences, of 1 or more."""
    return math.ceil(seqs / times.ranks) * times.ranks / seqs


def kernel_s(times: Times, seqs: float, read_s: float) -> float:
    """Attention kernel of a layer that reads KV for ``read_s``: the generalised mean of scheduling
    and reading."""
    schedule_s = times.attention_base_s + times.attention_s_per_sequence * seqs
    return (schedule_s**times.attention_q + read_s**times.attention_q) ** (1 / times.attention_q)


def attention_s(times: Times, seqs: float, kv_tokens: float) -> float:
    """Decode attention of layers of one kind, before ``slowdown``; 0 without sequences."""
    if not seqs:
        return 0.0
    fullest = fullest_rank(times, seqs)
    layer_s = kernel_s(times, fullest * seqs, times.kv_read_s_per_token * fullest * kv_tokens)
    return times.layers * (times.attention_constant_s + layer_s)


def iteration_s(
    times: Times,
    decode_seqs: int,
    verified: int,
    prompt_tokens: int,
    chunks: int,
    attention: float,
    pairs_s: float,
    drafts_s: float,
) -> float:
    """Seconds of an iteration whose parts share it, before ``slowdown``.

    Args:
      times: constants.
      decode_seqs: decoding sequences.
      verified: tokens of theirs, drafts included.
      prompt_tokens: tokens of the chunks of prompts.
      chunks: chunks of prompts.
      attention: seconds of decode attention.
      pairs_s: seconds of prefill attention in each layer.
      drafts_s: seconds of drafting.
    """
    tokens = verified + prompt_tokens
    if not tokens:
        return 0.0
    total_s = times.linear_s[tokens] + times.head_s[verified + chunks]
    total_s += times.sequence_s * (decode_seqs + chunks) + attention + drafts_s
    if prompt_tokens:
        constant_s = times.prefill_constant_s + times.prefill_s_per_token * prompt_tokens
        total_s += times.layers * (constant_s + pairs_s)
        if decode_seqs:
            total_s += times.mixed_share * attention
            total_s += times.layers * times.mixed_s_per_sequence * decode_seqs
        if tokens > times.captured_tokens:
            total_s = max(total_s, times.eager_s)
    return total_s


class TabulatedTimer:
    """``CostModel.iteration_s`` of one tier, times a factor."""

    def __init__(self, cost: CostModel, tier: int = 0, slowdown: float = 1.0) -> None:
        """Args: the cost model, its tier, and a factor on all times."""
        self._cost, self.tier = cost, tier
        self.times = Times.of(cost, tier, slowdown)
        """constants of the tier."""
        beyond = cost.beyond
        windowed = beyond is not None and beyond.window_layers
        self._window_share = beyond.window_layers / cost.layers if beyond and windowed else 0.0
        self._window_tokens = beyond.window_tokens if beyond and windowed else 0
        self._mixers = None if beyond is None else beyond.mixers
        self._state_share = self._mixers.state_layers / cost.layers if self._mixers else 0.0

    @property
    def one_kind(self) -> bool:
        """Whether the attention of all layers is of one kind, that of ``attention_s``."""
        return not self._window_share and self._mixers is None

    def iteration_s(
        self,
        *,
        decode_seqs: int,
        kv_tokens: float,
        chunks: tuple[tuple[int, int], ...] = (),
        speculation_depth: int = 0,
        tier: int = 0,
    ) -> float:
        """Seconds of one iteration; see ``CostModel.iteration_s``."""
        cost, times = self._cost, self.times
        prompt_tokens = sum(chunk for chunk, _ in chunks)
        if times.prefill_first and decode_seqs and prompt_tokens:
            how: dict[str, Any] = {"speculation_depth": speculation_depth, "tier": tier}
            prompts_s = self.iteration_s(decode_seqs=0, kv_tokens=0.0, chunks=chunks, **how)
            decode_s = self.iteration_s(decode_seqs=decode_seqs, kv_tokens=kv_tokens, **how)
            return prompts_s + decode_s - times.slowdown * times.host_s
        verified = decode_seqs * (speculation_depth + 1)
        tokens, rows = verified + prompt_tokens, verified + len(chunks)
        if tier != self.tier or tokens > MOST_TOKENS or rows > MOST_ROWS:
            return times.slowdown * cost.iteration_s(
                decode_seqs=decode_seqs,
                kv_tokens=kv_tokens,
                chunks=chunks,
                speculation_depth=speculation_depth,
                tier=tier,
            )
        drafts_s = 0.0
        if speculation_depth:
            draft = (speculation_depth, decode_seqs, kv_tokens, prompt_tokens, tier)
            drafts_s = float(cost.draft_s(*draft))
        attention = self._attention_s(decode_seqs, kv_tokens) if decode_seqs else 0.0
        pairs_s = sum(self._pairs_s(chunk, prefix) for chunk, prefix in chunks)
        return times.slowdown * iteration_s(
            times, decode_seqs, verified, prompt_tokens, len(chunks), attention, pairs_s, drafts_s
        )

    def _attention_s(self, seqs: float, kv_tokens: float) -> float:
        times, mixers = self.times, self._mixers
        if self.one_kind:
            return attention_s(times, seqs, kv_tokens)
        fullest = fullest_rank(times, seqs)
        seqs, kv_tokens = fullest * seqs, fullest * kv_tokens
        read_s = times.kv_read_s_per_token * kv_tokens
        if mixers is not None:
            read_s = mixers.read_s(times.kv_read_s_per_token, seqs, kv_tokens)
        full_s = mean_s = kernel_s(times, seqs, read_s)
        if self._window_share:
            near = min(kv_tokens, self._window_tokens * seqs)
            if mixers is not None:
                near *= mixers.window_kv
            near_s = kernel_s(times, seqs, times.kv_read_s_per_token * near)
            mean_s += self._window_share * (near_s - full_s)
        if mixers is not None:
            state_s = mixers.state_s_per_sequence * seqs
            mean_s += self._state_share * (kernel_s(times, seqs, state_s) - full_s)
        return times.layers * (times.attention_constant_s + mean_s)

    def _pairs_s(self, chunk: int, prefix: int) -> float:
        mixers, each_s = self._mixers, self.times.prefill_s_per_pair
        pairs = chunk * (prefix + 0.5 * chunk)
        pairs_s = each_s * pairs
        if mixers is not None:
            pairs_s = mixers.pairs_s(each_s, chunk, pairs)
        mean_s = pairs_s
        if self._window_share:
            near_s = each_s * min(pairs, chunk * self._window_tokens)
            if mixers is not None:
                near_s *= mixers.window_width
            mean_s += self._window_share * (near_s - pairs_s)
        if mixers is not None:
            mean_s += self._state_share * (mixers.state_s_per_token * chunk - pairs_s)
        return mean_s
