"""Kernel files are known by their columns, and what is unknown is said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.parquet as parquet
import pytest

from jaxserve.errors import InputError
from jaxserve.sim.fit.kernel_files import read_kernels
from tests.sim.fit.kernel_samples import MODEL, write_kernels, write_profile


def test_kinds_are_told_by_columns(tmp_path: Path) -> None:
    """In any order and under any name, parquet or CSV."""
    paths = write_kernels(tmp_path)
    measured = read_kernels(paths, MODEL, 1)
    assert (measured.source, measured.profile) == ("kernels of VLLM 1.2", None)
    renamed = [tmp_path / f"{i}.txt" for i in range(3)]
    for path, to in zip(paths, renamed, strict=True):
        pyarrow.csv.write_csv(parquet.read_table(path), to)
    again = read_kernels(renamed[::-1], MODEL, 1)
    assert list(again.rows) == list(measured.rows) == ["linear", "decode", "prefill"]
    for kind, rows in measured.rows.items():
        assert rows.seconds.tolist() == again.rows[kind].seconds.tolist()


def test_a_profile_is_one_too(tmp_path: Path) -> None:
    """Its timer comes with it."""
    measured = read_kernels(write_profile(tmp_path)[::-1], MODEL, 1)
    assert "head" in measured.rows and measured.profile is not None
    assert "microseconds" in measured.unit


def test_errors_are_relative_to_a_layer(tmp_path: Path) -> None:
    """The kernel and the layer's products beside it, at as many tokens; of the head all layers."""
    rows = read_kernels(write_profile(tmp_path), MODEL, 1).rows
    layer_s = rows["linear"].seconds + rows["elementwise"].seconds
    assert rows["linear"].whole_s is None
    head, decode, prefill = (rows[kind] for kind in ("head", "decode", "prefill"))
    assert rows["elementwise"].whole_s == pytest.approx(layer_s)
    assert head.whole_s == pytest.approx(head.seconds + MODEL.layers * layer_s[: len(head.size)])
    for each, tokens in ((decode, decode.size), (prefill, prefill.size * prefill.length)):
        beside_s = np.interp(tokens, rows["linear"].size, layer_s)
        assert each.whole_s == pytest.approx(each.seconds + beside_s)


def test_prompts_beyond_the_products_have_longer_layers(tmp_path: Path) -> None:
    """In proportion to their tokens."""
    rows = read_kernels(write_kernels(tmp_path), MODEL, 1).rows
    linear, prefill = rows["linear"], rows["prefill"]
    assert prefill.whole_s is not None
    beside_s = prefill.whole_s - prefill.seconds
    longest = (prefill.size * prefill.length).argmax()
    factor = 256 * 16384 / linear.size[-1]
    assert beside_s[longest] == pytest.approx(factor * linear.seconds[-1])


def test_rows_in_other_formats_are_counted(tmp_path: Path) -> None:
    """And change nothing."""
    paths = write_kernels(tmp_path)
    before = read_kernels(paths, MODEL, 1)
    table = parquet.read_table(paths[0])
    place = table.schema.get_field_index("gemm_dtype")
    other = table.slice(0, 5).set_column(place, "gemm_dtype", [["fp8"] * 5])
    parquet.write_table(pyarrow.concat_tables([table, other]), paths[0])
    after = read_kernels(paths, MODEL, 1)
    assert (before.left_out, after.left_out) == ({}, {"fp8": 5})
    assert after.rows["linear"].seconds.tolist() == before.rows["linear"].seconds.tolist()


def _drop(name: str) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        path = directory / "gemm_perf.parquet"
        parquet.write_table(parquet.read_table(path).drop_columns([name]), path)

    return change


def _set(name: str, value: str) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        path = directory / "generation_attention_perf.parquet"
        table = parquet.read_table(path)
        place = table.schema.get_field_index(name)
        parquet.write_table(table.set_column(place, name, [[value] * len(table)]), path)

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_drop("latency"), r"gemm_perf\.parquet has the columns .*, which are of no known kind"),
        (_set("op_name", "mla"), "has op_name mla; it must be one of generation_attention, "),
        (_set("op_name", "context_attention"), "are both context_attention_perf"),
        (_set("device", "B"), "the kernels are of several GPUs: B, a GPU"),
    ],
)
def test_what_is_refused(tmp_path: Path, change: Callable[[Path], None], message: str) -> None:
    """Other columns, other operations, files of one kind or of several GPUs."""
    paths = write_kernels(tmp_path)
    change(tmp_path)
    with pytest.raises(InputError, match=message):
        read_kernels(paths, MODEL, 1)


def test_all_files_are_needed(tmp_path: Path) -> None:
    """Of one form."""
    kernels, profile = write_kernels(tmp_path), write_profile(tmp_path)
    for paths in (kernels[:2], profile[1:], [*kernels[:2], profile[2]], []):
        with pytest.raises(InputError, match=r"needed are gemm_perf, .* of a layer profile"):
            read_kernels(paths, MODEL, 1)
