"""Other spellings of knobs and values: names of earlier projects, names of tiers."""

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
"""Knobs that take true and false."""
SPELLINGS = {"quantization_tier": {tier.name: int(tier) for tier in Tier} | {"BF16": 0}}
"""Names of a knob's values, in upper case, with their numbers."""


def knob_values(knob: str) -> str:
    """Allowed values of a knob, as text."""
    names = SPELLINGS.get(knob, {})
    return ACTION_BOUNDS[knob].allowed + (f", or {', '.join(names)}" if names else "")
