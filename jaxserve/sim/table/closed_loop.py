"""Steady state of a load test: a closed loop that keeps a fixed number of requests in flight.

Every request has the same prompt and output length, and a finished one is replaced at once, as
``vllm bench serve --max-concurrency`` does. While a request decodes, every other slot finishes and
is refilled once, so with S sequences in service and n steps per output an iteration carries on
average (S - 1) / (n + 1) prompts of prefill:

    iteration = t(decode of the batch) + prompts per iteration * t(prefill added by one prompt)

Three limits bend this at high concurrency. KV capacity bounds the sequences in service. The token
budget of an iteration bounds the prompts it can carry, and with them the batch that prefill can
keep supplied. The other requests wait, which by Little's law is the rest of TTFT. Preemption and
the front end's own delay are left out.

Where prompts have iterations of their own, those of a round of equal requests are prefilled one
after the other, while none of the round decodes: a request spends half of that time before its
first token and half of it after.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jaxserve.sim.machine.cost_model import MIN_CHUNK_SHARE, CostModel
from jaxserve.sim.machine.hardware import EngineSettings
from jaxserve.sim.machine.memory import BLOCK_SLACK_TOKENS, SequenceKv

SHARED_TOKENS = 1024
"""Prompt tokens of requests in step that share an iteration where launches have a least time. The
only measured run with shorter prompts (TensorRT-LLM, 128 to 1,024 tokens) loses no time to prompts
that fit together in this many; longer prompts run alone."""
_Z99 = 2.326  # 99 % quantile of the standard normal distribution
_BISECTIONS = 50


@dataclass(frozen=True)
class ClosedLoop:
    """Steady state at each point; float64 arrays of one shape."""

    ttft_p50_s: NDArray[np.float64]
    """median time to first token."""
    ttft_p99_s: NDArray[np.float64]
    """99th percentile of the time to first token."""
    tpot_s: NDArray[np.float64]
    """mean time per output token after the first."""
    requests_per_s: NDArray[np.float64]
    """completed requests."""
    batch: NDArray[np.float64]
    """sequences that decode together."""
    prompts_per_iteration: NDArray[np.float64]
    """prefilled prompts of an average iteration."""
    iteration_s: NDArray[np.float64]
    """duration of an average iteration."""


def closed_loop(
    cost: CostModel,
    concurrency: ArrayLike,
    prompt_tokens: ArrayLike,
    output_tokens: ArrayLike,
    *,
    depth: ArrayLike = 0,
    tier: int = 0,
    tokens_per_step: ArrayLike = 1.0,
    kv_tokens: ArrayLike = np.inf,
    token_budget: int = EngineSettings.token_budget,
    sequence_kv: SequenceKv | None = None,
    in_step: ArrayLike = True,
) -> ClosedLoop:
    """Steady state at ``concurrency`` requests in flight. Array arguments broadcast.

    Args:
      cost: iteration times.
      concurrency: requests in flight.
      prompt_tokens, output_tokens: lengths of every request; at least 2 output tokens.
      depth: speculation depth.
      tier: quantisation tier.
      tokens_per_step: mean tokens that one decode step emits, 1 without speculation.
      kv_tokens: KV capacity. Where it holds less than one request the result extrapolates; an
        engine would refuse the request.
      token_budget: tokens that one iteration may process.
      sequence_kv: KV that a request holds beside that of its tokens; None for layers of one kind.
      in_step: whether requests are equal, so that those which begin together end together; of
        consequence where prompts have iterations of their own.
    """
    concurrency, prompt, output, depth, tokens_per_step, kv_tokens, in_step = np.broadcast_arrays(
        *(
            np.asarray(values, np.float64)
            for values in (
                *(concurrency, prompt_tokens, output_tokens),
                *(depth, tokens_per_step, kv_tokens, in_step),
            )
        )
    )  # fmt: skip
    # Requests that stay in step meet half of their round's prompts before their first token.
    prompts_apart = cost.beyond is not None and cost.beyond.prefill_first
    rounds = np.where(in_step > 0, 1.0, 0.0) if prompts_apart else np.zeros_like(prompt)
    steps = (output - 1) / tokens_per_step
    context = prompt + output / 2
    held = context + BLOCK_SLACK_TOKENS
    if sequence_kv is not None:
        held = held + sequence_kv.beside(context)
    in_service = np.minimum(concurrency, kv_tokens / held)

    def chunk_room(batch: NDArray[np.float64]) -> NDArray[np.float64]:
        room = np.maximum(token_budget - batch * (depth + 1), MIN_CHUNK_SHARE * token_budget)
        return np.full_like(room, np.inf) if prompts_apart else room

    supplied = _largest(lambda batch: batch <= chunk_room(batch) / prompt * steps, in_service)
    batch = np.minimum(in_service, np.maximum(supplied, np.minimum(in_service, 1.0)))
    others = np.maximum(batch - 1, 0.0)
    together, waves = np.ones_like(prompt), others
    if cost.beyond is not None and cost.beyond.eager_s:
        shared = np.clip(SHARED_TOKENS // prompt, 1.0, np.maximum(batch, 1.0))
        together = np.where(in_step > 0, shared, 1.0)
        waves = np.where(together > 1, np.ceil(batch / together) - 1, others)
    prompts = np.minimum(waves / (steps + 1), chunk_room(batch) / (together * prompt))
    added_s = cost.prefill_added_s(batch, together * prompt, depth, tier, token_budget)
    # Prompts that share an iteration do not attend to each other.
    added_s -= cost.prefill_attention_s(together * prompt, 0)
    added_s += together * cost.prefill_attention_s(prompt, 0)
    paused_s = (1 - rounds / 2) * prompts * added_s
    iteration_s = cost.decode_s(batch, context, depth, tier) + paused_s

    busy = np.minimum(others, 1.0)
    own_s = (1 - busy) * cost.prefill_alone_s(prompt, tier, token_budget, depth) + busy * (
        # Beside the others a prompt takes as many of their iterations as it has chunks.
        np.ceil(prompt / chunk_room(others)) * cost.decode_s(others, context, depth, tier)
        + cost.prefill_added_s(others, prompt, depth, tier, token_budget)
    )
    decode_s = steps * iteration_s
    round_s = rounds * others * added_s
    shared_s = (1 - rounds) * prompts * added_s + round_s / 2
    served_s = own_s + busy * shared_s + decode_s
    requests_per_s = np.minimum(
        in_service / served_s, np.where(supplied < in_service, supplied, np.inf) / decode_s
    )
    wait_s = np.maximum(concurrency / requests_per_s - served_s, 0.0)

    # The prompts that share an iteration and the departures a wait consists of are Poisson.
    def ttft_s(z: float, tail: float) -> NDArray[np.float64]:
        sharing = np.minimum(_poisson_quantile(prompts, z), prompts / tail)
        others_s = (1 - rounds) * sharing * added_s + (1 - tail) * round_s
        return own_s + busy * others_s + wait_s + z * np.sqrt(wait_s / requests_per_s)

    return ClosedLoop(
        ttft_p50_s=ttft_s(0.0, 0.5),
        ttft_p99_s=ttft_s(_Z99, 0.01),
        tpot_s=iteration_s / tokens_per_step,
        requests_per_s=requests_per_s,
        batch=batch,
        prompts_per_iteration=together * prompts,
        iteration_s=iteration_s,
    )


def _poisson_quantile(mean: NDArray[np.float64], z: float) -> NDArray[np.float64]:
    """Quantile of a Poisson count at the normal score ``z``, smoothed over the whole numbers."""
    return np.maximum(mean + z * np.sqrt(mean) + (z * z - 1) / 6, 0.0)


def _largest(holds, upper: NDArray[np.float64]) -> NDArray[np.float64]:
    """Largest number up to ``upper`` for which ``holds``, a predicate that fails from some number
    on."""
    low, high = np.zeros_like(upper), upper.copy()
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        inside = holds(middle)
        low, high = np.where(inside, middle, low), np.where(inside, high, middle)
    return np.where(holds(upper), upper, low)
