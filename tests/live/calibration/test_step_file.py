"""Iterations that somebody measured one by one become a table."""

from __future__ import annotations

import dataclasses
import itertools
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve import cli
from jaxserve.errors import InputError
from jaxserve.live.calibration.step_file import read_steps, table_of_steps
from jaxserve.live.calibration.steps import Steps
from jaxserve.sim.machine.cost_model import CostModel
from jaxserve.sim.machine.hardware import load_gpu
from jaxserve.sim.machine.models import load_model
from jaxserve.sim.table.file import read_table_file
from tests.examples_drawn import FEW

_GPU, _MODEL = load_gpu("l40s-48gb"), load_model("llama-3.1-8b")
_COST = CostModel.of(_GPU, _MODEL)
_HEADER = "seconds,decode_seqs,kv_tokens,prompt_tokens,prefix_tokens"


def _rows() -> list[tuple[float, int, float, int, int]]:
    """Every load once, as a profiler has them."""
    rows = []
    for seqs, context, chunk, prefix in itertools.product(
        (0, 1, 8, 64), (200, 2000), (0, 128, 1024), (0, 2048)
    ):
        if (seqs or chunk) and (seqs or context == 200) and (chunk or not prefix):
            chunks = ((chunk, prefix),) if chunk else ()
            seconds = _COST.iteration_s(
                decode_seqs=seqs, kv_tokens=float(seqs * context), chunks=chunks
            )
            rows.append((seconds, seqs, float(seqs * context), chunk, prefix))
    return rows


def _csv(path: Path, change: Callable[[str], str] = str) -> Path:
    lines = [",".join(map(repr, row)) for row in _rows()]
    path.write_text(change("\n".join([_HEADER, *lines])))
    return path


def _steps() -> Steps:
    with tempfile.TemporaryDirectory() as folder:
        return read_steps(_csv(Path(folder) / "steps.csv"))


def test_a_profile_becomes_a_table(tmp_path: Path) -> None:
    """Loads that were measured once each count, and the table has their times."""
    steps = read_steps(_csv(tmp_path / "steps.csv"))
    assert len(steps) == len(_rows())
    found, table = table_of_steps(steps, _GPU, _MODEL, 1, 2048, "steps.csv")
    assert found.points == len(steps) and found.held_out_error < 0.05
    cost = table.metadata.cost_model
    load = {"decode_seqs": 32, "kv_tokens": 32e3, "chunks": ((512, 0),)}
    assert cost.iteration_s(**load) == pytest.approx(_COST.iteration_s(**load), rel=0.08)


def test_parquet_is_the_same(tmp_path: Path) -> None:
    """Columns by their names."""
    columns = dict(zip(_HEADER.split(","), zip(*_rows(), strict=True), strict=True))
    parquet.write_table(pa.table({n: list(v) for n, v in columns.items()}), tmp_path / "s.parquet")
    first, second = read_steps(tmp_path / "s.parquet"), read_steps(_csv(tmp_path / "s.csv"))
    for name in ("seconds", "decode_tokens", "kv_tokens", "pairs", "depth"):
        np.testing.assert_allclose(getattr(first, name), getattr(second, name))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace("kv_tokens", "kv"), "column 'kv' is unknown; it has seconds"),
        (lambda text: "\n".join(text.split("\n")[:5]), "number of rows of .* is 4; it must be"),
        (lambda text: text.replace(",1,", ",-1,", 1), "row .*, column decode_seqs is -1; it"),
        (lambda text: text.replace(",64,", ",many,", 1), "column decode_seqs has other than"),
        (lambda text: re.sub("\n[^,]*", "\n0", text, count=2), "row 1, column seconds is 0.0;"),
        (lambda text: "", "has no rows"),
    ],
)
def test_what_is_refused(change: Callable[[str], str], message: str, tmp_path: Path) -> None:
    """With the file, and the row or the column."""
    with pytest.raises(InputError, match=message):
        read_steps(_csv(tmp_path / "steps.csv", change))


@given(factor=st.sampled_from([1e-6, 1e-3, 1e3, 1e6]), scatter=st.floats(0.5, 2.0))
@FEW
def test_other_units_are_refused(factor: float, scatter: float) -> None:
    """Milliseconds of any GPU that is about as fast as the one that is named, and the reverse."""
    steps = _steps()
    with pytest.raises(
        InputError, match=r"column seconds is .* times what is expected; times must"
    ):
        other = dataclasses.replace(steps, seconds=factor * scatter * steps.seconds)
        table_of_steps(other, _GPU, _MODEL, 1, 2048, "steps.csv")


def test_milliseconds_leave_no_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a non-zero exit."""

    def milliseconds(text: str) -> str:
        return re.sub("\n([^,]*)", lambda found: f"\n{1e3 * float(found[1])!r}", text)

    out = tmp_path / "mine.parquet"
    options = ["--hardware", "l40s-48gb", "--model", "llama-3.1-8b", "--out", str(out)]
    path = _csv(tmp_path / "ms.csv", milliseconds)
    assert cli.main(["table", "fit-steps", str(path), *options]) == 2
    assert "column seconds is 1e+03 times" in capsys.readouterr().err
    assert not out.exists()


def test_a_slower_gpu_is_none_of_another_unit() -> None:
    """Ten times is a difference of hardware."""
    steps = _steps()
    slower = dataclasses.replace(steps, seconds=10 * steps.seconds)
    assert table_of_steps(slower, _GPU, _MODEL, 1, 2048, "steps.csv")[0].held_out_error < 0.05


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It says how far off the fit is; rows that no engine can have given leave no table."""
    out = tmp_path / "mine.parquet"
    options = ["--hardware", "l40s-48gb", "--model", "llama-3.1-8b", "--out", str(out)]
    good = _csv(tmp_path / "good.csv")
    assert cli.main(["table", "fit-steps", str(good), *options]) == 0
    assert "held out" in capsys.readouterr().out
    assert read_table_file(out).metadata.source.endswith("tiers and depths are copies of one")
    out.unlink()
    rng = np.random.default_rng(0)

    def shuffled(text: str) -> str:
        header, *lines = text.split("\n")
        seconds = rng.permutation([line.split(",", 1)[0] for line in lines])
        rests = [line.split(",", 1)[1] for line in lines]
        return "\n".join([header, *map(",".join, zip(seconds, rests, strict=True))])

    assert cli.main(["table", "fit-steps", str(_csv(tmp_path / "b.csv", shuffled)), *options]) == 2
    assert "so no table was written" in capsys.readouterr().err
    assert not out.exists()
