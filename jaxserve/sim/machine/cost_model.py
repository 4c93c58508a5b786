"""Seconds of one engine iteration, from rooflines fitted to measured kernels.

With m tokens in the iteration, b decoding sequences that read K tokens of KV, and prefill chunks of
c new tokens after a prefix of p:

    t_iter = host + t_lin(m) + t_head(rows) + t_dec(b, K) + t_pre + t_draft
    t_lin  = c0 + [(P w / (BW mbw))^p + (2 m P / (F mfu))^p]^(1/p) + elem m + all-reduces
    t_head = max(2 Ph / (.8 BW), 2 rows Ph / (.6 F))
    t_dec  = L (ac + [(a0 + a1 b)^q + (kv K / (BW kvbw))^q]^(1/q))
    t_pre  = L (cp + g sum(c) + 4 d sum(c p + c^2 / 2) / (F f_attn)) + t_mixed(b, K)
    t_mixed = s t_dec(b, K) + L e b    where prompts and decodes share an iteration

P and Ph are body and head parameters, w bytes per weight, L layers, d heads x head_dim, and kv
bytes of K and V per token and layer. BW and F are the GPU's peak bandwidth and arithmetic rate, and
mbw, mfu, kvbw and f_attn the shares of them that kernels reach. Both p-norms smooth the corner of a
roofline.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from jaxserve import checks
from jaxserve.errors import InputError
from jaxserve.sim.machine.architecture import LargeModel
from jaxserve.sim.machine.cost_constants import dense_constants, served_constants
from jaxserve.sim.machine.hardware import EngineSettings, Gpu, LlmModel
from jaxserve.sim.machine.moe_terms import Beyond
from jaxserve.sim.machine.other_mixers import OtherMixers
from jaxserve.sim.machine.stack import ServedGpu

# Prefill progresses by at least this share of the token budget per iteration, even where verified
# tokens would fill the budget; only the aggregate quantity ``prefill_added_s`` needs the floor.
MIN_CHUNK_SHARE = 1 / 8


class IterationTimer(Protocol):
    """Anything that can say how long one engine iteration takes."""

    def iteration_s(
        self,
        *,
        decode_seqs: int,
        kv_tokens: float,
        chunks: tuple[tuple[int, int], ...] = (),
        speculation_depth: int = 0,
        tier: int = 0,
    ) -> float:
        """Seconds of one iteration; see ``CostModel.iteration_s``.

        Args:
          decode_seqs: sequences that decode.
          kv_tokens: KV tokens of all of them together.
          chunks: (tokens, tokens before them) of each prompt chunk.
          speculation_depth: draft tokens of each decoding sequence.
          tier: quantisation tier.
        """
        ...


@dataclass(frozen=True)
class CostModel:
    """Iteration times of one model on one GPU (or one tensor-parallel group), float64 seconds.

    The fields are the reduced constants of the equations above: all bandwidths and rates are
    already divided out, so every field is a time (or an exponent). Tuples are indexed by tier.
    """

    gpu: str
    """name of the GPU whose constants these are."""
    model: str
    """name of the model."""
    tensor_parallel: int
    """GPUs that share every layer."""
    layers: int
    """transformer layers."""
    host_s: float
    """seconds per iteration outside the kernels."""
    linear_constant_s: tuple[float, float, float]
    """c0 of the linear roofline, s, each tier."""
    weight_read_s: tuple[float, float, float]
    """seconds to stream the body's weights, each tier."""
    linear_s_per_token: tuple[float, float, float]
    """arithmetic seconds per token in the body, each tier."""
    linear_p: tuple[float, float, float]
    """exponent of the linear roofline, each tier."""
    elementwise_s_per_token: float
    """norms, rotary embedding and activation of all layers."""
    allreduce_s: float
    """seconds of the two collectives of a layer, 0 without tensor parallelism."""
    allreduce_s_per_token: float
    """seconds of one all-reduce for each token in the iteration."""
    head_read_s: float
    """seconds to read the output head, always bf16."""
    head_s_per_row: float
    """seconds of the output head for each row of logits."""
    head_gather_s_per_row: float
    """seconds to gather each row of logits over the tensor-parallel group."""
    attention_constant_s: float
    """fixed seconds of decode attention, per layer."""
    attention_base_s: float
    """scheduling seconds of attention, per layer."""
    attention_s_per_sequence: float
    """scheduling seconds of attention for each sequence, per layer."""
    kv_read_s_per_token: float
    """per layer and KV token, decode."""
    attention_q: float
    """exponent of the decode attention roofline."""
    prefill_constant_s: float
    """per layer, paid once by an iteration with any prefill."""
    prefill_s_per_token: float
    """seconds of prefill attention for each query token, per layer."""
    prefill_s_per_pair: float
    """seconds for each (query, key) pair, per layer."""
    draft_fixed_s: float
    """seconds of a draft are ``draft_fixed_s max(1, depth / draft_flat_depth)``."""
    draft_flat_depth: float
    """deepest draft that costs no more than the shallowest."""
    draft_s_per_token: float
    """seconds for each token through the draft."""
    draft_s_per_kv_token: float
    """seconds for each KV token that the draft reads."""
    beyond: Beyond | None = None
    """terms of many GPUs, experts, windows and the engine; None for a table without a
    stack, unless its GPUs' collectives were measured."""
    mixed_share: float = 0.0
    """what decode attention takes longer in an iteration with prompt tokens, as a share of its
    time; 0 where no mixed iterations were measured, as for ``mixed_s_per_sequence``."""
    mixed_s_per_sequence: float = 0.0
    """further seconds of attention for each decoding sequence of such an iteration, per layer."""

    def slower(self, factor: float) -> "CostModel":
        """The model with ``factor`` times all iteration times."""
        changed = _longer(self, factor)
        if self.beyond is not None:
            lines = tuple(
                (largest, factor * fixed_s, factor * per_token_s)
                for largest, fixed_s, per_token_s in self.beyond.collectives
            )
            longer = _longer(self.beyond, factor)
            if self.beyond.mixers is not None:
                mixers = _longer(self.beyond.mixers, factor)
                longer["mixers"] = dataclasses.replace(self.beyond.mixers, **mixers)
            changed["beyond"] = dataclasses.replace(self.beyond, collectives=lines, **longer)
        return dataclasses.replace(self, **changed)

    @classmethod
    def of(cls, gpu: Gpu, model: LlmModel, tensor_parallel: int = 1) -> "CostModel":
        """Cost model of ``model`` on ``tensor_parallel`` GPUs of one kind.

        Weights, arithmetic, heads and vocabulary are divided by the group; every layer then pays
        two all-reduces of one hidden vector per token: those measured of such GPUs, or rings. In a
        pipeline as many batches are under way as it has stages: a token passes all of them, each
        time with that share of the sequences.

        Raises:
          InputError: ``tensor_parallel`` does not divide the model's heads, or is more GPUs than
            one kind of link joins.
        """
        tp = tensor_parallel
        apart = isinstance(model, LargeModel) and model.attention_data_parallel
        if tp < 1 or (model.heads % tp and not apart):
            allowed = f"a positive divisor of the {model.heads} heads of {model.name}"
            checks.refuse("tensor_parallel", tp, allowed)
        if tp > gpu.link_gpus:
            allowed = f"at most {gpu.link_gpus:g}, as many as the links of {gpu.name} join"
            checks.refuse("tensor_parallel", tp, allowed)
        if isinstance(model, LargeModel) and not isinstance(gpu, ServedGpu):
            raise InputError(
                f"{model.name} has no times without what serves it; `jaxserve table build` makes a "
                "table of it, which names engine, formats and layout"
            )
        constants = dense_constants(gpu, model, tp)
        if isinstance(gpu, ServedGpu) and isinstance(model, LargeModel):
            constants |= served_constants(constants, gpu, model, tp)
        return cls(**constants)

    def linear_s(self, tokens: ArrayLike, tier: int = 0) -> np.ndarray:
        """t_lin of ``tokens`` (any shape) in the body, with elementwise kernels and all-reduces."""
        tokens = np.asarray(tokens, np.float64)
        p = self.linear_p[tier]
        arithmetic_s = self.linear_s_per_token[tier] * tokens
        roofline_s = (self.weight_read_s[tier] ** p + arithmetic_s**p) ** (1 / p)
        per_token_s = self.elementwise_s_per_token + self.allreduce_s_per_token
        total_s = (
            self.linear_constant_s[tier] + roofline_s + self.allreduce_s + per_token_s * tokens
        )
        return total_s if self.beyond is None else total_s + self.beyond.linear_s(tokens, tier)

    def head_s(self, rows: ArrayLike) -> np.ndarray:
        """t_head: logits of ``rows`` tokens (any shape)."""
        rows = np.asarray(rows, np.float64)
        return np.maximum(self.head_read_s, self.head_s_per_row * rows) + (
            self.head_gather_s_per_row * rows
        )

    def decode_attention_s(self, seqs: ArrayLike, kv_tokens: ArrayLike) -> np.ndarray:
        """t_dec of ``seqs`` sequences that hold ``kv_tokens`` in all; 0 where there are none.

        A verify step reads the same KV once: its depth + 1 queries per sequence are rows of one
        attention tile, so neither term depends on the depth.
        """
        seqs, kv_tokens = np.asarray(seqs, np.float64), np.asarray(kv_tokens, np.float64)
        q, beyond = self.attention_q, self.beyond
        if beyond is not None:
            fullest = beyond.fullest(seqs)
            seqs, kv_tokens = fullest * seqs, fullest * kv_tokens
        schedule_s = self.attention_base_s + self.attention_s_per_sequence * seqs

        def kernel_s(read_s: np.ndarray) -> np.ndarray:
            return (schedule_s**q + read_s**q) ** (1 / q)

        mixers = None if beyond is None else beyond.mixers
        read_s = self.kv_read_s_per_token * kv_tokens
        if mixers is not None:
            read_s = mixers.read_s(self.kv_read_s_per_token, seqs, kv_tokens)
        full_s = mean_s = kernel_s(read_s)
        if beyond is not None and beyond.window_layers:
            near = np.minimum(kv_tokens, beyond.window_tokens * seqs)
            if mixers is not None:
                near = mixers.window_kv * near
            share = beyond.window_layers / self.layers
            mean_s = full_s + share * (kernel_s(self.kv_read_s_per_token * near) - full_s)
        if mixers is not None:
            share = mixers.state_layers / self.layers
            mean_s = mean_s + share * (kernel_s(mixers.state_s_per_sequence * seqs) - full_s)
        return np.where(seqs > 0, self.layers * (self.attention_constant_s + mean_s), 0.0)

    def prefill_attention_s(self, chunk: ArrayLike, prefix: ArrayLike) -> np.ndarray:
        """Part of t_pre that one chunk adds: causal among itself, full over its prefix."""
        chunk, prefix = np.asarray(chunk, np.float64), np.asarray(prefix, np.float64)
        beyond, pairs = self.beyond, chunk * prefix + chunk * chunk / 2
        mixers = None if beyond is None else beyond.mixers
        pairs_s = self.prefill_s_per_pair * pairs
        if mixers is not None:
            pairs_s = mixers.pairs_s(self.prefill_s_per_pair, chunk, pairs)
        mean_s = pairs_s
        if beyond is not None and beyond.window_layers:
            near_s = self.prefill_s_per_pair * np.minimum(pairs, chunk * beyond.window_tokens)
            if mixers is not None:
                near_s = mixers.window_width * near_s
            mean_s = pairs_s + beyond.window_layers / self.layers * (near_s - pairs_s)
        if mixers is not None:
            states_s = mixers.state_s_per_token * chunk
            mean_s = mean_s + mixers.state_layers / self.layers * (states_s - pairs_s)
        return self.layers * (self.prefill_s_per_token * chunk + mean_s)

    def mixed_s(self, seqs: ArrayLike, kv_tokens: ArrayLike) -> np.ndarray:
        """t_mixed: what decode attention takes longer where prompts share the iteration."""
        longer_s = self.mixed_share * self.decode_attention_s(seqs, kv_tokens)
        return longer_s + self.layers * self.mixed_s_per_sequence * np.asarray(seqs, np.float64)

    def draft_s(
        self,
        depth: ArrayLike,
        seqs: ArrayLike,
        kv_tokens: ArrayLike,
        prompt_tokens: ArrayLike = 0.0,
        tier: int = 0,
    ) -> np.ndarray:
        """Draft of ``depth`` tokens per sequence; 0 at depth 0.

        Every verified or prefilled token runs through the layer of an EAGLE draft. Its fixed part
        was measured as one constant for the depths in use; deeper drafts are extrapolated by their
        sequential passes, which can not be free. A model that drafts with layers of its own passes
        through them once for each token of the depth, first with every verified or prefilled
        token, then with one of each sequence; the head follows every pass.
        """
        depth, seqs = np.asarray(depth, np.float64), np.asarray(seqs, np.float64)
        tokens = seqs * (depth + 1) + np.asarray(prompt_tokens, np.float64)
        if self.beyond is not None and self.beyond.drafting_layers:
            share = self.beyond.drafting_layers / self.layers
            head_s = self.head_s(seqs) + self.beyond.draft_pass_s
            pass_s = head_s + share * self.decode_attention_s(seqs, kv_tokens)
            layer_s = self.linear_s(tokens, tier) + (depth - 1) * self.linear_s(seqs, tier)
            return np.where((depth > 0) & (tokens > 0), depth * pass_s + share * layer_s, 0.0)
        draft_s = (
            self.draft_fixed_s * np.maximum(1.0, depth / self.draft_flat_depth)
            + self.draft_s_per_token * tokens
            + self.draft_s_per_kv_token * np.asarray(kv_tokens, np.float64)
        )
        return np.where((depth > 0) & (tokens > 0), draft_s, 0.0)

    def iteration_s(
        self,
        *,
        decode_seqs: int,
        kv_tokens: float,
        chunks: tuple[tuple[int, int], ...] = (),
        speculation_depth: int = 0,
        tier: int = 0,
    ) -> float:
        """Seconds of one iteration; 0 for an iteration without work.

        The sum of the methods of single kernels, written out in plain floats: the reference
        simulator asks for every iteration, and NumPy scalars would take most of its time.

        Args:
          decode_seqs: decoding sequences; each verifies ``speculation_depth`` + 1 tokens.
          kv_tokens: KV tokens that the decoding sequences read, all together.
          chunks: prefill chunks as (new tokens, prefix tokens).
          speculation_depth: drafted tokens per sequence.
          tier: quantisation tier of the weights.
        """
        if self.beyond is not None:
            work = (decode_seqs, kv_tokens, chunks, speculation_depth, tier)
            return self._iteration_beyond_s(*work)
        decode_tokens = decode_seqs * (speculation_depth + 1)
        prompt_tokens, pairs = 0, 0.0
        for chunk, prefix in chunks:
            prompt_tokens += chunk
            pairs += chunk * (prefix + 0.5 * chunk)
        tokens = decode_tokens + prompt_tokens
        if not tokens:
            return 0.0
        p = self.linear_p[tier]
        arithmetic_s = self.linear_s_per_token[tier] * tokens
        rows = decode_tokens + len(chunks)
        head_s = self.head_s_per_row * rows
        total_s = (
            self.host_s
            + self.linear_constant_s[tier]
            + (self.weight_read_s[tier] ** p + arithmetic_s**p) ** (1 / p)
            + self.allreduce_s
            + (self.elementwise_s_per_token + self.allreduce_s_per_token) * tokens
            + (head_s if head_s > self.head_read_s else self.head_read_s)
            + self.head_gather_s_per_row * rows
        )
        if decode_seqs:
            q = self.attention_q
            schedule_s = self.attention_base_s + self.attention_s_per_sequence * decode_seqs
            read_s = self.kv_read_s_per_token * kv_tokens
            attention_s = self.attention_constant_s + (schedule_s**q + read_s**q) ** (1 / q)
            if prompt_tokens:
                attention_s += self.mixed_share * attention_s
                attention_s += self.mixed_s_per_sequence * decode_seqs
            total_s += self.layers * attention_s
        if prompt_tokens:
            total_s += self.layers * (
                self.prefill_constant_s
                + self.prefill_s_per_token * prompt_tokens
                + self.prefill_s_per_pair * pairs
            )
        if speculation_depth:
            passes = speculation_depth / self.draft_flat_depth
            total_s += (
                self.draft_fixed_s * (passes if passes > 1.0 else 1.0)
                + self.draft_s_per_token * tokens
                + self.draft_s_per_kv_token * kv_tokens
            )
        return total_s

    def _iteration_beyond_s(
        self,
        decode_seqs: int,
        kv_tokens: float,
        chunks: tuple[tuple[int, int], ...],
        depth: int,
        tier: int,
    ) -> float:
        """``iteration_s`` from the methods of single kernels, with the terms of ``beyond``. Where
        prompts have iterations of their own, the time of both, without the second one's host time,
        which the first one hides."""
        if self.beyond is not None and self.beyond.prefill_first and decode_seqs and chunks:
            prompts_s = self._iteration_beyond_s(0, 0.0, chunks, depth, tier) - self.host_s
            return prompts_s + self._iteration_beyond_s(decode_seqs, kv_tokens, (), depth, tier)
        decode_tokens = decode_seqs * (depth + 1)
        prompt_tokens = sum(chunk for chunk, _ in chunks)
        tokens = decode_tokens + prompt_tokens
        if not tokens:
            return 0.0
        total_s = (
            self.host_s
            + self.linear_s(tokens, tier)
            + self.head_s(decode_tokens + len(chunks))
            + self.decode_attention_s(decode_seqs, kv_tokens)
            + self.draft_s(depth, decode_seqs, kv_tokens, prompt_tokens, tier)
        )
        if prompt_tokens:
            total_s += self.layers * self.prefill_constant_s
            total_s += sum(float(self.prefill_attention_s(*chunk)) for chunk in chunks)
            total_s += self.mixed_s(decode_seqs, kv_tokens)
        if self.beyond is not None:
            total_s += self.beyond.sequence_s * (decode_seqs + len(chunks))
            if prompt_tokens and tokens > self.beyond.captured_tokens:
                total_s = max(total_s, self.beyond.eager_s)
        return float(total_s)

    def decode_s(
        self, batch: ArrayLike, context: ArrayLike, depth: ArrayLike = 0, tier: int = 0
    ) -> np.ndarray:
        """A pure decode iteration of ``batch`` sequences with mean ``context`` KV tokens each."""
        batch, depth = np.asarray(batch, np.float64), np.asarray(depth, np.float64)
        tokens, kv_tokens = batch * (depth + 1), batch * np.asarray(context, np.float64)
        total_s = (
            self.host_s
            + self.linear_s(tokens, tier)
            + self.head_s(tokens)
            + self.decode_attention_s(batch, kv_tokens)
            + self.draft_s(depth, batch, kv_tokens, 0.0, tier)
        )
        if self.beyond is not None:
            total_s = total_s + self.beyond.sequence_s * batch
        return np.where(batch > 0, total_s, 0.0)

    def prefill_alone_s(
        self,
        prompt_tokens: ArrayLike,
        tier: int = 0,
        token_budget: int = EngineSettings.token_budget,
        depth: ArrayLike = 0,
    ) -> np.ndarray:
        """Prefill of one prompt on an idle engine, in chunks of at most ``token_budget`` tokens."""
        return self.prefill_added_s(0, prompt_tokens, depth, tier, token_budget)

    def prefill_added_s(
        self,
        batch: ArrayLike,
        prompt_tokens: ArrayLike,
        depth: ArrayLike = 0,
        tier: int = 0,
        token_budget: int = EngineSettings.token_budget,
    ) -> np.ndarray:
        """Seconds that prefilling one prompt adds to the iterations of a decoding batch.

        The sum over the prompt's chunks of t(batch + chunk) - t(batch): what prefill steals from
        decoding. The batch's context cancels, except in what mixed iterations take longer or at
        least: there it is as long as the prompt, as ``itl_ms`` of a table has it. Where prompts
        have iterations of their own, decoding pauses for them, and their host time is hidden. A
        chunk gets what the verified tokens leave of the budget, at least ``MIN_CHUNK_SHARE`` of it.
        Arguments broadcast.

        Args:
          batch: decoding sequences of the GPU.
          prompt_tokens: tokens of the prompt.
          depth: draft tokens of each decoding sequence.
          tier: quantisation tier.
          token_budget: tokens that an iteration may process.
        """
        batch, prompt_tokens, depth = np.broadcast_arrays(
            *(np.asarray(x, np.float64) for x in (batch, prompt_tokens, depth))
        )
        if self.beyond is not None and self.beyond.prefill_first and np.any(batch > 0):
            alone_s = self.prefill_added_s(0, prompt_tokens, depth, tier, token_budget)
            return np.where(batch > 0, np.maximum(alone_s - self.host_s, 0.0), alone_s)
        decode_tokens = batch * (depth + 1)
        chunk = np.maximum(token_budget - decode_tokens, MIN_CHUNK_SHARE * token_budget)
        chunk = np.minimum(chunk, prompt_tokens)
        iterations = np.ceil(prompt_tokens / np.maximum(chunk, 1.0))
        last = prompt_tokens - (iterations - 1) * chunk

        # Without a batch the whole iteration is due to the prompt, drafting included.
        fixed_draft_s = self.draft_fixed_s * np.maximum(1.0, depth / self.draft_flat_depth)
        alone_s = self.host_s + np.where(depth > 0, fixed_draft_s, 0.0)
        base_s = np.where(
            batch > 0, self.linear_s(decode_tokens, tier) + self.head_s(decode_tokens), -alone_s
        )

        def added_s(new_tokens: np.ndarray) -> np.ndarray:
            tokens = decode_tokens + new_tokens
            return self.linear_s(tokens, tier) + self.head_s(decode_tokens + 1) - base_s

        draft_s = np.where(depth > 0, self.draft_s_per_token * prompt_tokens, 0.0)
        total_s = (
            np.maximum(iterations - 1, 0) * added_s(chunk)
            + np.where(prompt_tokens > 0, added_s(last), 0.0)
            + self.layers * self.prefill_constant_s * iterations
            + self.prefill_attention_s(prompt_tokens, 0)
            + draft_s
            + iterations * self.mixed_s(batch, batch * prompt_tokens)
        )
        if self.beyond is None:
            return total_s
        total_s = total_s + self.beyond.sequence_s * iterations
        least_s = self.beyond.eager_s - self.decode_s(batch, prompt_tokens, depth, tier)
        captured = self.beyond.captured_tokens
        eager = np.where(decode_tokens + chunk > captured, np.maximum(iterations - 1, 0), 0)
        eager = eager + (decode_tokens + last > captured)
        return np.maximum(total_s, eager * least_s)


def _longer(constants: CostModel | Beyond | OtherMixers, factor: float) -> dict[str, Any]:
    """Fields in seconds or seconds per unit, multiplied, by name."""
    changed: dict[str, Any] = {}
    for field in dataclasses.fields(constants):
        if field.name.endswith("_s") or "_s_per_" in field.name:
            value = getattr(constants, field.name)
            changed[field.name] = (
                tuple(factor * each for each in value)
                if isinstance(value, tuple)
                else factor * value
            )
    return changed
