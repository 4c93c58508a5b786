"""Words of clients that mean a knob or its value: names of earlier projects, tiers by name."""

from __future__ import annotations

from jaxserve.fields import Tier
from jaxserve.spaces import ACTION_BOUNDS

ALIASES = {
    "batch_size": "batch_cap",
    "kv_budget": "kv_budget_fraction",
    "spec_length": "speculation_depth",
    "quant_tier": "quantization_tier",
    "prefill_disagg": "prefill_decode_split",
}
"""Other names of knobs."""
TRUE_OR_FALSE = ("prefill_decode_split", "priority_routing")
"""Knobs that a switch may stand for."""
SPELLINGS = {"quantization_tier": {tier.name: int(tier) for tier in Tier} | {"BF16": 0}}
"""Names of values, allowed instead of their numbers, by knob; in upper case."""


def knob_values(knob: str) -> str:
    """What a knob may be."""
    names = SPELLINGS.get(knob, {})
    return ACTION_BOUNDS[knob].allowed + (f", or {', '.join(names)}" if names else "")
