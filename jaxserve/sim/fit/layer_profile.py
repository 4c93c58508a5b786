"""Layer profiles of LLMServingSim: seconds of each layer of a served model, in three CSV files.

| columns | what a row is |
|---|---|
| layer, tokens, time_us | one layer at so many tokens: products, norms, activation |
| layer, sequences, time_us | output head and sampler at so many sequences |
| prefill_chunk, kv_prefill, n_decode, kv_decode, time_us | attention of one layer |

Attention is of a chunk after a prefix, of decoding sequences with so many KV tokens each, or of
both at once.
"""

import math
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from jaxserve.errors import InputError
from jaxserve.sim.fit.columns import numbers, read_columns
from jaxserve.sim.fit.kernel_rows import KernelRows

Array = NDArray[np.float64]
Curves = dict[str, tuple[Array, Array]]

DENSE_COLUMNS = ("layer", "tokens", "time_us")
PER_SEQUENCE_COLUMNS = ("layer", "sequences", "time_us")
ATTENTION_COLUMNS = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us")
PRODUCTS = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")
OTHERS = ("layernorm", "qk_norm", "rotary_emb", "act_fn", "embedding", "final_layernorm")
"""Layers of a dense model beside its products; not every model has all."""
SHORTEST_CHUNK = 128
"""Tokens. A shorter chunk fills a part of one tile of queries, for which it pays whole: the cost
model, which counts pairs, says too little of it where its prefix is long."""


@dataclass(frozen=True)
class LayerProfile:
    """A profile as it was read."""

    dense: Curves
    """per layer: tokens in ascending order, seconds."""
    per_sequence: Curves
    """per layer: sequences in ascending order, seconds."""
    attention: dict[str, Array]
    """``ATTENTION_COLUMNS``, the time as ``seconds``."""
    source: str
    """file of the attention, for errors."""

    @classmethod
    def read(cls, dense: Path, per_sequence: Path, attention: Path) -> "LayerProfile":
        """Reads a profile from its three files.

        Raises:
          InputError: one is not readable, or has other than numbers where they belong.
        """
        columns, where = read_columns(attention), f"attention profile {attention}"
        read = {name: numbers(columns, name, where) for name in ATTENTION_COLUMNS}
        read["seconds"] = read.pop("time_us") * 1e-6
        return cls(_curves(dense, "tokens"), _curves(per_sequence, "sequences"), read, where)

    def rows(self, layers: int) -> dict[str, KernelRows]:
        """Measured rows of each kind of kernel of a dense model; see ``kernel_fit``.

        Raises:
          InputError: the layers are not those of a dense model, or were not measured at the same
            sizes.
        """
        unknown = sorted({*self.dense} - {*PRODUCTS, *OTHERS})
        missing = [layer for layer in PRODUCTS if layer not in self.dense]
        if unknown or missing:
            what = f"{unknown[0]!r}, which is unknown" if unknown else f"no {missing[0]!r}"
            raise InputError(
                f"the layer profile has {what}; a dense model has {', '.join(PRODUCTS)} and of "
                f"{', '.join(OTHERS)} those that it runs"
            )
        tokens, linear_s = _total(self.dense, dict.fromkeys(PRODUCTS, 1.0))
        times = times_run(self.dense, layers)
        others = {layer: times[layer] / layers for layer in OTHERS if layer in self.dense}
        zeros = np.zeros(len(tokens))
        found = {"linear": KernelRows(tokens, zeros, linear_s)}
        if others:
            sizes, others_s = _total(self.dense, others)
            if not np.array_equal(sizes, tokens):
                raise InputError("the layer profile has not all layers at the same tokens")
            found["elementwise"] = KernelRows(tokens, zeros, others_s)
        rows, head_s = _total(self.per_sequence, dict.fromkeys(self.per_sequence, 1.0))
        found["head"] = KernelRows(rows, np.zeros(len(rows)), head_s)
        chunk, prefix, seqs, context, seconds = self.attention.values()
        alone = (chunk == 0) & (seqs > 0)
        found["decode"] = KernelRows(seqs[alone], context[alone], seconds[alone])
        alone = (seqs == 0) & (chunk >= SHORTEST_CHUNK)
        found["prefill"] = KernelRows(
            np.ones(int(alone.sum())), chunk[alone], seconds[alone], prefix=prefix[alone]
        )
        return found


class ProfileTimer:
    """Iteration times interpolated in a layer profile; an ``IterationTimer``.

    Dense layers are interpolated in tokens, head and sampler in sequences, attention in the four
    axes (chunk, its prefix, decoding sequences, KV of each). Decodes count as equally long, and
    several chunks as one of the same work.
    """

    def __init__(self, profile: LayerProfile, layers: int, host_s: float = 0.0) -> None:
        """
        Args:
          layers: transformer layers; dense layers run once in each, but for embedding and norms.
          host_s: seconds of an iteration outside its kernels.

        Raises:
          InputError: the attention was not measured on a complete grid.
        """
        self._layers, self._host_s = layers, host_s
        self._tokens, self._dense_s = _total(profile.dense, times_run(profile.dense, layers))
        head = dict.fromkeys(profile.per_sequence, 1.0)
        self._sequences, self._head_s = _total(profile.per_sequence, head)
        self._axes, self._attention_s = _attention_grid(profile)

    @property
    def most_tokens(self) -> int:
        """Most tokens of an iteration that was profiled."""
        return int(self._tokens[-1])

    @property
    def most_sequences(self) -> int:
        """Most sequences of an iteration that was profiled."""
        return int(self._sequences[-1])

    def iteration_s(
        self,
        *,
        decode_seqs: int,
        kv_tokens: float,
        chunks: tuple[tuple[int, int], ...] = (),
        speculation_depth: int = 0,
        tier: int = 0,
    ) -> float:
        """Seconds of one iteration; the profile knows neither speculation nor tiers.

        Args:
          decode_seqs: sequences that decode.
          kv_tokens: KV tokens of all of them together.
          chunks: (tokens, tokens before them) of each prompt chunk.
          speculation_depth: without effect.
          tier: without effect.
        """
        tokens = decode_seqs + sum(chunk for chunk, _ in chunks)
        dense_s = np.interp(tokens, self._tokens, self._dense_s)
        head_s = np.interp(decode_seqs + len(chunks), self._sequences, self._head_s)
        chunk = math.sqrt(sum(chunk * chunk for chunk, _ in chunks))
        prefix = sum(chunk * prefix for chunk, prefix in chunks) / chunk if chunks else 0.0
        context = kv_tokens / decode_seqs if decode_seqs else 0.0
        return float(
            self._host_s
            + dense_s
            + head_s
            + self._layers * self.attention_s(chunk, prefix, decode_seqs, context)
        )

    def attention_s(self, *point: float) -> float:
        """Attention of one layer at (chunk, prefix, decoding sequences, KV tokens of each)."""
        corners = [(1.0, self._attention_s)]
        for axis, x in zip(self._axes, point, strict=True):
            low = min(max(bisect_right(axis, x) - 1, 0), len(axis) - 2)
            share = (x - axis[low]) / (axis[low + 1] - axis[low])
            corners = [
                (weight * part, values[low + side])
                for weight, values in corners
                for side, part in ((0, 1 - share), (1, share))
                if part
            ]
        return sum(weight * seconds for weight, seconds in corners)


def times_run(dense: Curves, layers: int) -> dict[str, float]:
    """Times that an iteration runs each layer."""
    once = {"embedding": 1, "final_layernorm": 1, "layernorm": 2 * layers}
    return {layer: float(once.get(layer, layers)) for layer in dense}


def _curves(path: Path, size: str) -> Curves:
    columns, where = read_columns(path), f"layer profile {path}"
    sizes, seconds = numbers(columns, size, where), numbers(columns, "time_us", where) * 1e-6
    layers, curves = columns["layer"].astype(str), {}
    for layer in np.unique(layers):
        rows = np.flatnonzero(layers == layer)
        rows = rows[np.argsort(sizes[rows])]
        curves[str(layer)] = (sizes[rows], seconds[rows])
    return curves


def _total(curves: Curves, times: dict[str, float]) -> tuple[Array, Array]:
    """Sizes, and the seconds of the layers that ``times`` names, each so often.

    Raises:
      InputError: they were not measured at the same sizes.
    """
    sizes = curves[next(iter(times))][0]
    for layer in times:
        if not np.array_equal(curves[layer][0], sizes):
            raise InputError(f"the layer profile has {layer!r} at other sizes than other layers")
    return sizes, np.sum([count * curves[layer][1] for layer, count in times.items()], axis=0)


def _attention_grid(profile: LayerProfile) -> tuple[list[list[float]], list]:
    """Axes of the attention profile and seconds as nested lists, gaps filled by what they mean.

    Without a chunk the prefix has no meaning, without decodes their KV has none, and a decode's KV
    is never shorter than the profile's shortest.
    """
    *loads, seconds = profile.attention.values()
    # A second sweep lies between the powers of two, which alone are a complete grid.
    whole = np.all([np.log2(np.maximum(load, 1)) % 1 == 0 for load in loads], axis=0)
    axes, places = zip(
        *(np.unique(load[whole], return_inverse=True) for load in loads), strict=True
    )
    if min(map(len, axes)) < 2:
        raise InputError(f"{profile.source} is not a complete grid")
    grid = np.full([len(axis) for axis in axes], np.nan)
    grid[places] = seconds[whole]
    grid[0, :, 0, :] = 0.0
    grid[0, :, 1:, :] = grid[0, :1, 1:, :]
    grid[:, :, 0, :] = grid[:, :, 0, :1]
    grid[:, :, 1:, 0] = grid[:, :, 1:, 1]
    # The widest batch was profiled only without a chunk: a chunk adds what it adds one step below.
    widest_s = grid[1:, :, -2] + grid[:1, :, -1] - grid[:1, :, -2]
    grid[1:, :, -1] = np.where(np.isnan(grid[1:, :, -1]), widest_s, grid[1:, :, -1])
    if np.isnan(grid).any():
        raise InputError(f"{profile.source} is not a complete grid")
    return [axis.tolist() for axis in axes], grid.tolist()
