"""Attention of iterations that mix prompts and decodes, fitted to a layer profile.

One kernel takes both. Decoding sequences then take longer than in a kernel of their own, which
splits their KV among many thread blocks and has no tiles of queries to fill:

    t = t_pre + (1 + share) t_dec + each x sequences
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from jaxserve.errors import InputError
from jaxserve.sim.fit.extrapolation import Extrapolation, edges
from jaxserve.sim.fit.kernel_rows import FOLDS
from jaxserve.sim.fit.layer_profile import ATTENTION_COLUMNS, SHORTEST_CHUNK, LayerProfile
from jaxserve.sim.machine.cost_model import CostModel

Array = NDArray[np.float64]

_MIN_ROWS = 8
_AXES = ("prompt tokens", "prefix tokens", "sequences", "KV tokens of each")


@dataclass(frozen=True)
class MixedFit:
    """Fit of the term. Errors are relative to the layer that has the kernel."""

    cost: CostModel
    """cost model with the term."""
    rows: int
    """measured rows with prompts and decodes."""
    errors: Array
    """float64[rows], of the fit on the rows it was fitted to."""
    held_out: Array
    """float64[rows], of each third of the rows, by a fit to the others."""
    extrapolations: tuple[Extrapolation, ...]
    """errors on the rows with the largest sizes of each axis, by a fit to the others."""


def fit_mixed(cost: CostModel, profile: LayerProfile, kv_tokens: float) -> MixedFit:
    """Fits the term to the rows that an engine with so many KV tokens can have.

    Args:
      cost: cost model fitted to kernels of prompts and of decodes by themselves.
      profile: all measured rows.
      kv_tokens: KV tokens that fit into the GPU's memory.

    Raises:
      InputError: too few rows mix prompts and decodes.
    """
    *loads, seconds = (profile.attention[name] for name in (*ATTENTION_COLUMNS[:-1], "seconds"))
    chunk, prefix, seqs, context = loads
    chosen = (chunk >= SHORTEST_CHUNK) & (seqs > 0) & (context > 0)
    chosen &= chunk + prefix + seqs * context <= kv_tokens
    if chosen.sum() < _MIN_ROWS:
        raise InputError(
            f"{chosen.sum()} rows of {profile.source} have prompts of {SHORTEST_CHUNK} tokens or "
            f"more and decodes together and fit into the GPU's memory; at least {_MIN_ROWS} are "
            "needed"
        )
    chunk, prefix, seqs, context, seconds = (each[chosen] for each in (*loads, seconds))
    decode_s = cost.decode_attention_s(seqs, seqs * context) / cost.layers
    prefill_s = cost.prefill_constant_s + cost.prefill_attention_s(chunk, prefix) / cost.layers
    whole_s = seconds + cost.linear_s(chunk + seqs) / cost.layers
    terms = np.stack([decode_s, seqs], axis=1) / whole_s[:, None]
    missing = (seconds - prefill_s - decode_s) / whole_s

    def fitted(rows: NDArray[np.bool_]) -> Array:
        return nnls(terms[rows], missing[rows])[0]

    def errors(found: Array, rows: NDArray[np.bool_]) -> Array:
        return terms[rows] @ found - missing[rows]

    everything = np.ones(len(seconds), bool)
    found = fitted(everything)
    held_out = np.empty(len(seconds))
    folds = np.empty(len(seconds), int)
    folds[np.lexsort((context, seqs, prefix, chunk))] = np.arange(len(seconds)) % FOLDS
    for fold in range(FOLDS):
        held_out[folds == fold] = errors(fitted(folds != fold), folds == fold)
    axes: dict[str, Array] = dict(zip(_AXES, (chunk, prefix, seqs, context), strict=True))
    return MixedFit(
        cost=dataclasses.replace(
            cost, mixed_share=float(found[0]), mixed_s_per_sequence=float(found[1])
        ),
        rows=len(seconds),
        errors=errors(found, everything),
        held_out=held_out,
        extrapolations=tuple(
            Extrapolation.of(edge, errors(fitted(~edge.rows), edge.rows)) for edge in edges(axes)
        ),
    )
