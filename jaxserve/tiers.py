"""Quantisation tiers, apart from the pytrees: files of GPUs are read without JAX."""

from __future__ import annotations

import enum


class Tier(enum.IntEnum):
    """FP16 is bf16, INT8 is W8A8, INT4 is weight-only, where a deployment names no formats."""

    FP16 = 0
    INT8 = 1
    INT4 = 2
