"""The cost model as the file of step times that an emulated device (integrations/vllm) reads."""

from __future__ import annotations

from typing import Any

from jaxserve.errors import InputError
from jaxserve.sim.machine.cost_model import CostModel

CPU_BLOCK_TOKENS = 32
"""Least KV block of vLLM's attention on CPUs."""

HIDDEN_S = 0.005
"""Seconds between two steps that vLLM takes for itself: 2 to 4 ms on a CPU that has time for it."""


def step_times(cost: CostModel, tier: int = 0, time_dilation: float = 1.0) -> dict[str, Any]:
    """The sum in ``CostModel.iteration_s`` as data; JSON-able.

    Args:
      cost: cost model of a GPU and a model.
      tier: quantisation tier of the weights.
      time_dilation: factor on every step, for a host that is too slow for the steps of the device.

    Returns:
      ``seconds`` for each unit of a step's load; ``rooflines``, p-norms of such sums, without
      ``p`` their maximum; ``by_tokens``, such sums of which the step's tokens choose one, where
      collectives were measured; ``time_dilation``; ``hidden_s``. The last is what vLLM hides beside
      a GPU: it composes a step while the one before it is computed.

    Raises:
      InputError: the cost model has terms of a stack, which this form has no place for.
    """
    if cost.beyond is not None and not cost.beyond.links_only:
        raise InputError(
            f"step times of {cost.model} as a stack serves it cannot be written; they are for a "
            "dense model with the constants of its GPU's file"
        )
    per_layer = cost.layers
    by_tokens = [
        ({"up_to": most} if most else {}) | {"seconds": {"step": fixed_s, "token": each_s}}
        for most, fixed_s, each_s in (cost.beyond.collectives if cost.beyond else ())
    ]
    return {
        "seconds": {
            "step": cost.host_s + cost.linear_constant_s[tier] + cost.allreduce_s,
            "token": cost.elementwise_s_per_token + cost.allreduce_s_per_token,
            "row": cost.head_gather_s_per_row,
            "decoding": per_layer * cost.attention_constant_s,
            "prefilling": per_layer * cost.prefill_constant_s,
            "prompt_token": per_layer * cost.prefill_s_per_token,
            "pair": per_layer * cost.prefill_s_per_pair,
            "drafting_token": cost.draft_s_per_token,
            "drafting_context_token": cost.draft_s_per_kv_token,
        },
        "rooflines": [
            {
                "p": cost.linear_p[tier],
                "sides": [
                    {"step": cost.weight_read_s[tier]},
                    {"token": cost.linear_s_per_token[tier]},
                ],
            },
            {"sides": [{"step": cost.head_read_s}, {"row": cost.head_s_per_row}]},
            {
                "p": cost.attention_q,
                "sides": [
                    {
                        "decoding": per_layer * cost.attention_base_s,
                        "sequence": per_layer * cost.attention_s_per_sequence,
                    },
                    {"context_token": per_layer * cost.kv_read_s_per_token},
                ],
            },
            {
                "sides": [
                    {"drafting": cost.draft_fixed_s},
                    {"draft": cost.draft_fixed_s / cost.draft_flat_depth},
                ]
            },
        ],
        "time_dilation": time_dilation,
        "hidden_s": HIDDEN_S,
    } | ({"by_tokens": by_tokens} if by_tokens else {})
