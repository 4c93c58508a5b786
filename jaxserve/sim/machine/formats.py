"""Number formats of weights and KV caches, by the names that deployments use."""

from __future__ import annotations

from jaxserve import checks

STORED_BYTES = {
    "bf16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "int4": 0.5 + 2 / 128,
    "mxfp4": 0.5 + 1 / 32,
    "fp4": 0.5 + 1 / 16,
}
"""Bytes per number with its scales: int4 has a bf16 scale per group of 128, mxfp4 one byte per 32
(OCP Microscaling Formats 1.0), fp4 (NVFP4) one byte per 16."""

KV_FORMATS = ("bf16", "fp8")
DEFAULT_FORMATS = ("bf16", "fp8", "int4")
"""Tiers 0, 1 and 2 of a deployment that is served in formats and does not name them."""


def rest_of(expert_format: str) -> str:
    """Format of attention and of what all tokens run through, where experts have this one.

    Four-bit checkpoints of expert models (gpt-oss, NVFP4 of DeepSeek and Qwen) keep it in bf16.
    """
    return "bf16" if STORED_BYTES[expert_format] < 1 else expert_format


def parse_formats(name: str, values: object) -> tuple[str, str, str]:
    """Formats of tiers 0, 1 and 2.

    Raises:
      InputError: there are not three, or one is unknown.
    """
    if not isinstance(values, list | tuple) or len(values) != 3:
        checks.refuse(name, values, "three formats, those of tiers 0, 1 and 2")
    first, second, third = (checks.one_of(name, value, STORED_BYTES) for value in values)
    return first, second, third
