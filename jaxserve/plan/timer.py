"""Times of iterations from lists: the same as a cost model's, in less time.

A cost model with terms of served formats computes each iteration with NumPy scalars, which takes
longer than the reference simulator takes for the rest of an iteration. Tokens and rows are whole
numbers, so what depends on them alone is computed once for all of them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from jaxserve.sim.machine.cost_model import CostModel

_TOKENS = 16_384
_ROWS = 1_024


class TabulatedTimer:
    """``CostModel.iteration_s`` of one tier, times a factor."""

    def __init__(self, cost: CostModel, tier: int = 0, slowdown: float = 1.0) -> None:
        """Args: the cost model, its tier, and a factor on all times."""
        self._cost, self._tier, self._slowdown = cost, tier, slowdown
        self._linear_s = (cost.host_s + cost.linear_s(np.arange(_TOKENS + 1), tier)).tolist()
        beyond, rows = cost.beyond, np.arange(_ROWS + 1)
        self._prefill_first = beyond is not None and bool(beyond.prefill_first)
        self._head_s = cost.head_s(rows).tolist()
        self._sequence_s = 0.0 if beyond is None else beyond.sequence_s
        self._eager_s = 0.0 if beyond is None else beyond.eager_s
        self._captured_tokens = 0.0 if beyond is None else beyond.captured_tokens
        windowed = beyond is not None and beyond.window_layers
        self._window_share = beyond.window_layers / cost.layers if beyond and windowed else 0.0
        self._window_tokens = beyond.window_tokens if beyond and windowed else 0
        self._ranks = 1.0 if beyond is None else beyond.ranks
        self._mixers = None if beyond is None else beyond.mixers
        self._state_share = self._mixers.state_layers / cost.layers if self._mixers else 0.0

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
        cost = self._cost
        prompt_tokens = sum(chunk for chunk, _ in chunks)
        if self._prefill_first and decode_seqs and prompt_tokens:
            how: dict[str, Any] = {"speculation_depth": speculation_depth, "tier": tier}
            prompts_s = self.iteration_s(decode_seqs=0, kv_tokens=0.0, chunks=chunks, **how)
            decode_s = self.iteration_s(decode_seqs=decode_seqs, kv_tokens=kv_tokens, **how)
            return prompts_s + decode_s - self._slowdown * cost.host_s
        verified = decode_seqs * (speculation_depth + 1)
        tokens, rows = verified + prompt_tokens, verified + len(chunks)
        if tier != self._tier or tokens > _TOKENS or rows > _ROWS:
            return self._slowdown * cost.iteration_s(
                decode_seqs=decode_seqs,
                kv_tokens=kv_tokens,
                chunks=chunks,
                speculation_depth=speculation_depth,
                tier=tier,
            )
        if not tokens:
            return 0.0
        total_s = self._linear_s[tokens] + self._head_s[rows]
        total_s += self._sequence_s * (decode_seqs + len(chunks))
        if decode_seqs:
            total_s += self._decode_attention_s(decode_seqs, kv_tokens)
        if speculation_depth:
            draft = (speculation_depth, decode_seqs, kv_tokens, prompt_tokens, tier)
            total_s += float(cost.draft_s(*draft))
        if prompt_tokens:
            pairs_s = sum(self._pairs_s(chunk, prefix) for chunk, prefix in chunks)
            total_s += cost.layers * (
                cost.prefill_constant_s + cost.prefill_s_per_token * prompt_tokens + pairs_s
            )
            if decode_seqs and (cost.mixed_share or cost.mixed_s_per_sequence):
                total_s += float(cost.mixed_s(decode_seqs, kv_tokens))
            if tokens > self._captured_tokens:
                total_s = max(total_s, self._eager_s)
        return self._slowdown * total_s

    def _decode_attention_s(self, seqs: float, kv_tokens: float) -> float:
        cost = self._cost
        q = cost.attention_q
        if self._ranks > 1:
            fullest = math.ceil(seqs / self._ranks) * self._ranks / seqs
            seqs, kv_tokens = fullest * seqs, fullest * kv_tokens
        schedule_s = (cost.attention_base_s + cost.attention_s_per_sequence * seqs) ** q

        def kernel_s(read_s: float) -> float:
            return (schedule_s + read_s**q) ** (1 / q)

        mixers, read_s = self._mixers, cost.kv_read_s_per_token * kv_tokens
        if mixers is not None:
            read_s = mixers.read_s(cost.kv_read_s_per_token, seqs, kv_tokens)
        full_s = mean_s = kernel_s(read_s)
        if self._window_share:
            near = min(kv_tokens, self._window_tokens * seqs)
            if mixers is not None:
                near *= mixers.window_kv
            mean_s += self._window_share * (kernel_s(cost.kv_read_s_per_token * near) - full_s)
        if mixers is not None:
            state_s = mixers.state_s_per_sequence * seqs
            mean_s += self._state_share * (kernel_s(state_s) - full_s)
        return cost.layers * (cost.attention_constant_s + mean_s)

    def _pairs_s(self, chunk: int, prefix: int) -> float:
        mixers, each_s = self._mixers, self._cost.prefill_s_per_pair
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
