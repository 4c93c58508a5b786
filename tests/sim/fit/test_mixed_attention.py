"""Attention of iterations that mix prompts and decodes."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.errors import InputError
from jaxserve.sim.fit.kernel_table import fit_kernels
from jaxserve.sim.fit.layer_profile import LayerProfile
from jaxserve.sim.fit.mixed_attention import fit_mixed
from jaxserve.sim.machine.cost_json import cost_from_dict, cost_to_dict
from jaxserve.sim.machine.cost_model import CostModel
from tests.sim.fit.kernel_samples import GPU, MODEL, write_profile

_COST = CostModel.of(GPU, MODEL)


def _profile(cost: CostModel) -> LayerProfile:
    """The times of a cost model, on a small grid."""
    points = [
        point
        for point in itertools.product(
            (0, 128, 512, 2048), (0, 1024), (0, 1, 8, 64), (0, 128, 1024)
        )
        if bool(point[2]) == bool(point[3])
    ]
    chunk, prefix, seqs, context = np.array(points, float).T
    seconds = np.array(
        [
            cost.decode_attention_s(n, n * k)
            + (c > 0) * (cost.layers * cost.prefill_constant_s + cost.prefill_attention_s(c, p))
            + (c > 0) * cost.mixed_s(n, n * k)
            for c, p, n, k in points
        ]
    )
    names = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "seconds")
    columns = (chunk, prefix, seqs, context, seconds / cost.layers)
    return LayerProfile({}, {}, dict(zip(names, columns, strict=True)), "the profile")


@given(st.floats(0.0, 3.0), st.floats(0.0, 3e-6))
def test_the_term_is_found(share: float, each_s: float) -> None:
    """Also by fits that were shown two thirds of the rows, or the smaller ones."""
    truth = dataclasses.replace(_COST, mixed_share=share, mixed_s_per_sequence=each_s)
    found = fit_mixed(_COST, _profile(truth), 200_000)
    assert found.cost.mixed_share == pytest.approx(share, abs=1e-6)
    assert found.cost.mixed_s_per_sequence == pytest.approx(each_s, abs=1e-12)
    assert np.abs(found.held_out).max() < 1e-6
    assert len(found.extrapolations) == 4
    assert all(edge.error < 1e-6 for edge in found.extrapolations)


def test_rows_that_memory_does_not_hold_say_nothing() -> None:
    """Without any others the profile is refused."""
    with pytest.raises(InputError, match=r"0 rows of the profile have prompts of 128 tokens"):
        fit_mixed(_COST, _profile(_COST), 200)


@given(st.integers(0, 256), st.integers(1, 4096), st.integers(0, 4096), st.integers(0, 3))
def test_only_mixed_iterations_take_longer(seqs: int, context: int, chunk: int, depth: int) -> None:
    """By the term, in a cost model with and without terms of a stack; decodes alone by nothing."""
    slow = dataclasses.replace(_COST, mixed_share=1.5, mixed_s_per_sequence=1e-6)
    load = {"decode_seqs": seqs, "kv_tokens": seqs * context, "speculation_depth": depth}
    chunks = ((chunk, 0),) if chunk else ()
    longer_s = slow.iteration_s(**load, chunks=chunks) - _COST.iteration_s(**load, chunks=chunks)
    expected_s = float(slow.mixed_s(seqs, seqs * context)) if chunk else 0.0
    assert longer_s == pytest.approx(expected_s, rel=1e-9, abs=1e-12)
    added_s = slow.prefill_added_s(seqs, chunk) - _COST.prefill_added_s(seqs, chunk)
    assert float(added_s) >= 0.0
    assert float(added_s) > 0.0 or not (chunk and seqs)


def test_a_table_keeps_the_term() -> None:
    """A table without it is written as ever."""
    slow = dataclasses.replace(_COST, mixed_share=1.5, mixed_s_per_sequence=1e-6)
    assert cost_from_dict(cost_to_dict(slow)) == slow
    assert not {"mixed_share", "mixed_s_per_sequence"} & {*cost_to_dict(_COST)}
    assert cost_from_dict(cost_to_dict(_COST)) == _COST


def test_mixed_rows_that_no_term_explains_leave_no_table(tmp_path: Path) -> None:
    """They are judged by themselves, with the same bound as kernels."""

    def scattered(text: str) -> str:
        lines = text.split("\n")
        for i, line in enumerate(lines):
            cells = line.split(",")
            if len(cells) == 5 and cells[0].isdecimal() and int(cells[0]) and int(cells[2]):
                cells[4] = repr(float(cells[4]) * (1.0, 6.0)[i % 2])
                lines[i] = ",".join(cells)
        return "\n".join(lines)

    out = tmp_path / "out.parquet"
    with pytest.raises(InputError, match="off in prompts beside decodes"):
        fit_kernels(write_profile(tmp_path, GPU, scattered), GPU, MODEL, out)
    assert not out.exists()
