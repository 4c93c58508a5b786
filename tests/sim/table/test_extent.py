"""What a load test covered, and the warning of what lies beyond."""

from __future__ import annotations

import dataclasses
import json
import warnings
from pathlib import Path

import numpy as np
import pytest

import jaxserve
from jaxserve import cli
from jaxserve.checks import JsonObject
from jaxserve.errors import InputError, InputWarning
from jaxserve.sim.table.extent import Extent, warn_beyond
from jaxserve.sim.table.file import TableFile, read_table_file, write_table_file

_TABLE = "llama-3.1-8b__a100-sxm-40gb"
_MEASURED = Extent.of_rows([4, 64], [128, 2048], [128, 512])


def _table(path: Path, measured: Extent) -> str:
    file = read_table_file(_TABLE)
    metadata = dataclasses.replace(file.metadata, measured=measured)
    write_table_file(path, TableFile(metadata, file.columns))
    return str(path)


def test_the_ends_of_what_was_measured() -> None:
    """Prompts and sequences of the rows, and of requests without the tails."""
    assert Extent((4, 64), (128, 2048), (256, 2560)) == _MEASURED
    lengths = np.concatenate([np.full(90, 1000), [10] * 5, [9000] * 5])
    asked = Extent.of_requests(32, lengths, np.full(100, 24))
    assert asked.prompts[0] > 10 and asked.sequences[1] < 9024
    assert asked.beyond(Extent((1, 32), (900, 1500), (900, 1600))) is None


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (Extent((1, 64), (128, 2048), (256, 2560)), None),
        (Extent((1, 65), (128, 2048), (256, 2560)), "1 to 65 requests in flight (4 to 64)"),
        (Extent((1, 1), (64, 2048), (256, 2560)), "64 to 2,048 tokens in a prompt (128 to 2,048)"),
        (Extent((1, 1), (128, 128), (256, 9000)), "256 to 9,000 tokens in a sequence (256 to 2"),
    ],
)
def test_what_lies_beyond_is_said(asked: Extent, said: str | None) -> None:
    """By its name; one request in flight is not beyond."""
    found = asked.beyond(_MEASURED)
    assert found is None if said is None else found is not None and said in found
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_beyond(None, asked)


def test_it_is_kept_in_the_file(tmp_path: Path) -> None:
    """And refused where it is not one."""
    path = _table(tmp_path / "mine.parquet", _MEASURED)
    assert read_table_file(path).metadata.measured == _MEASURED
    assert read_table_file(_TABLE).metadata.measured is None
    with pytest.raises(InputError, match="prompts"):
        Extent.from_dict(JsonObject({"in_flight": [1, 2], "prompts": [1]}, "measured"))


def test_a_task_beyond_a_table_warns(tmp_path: Path) -> None:
    """Where its prompts or its batch cap leave it, and not where they do not."""
    narrow = _table(tmp_path / "narrow.parquet", _MEASURED)
    wide = _table(tmp_path / "wide.parquet", Extent((1, 512), (1, 1e5), (1, 1e5)))
    with pytest.warns(InputWarning, match="to 512 requests in flight .4 to 64."):
        jaxserve.make("static_workload", table=narrow)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jaxserve.make("static_workload", table=wide)


def test_a_log_beyond_a_table_warns_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the command line prints warnings."""
    path = tmp_path / "log.jsonl"
    names = ("queued_ts", "input_toks", "output_toks", "first_token_ts", "last_token_ts")
    rows = [(float(i), 3000, 20, i + 0.1, i + 0.6) for i in range(4)]
    path.write_text("\n".join(json.dumps(dict(zip(names, row, strict=True))) for row in rows))
    table = _table(tmp_path / "mine.parquet", _MEASURED)
    assert cli.main(["simulate", str(path), "--table", table, "--batch-cap", "8"]) == 0
    said = capsys.readouterr().err
    assert said.startswith("jaxserve: there are 3,000 to 3,000 tokens in a prompt (128 to 2,048)")
    assert said.count("\n") == 1
