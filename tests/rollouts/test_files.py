"""Files are read back as written, in both formats, and are written whole or not at all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.errors import InputError
from jaxserve.rollouts.builders import per_request, prefix_merging
from jaxserve.rollouts.export import exported
from jaxserve.rollouts.files import read_trajectories, write_trajectories
from jaxserve.rollouts.traces import Trajectory
from tests.rollouts.conversation_trees import trees
from tests.rollouts.test_export import trace_of

ENDINGS = (".jsonl", ".parquet")


def plain(trajectory: Trajectory) -> Any:
    """All that a trajectory holds, as JSON has it."""
    options = orjson.OPT_SERIALIZE_NUMPY
    fields = {**vars(trajectory), "traces": [vars(trace) for trace in trajectory.traces]}
    return orjson.loads(orjson.dumps(fields, option=options))


@pytest.mark.parametrize("ending", ENDINGS)
@given(records=trees(), reward=st.none() | st.floats(-1e9, 1e9))
def test_round_trip(
    ending: str, tmp_path_factory: pytest.TempPathFactory, records: Any, reward: float | None
) -> None:
    """Random conversations, by both builders; types of arrays too."""
    path = tmp_path_factory.mktemp("files") / f"all{ending}"
    built = [prefix_merging(records), per_request(records, "TIMEOUT")]
    graded = [
        replace(one, traces=tuple(replace(trace, reward=reward) for trace in one.traces))
        for one in built
    ]
    write_trajectories(path, graded)
    found = read_trajectories(path)
    assert [plain(one) for one in found] == [plain(exported(one)) for one in graded]
    for one, other in zip(found, map(exported, graded), strict=True):
        for trace, was in zip(one.traces, other.traces, strict=True):
            for name in ("prompt_ids", "response_ids", "loss_mask", "response_logprobs"):
                assert getattr(trace, name).dtype == getattr(was, name).dtype
                np.testing.assert_array_equal(getattr(trace, name), getattr(was, name))


@pytest.mark.parametrize("ending", ENDINGS)
def test_nothing_to_write_and_empty_trajectories(ending: str, tmp_path: Path) -> None:
    """A session in which nothing was sampled keeps its reasons."""
    path = tmp_path / f"all{ending}"
    write_trajectories(path, [])
    assert read_trajectories(path) == []
    write_trajectories(path, [Trajectory("ERROR", (), {"client_left": 3}, {"sibling": 1})])
    (found,) = read_trajectories(path)
    assert (found.status, found.traces, found.dropped) == ("ERROR", (), {"client_left": 3})
    assert found.cuts == {"sibling": 1}


@pytest.mark.parametrize("ending", ENDINGS)
def test_files_of_before_are_read(ending: str, tmp_path: Path) -> None:
    """Which have neither counts of failures nor texts of tokens."""
    path = tmp_path / f"all{ending}"
    trace = replace(trace_of([1], [-1]), response_texts=("é",))
    whole = Trajectory("COMPLETED", (trace,), {"x": 2}, failures={"engine_429": 1})
    write_trajectories(path, [whole])
    (found,) = read_trajectories(path)
    assert found.failures == {"engine_429": 1} and list(found.traces[0].response_texts) == ["é"]
    if ending == ".jsonl":
        row = orjson.loads(path.read_bytes())
        del row["failures"], row["traces"][0]["response_texts"]
        path.write_bytes(orjson.dumps(row))
    else:
        rows = parquet.read_table(path).drop_columns("failures").to_pylist()
        del rows[0]["traces"][0]["response_texts"]
        parquet.write_table(pa.Table.from_pylist(rows), path)
    (found,) = read_trajectories(path)
    assert (found.failures, found.dropped, found.trainable) == ({}, {"x": 2}, 1)
    assert list(found.traces[0].response_texts) == []


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_filler_does_not_leave(ending: str, tmp_path: Path) -> None:
    """Writing is export: the turn is masked and its tokens are counted."""
    path = tmp_path / f"all{ending}"
    write_trajectories(path, [Trajectory("COMPLETED", (trace_of([1, 0, 1], [-1, -1, -9999]),))])
    (found,) = read_trajectories(path)
    assert found.trainable == 1 and found.dropped == {"logprob_filler": 1}
    assert found.traces[0].response_logprobs.tolist() == [-1, 0, 0]


@pytest.mark.parametrize("ending", ENDINGS)
def test_what_cannot_be_written(ending: str, tmp_path: Path) -> None:
    """A reward that is no number; the file before stays."""
    path = tmp_path / f"all{ending}"
    write_trajectories(path, [])
    before = path.read_bytes()
    bad = replace(trace_of([1], [-1]), reward=float("nan"))
    with pytest.raises(InputError, match="reward of a trace is nan; it must be a finite number"):
        write_trajectories(path, [Trajectory("COMPLETED", (bad,))])
    assert path.read_bytes() == before and [file.name for file in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("a.csv", b"", "must be a path that ends in .jsonl or .parquet"),
        ("a.jsonl", b"{", "does not hold trajectories"),
        ("a.jsonl", b"[]\n", "does not hold trajectories"),
        ("a.jsonl", b'{"status": "COMPLETED"}\n', "does not hold trajectories"),
        ("a.jsonl", b'{"status": "DONE", "traces": []}\n', "must be one of COMPLETED"),
        ("a.parquet", b"PAR1", "does not hold trajectories"),
        ("gone.jsonl", None, "it must be a file"),
    ],
)
def test_what_cannot_be_read(name: str, data: bytes | None, said: str, tmp_path: Path) -> None:
    """The error is one sentence with the file's name."""
    if data is not None:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError, match=said):
        read_trajectories(tmp_path / name)


def test_traces_are_strict(tmp_path: Path) -> None:
    """Lengths that differ in a file are refused as anywhere."""
    path = tmp_path / "a.jsonl"
    write_trajectories(path, [Trajectory("COMPLETED", (trace_of([1], [-1]),))])
    path.write_bytes(path.read_bytes().replace(b'"loss_mask":[1]', b'"loss_mask":[1,0]'))
    with pytest.raises(InputError, match="lengths of a trace"):
        read_trajectories(path)
