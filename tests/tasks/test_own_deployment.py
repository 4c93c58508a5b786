"""A user's own server: the table says what it was measured on, and nothing is assumed."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from jaxserve.errors import InputError
from jaxserve.sim.table.file import read_table_file, table_path, write_table_file
from jaxserve.tasks.own_deployment import (
    OWN_KNOBS,
    OwnDeployment,
    own_slos,
    with_own_deployment,
)
from jaxserve.tasks.spec import load_task

REPLAY = load_task("trace_replay")


@pytest.fixture
def table(tmp_path: Path) -> str:
    """A table of the user's: another model than the task's, on two GPUs of another kind."""
    file = read_table_file("qwen2.5-32b__h100-sxm-80gb")
    metadata = dataclasses.replace(file.metadata, tensor_parallel=2)
    write_table_file(tmp_path / "mine.parquet", dataclasses.replace(file, metadata=metadata))
    return str(tmp_path / "mine.parquet")


@pytest.fixture
def trace(tmp_path: Path) -> str:
    """A trace of the user's."""
    path = tmp_path / "mine.csv"
    path.write_text("Timestamp,Request tokens,Response tokens\n1,100,20\n900,100,20\n")
    return str(path)


def test_the_table_says_what_it_was_measured_on(table: str) -> None:
    """Model, GPU and tensor parallelism come from the table."""
    spec, files = with_own_deployment(REPLAY, OwnDeployment(table=table))
    assert files == {"hardware": "h100-sxm-80gb", "model": "qwen2.5-32b", "table": table}
    assert spec.deployment.tensor_parallel == 2
    named = OwnDeployment(table=table, model="qwen2.5-32b", tensor_parallel=2)
    assert with_own_deployment(REPLAY, named) == (spec, files)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"model": "llama-3.1-8b"}, "measured on model qwen2.5-32b; model is llama-3.1-8b"),
        ({"hardware": "a100-sxm-80gb"}, "measured on hardware h100-sxm-80gb; hardware is a100"),
        ({"tensor_parallel": 1}, "measured with tensor_parallel 2; tensor_parallel is 1"),
    ],
)
def test_a_table_that_contradicts(table: str, said: dict[str, Any], message: str) -> None:
    """One sentence says what the table is of, and what was named."""
    with pytest.raises(InputError, match=message):
        with_own_deployment(REPLAY, OwnDeployment(table=table, **said))


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"ttft_s": 1000.0}, r"ttft is 1000.0; it must be in seconds, from 0.001 to 120"),
        ({"ttft_s": float("nan")}, "ttft is nan"),
        ({"tpot_s": 50.0}, r"tpot is 50.0; it must be in seconds, from 0.0001 to 10"),
        ({"tpot_s": 0.0}, "tpot is 0.0"),
        ({"gpus": 0}, "gpus is 0; it must be a whole number from 1 to 8"),
        ({"tensor_parallel": 65}, "tensor_parallel is 65"),
        ({"token_budget": 0}, "token_budget is 0"),
        ({"knobs": ("cap",)}, "a knob is 'cap'"),
        ({"knobs": ()}, "knobs is"),
        ({"table": "none.parquet"}, "table file none.parquet does not exist"),
    ],
)
def test_out_of_range(said: dict[str, Any], message: str) -> None:
    """A slip of units is a slip, and not an objective that everything meets."""
    with pytest.raises(InputError, match=message):
        with_own_deployment(REPLAY, OwnDeployment(**said))


def test_nothing_is_assumed_of_a_server_of_ones_own(table: str, trace: str) -> None:
    """No drafts, no other number format, no memory limit that nobody mentioned; a user may open
    more knobs."""
    for said in ({"table": table}, {"trace": trace}, {"table": table, "trace": trace}):
        spec, _ = with_own_deployment(REPLAY, OwnDeployment(**said))
        assert spec.knobs == OWN_KNOBS and spec.objective.memory_weight == 0.0
    more = OwnDeployment(trace=trace, knobs=("batch_cap", "speculation_depth"))
    assert with_own_deployment(REPLAY, more)[0].knobs == ("batch_cap", "speculation_depth")


def test_a_task_stays_what_it_is(tmp_path: Path) -> None:
    """Another GPU, or a copy of the task's own table and trace, leaves its knobs and its limit; a
    task file's knobs are its user's."""
    assert with_own_deployment(REPLAY, OwnDeployment()) == (REPLAY, {})
    copy = tmp_path / "copy.parquet"
    copy.write_bytes(table_path(f"{REPLAY.model}__{REPLAY.hardware}").read_bytes())
    for said in ({"hardware": "h100-sxm-80gb"}, {"table": str(copy)}, {"trace": REPLAY.trace}):
        spec, _ = with_own_deployment(REPLAY, OwnDeployment(**said))
        assert spec == REPLAY
    mine = dataclasses.replace(REPLAY, file=tmp_path / "mine.json")
    table = OwnDeployment(table="llama-3.1-8b__h100-sxm-80gb")
    assert with_own_deployment(mine, table)[0].knobs == REPLAY.knobs


def test_numbers_replace_the_tasks() -> None:
    """Objectives, replicas and the token budget of the user's own."""
    said = OwnDeployment(ttft_s=1.5, tpot_s=0.02, gpus=4, tensor_parallel=2, token_budget=1024)
    spec, _ = with_own_deployment(REPLAY, said)
    assert (spec.streams[0].ttft_slo_s, spec.streams[0].tpot_slo_s) == (1.5, 0.02)
    deployment = spec.deployment
    assert (deployment.num_gpus, deployment.tensor_parallel) == (4, 2)
    assert deployment.token_budget == 1024


def test_objectives_of_kinds() -> None:
    """Each kind once, and not beside objectives of all requests."""
    found = own_slos(OwnDeployment(slos=("chat:ttft=0.5,tpot=0.05", "bulk:ttft=9,tpot=1")))
    assert found is not None and found["bulk"].ttft_s == 9.0 and own_slos(OwnDeployment()) is None
    with pytest.raises(InputError, match="objectives of 'chat' twice"):
        own_slos(OwnDeployment(slos=("chat:ttft=1,tpot=1", "chat:ttft=2,tpot=1")))
    with pytest.raises(InputError, match="leave out --ttft and --tpot, or --slo"):
        own_slos(OwnDeployment(slos=("chat:ttft=1,tpot=1",), ttft_s=1.0))
