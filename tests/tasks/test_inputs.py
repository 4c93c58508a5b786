"""What an environment is built from: the same for a copy, another for any change of contents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jaxserve.errors import InputError
from jaxserve.sim.table.file import read_table_file, table_path, write_table_file
from jaxserve.tasks.inputs import task_inputs
from jaxserve.tasks.replay import trace_path
from jaxserve.tasks.spec import load_task, task_path

SPEC = load_task("static_workload")
OWN = task_inputs(SPEC)
TABLE = f"{SPEC.model}__{SPEC.hardware}"


def changed(**files: Any) -> set[str]:
    """Entries that are not the task's own."""
    return {name for name, value in task_inputs(SPEC, **files).items() if value != OWN[name]}


def test_inputs_are_plain_data() -> None:
    """They survive JSON, say which task and hardware they are, and are the same at every call."""
    assert json.loads(json.dumps(OWN)) == OWN == task_inputs(load_task(1))
    assert OWN["task"] == "static_workload" and OWN["hardware"].startswith(f"{SPEC.hardware} ")
    assert OWN["trace"] is None
    assert task_inputs(load_task("trace_replay"))["trace"] is not None


def test_a_table_is_its_contents(tmp_path: Path) -> None:
    """A copy elsewhere is the same table; a single cell makes it another."""
    path = tmp_path / "mine.parquet"
    path.write_bytes(table_path(TABLE).read_bytes())
    assert changed(table=path) == set()
    file = read_table_file(path)
    file.columns["ttft_p99_ms"].flat[7] *= 1.01
    write_table_file(path, file)
    assert changed(table=path) == {"table"}


def test_a_trace_is_its_contents(tmp_path: Path) -> None:
    """A copy elsewhere is the same trace; one request more makes it another."""
    spec = load_task("trace_replay")
    own = trace_path(str(spec.trace)).read_bytes()
    path = tmp_path / "mine.csv"
    path.write_bytes(own)
    assert task_inputs(spec, trace=path) == task_inputs(spec)
    path.write_bytes(own + own.splitlines(keepends=True)[-1])
    assert task_inputs(spec, trace=path)["trace"] != task_inputs(spec)["trace"]
    with pytest.raises(InputError, match=r"none\.csv cannot be read"):
        task_inputs(spec, trace="none.csv")


def test_hardware_is_its_constants(tmp_path: Path) -> None:
    """Another GPU has another table as well; one's own is known by its numbers."""
    assert changed(hardware=SPEC.hardware) == set()
    assert changed(hardware="h100-sxm-80gb") == {"hardware", "table"}
    path, seen = tmp_path / "mine.json", set()
    for price in (1.0, 2.0):
        path.write_text(json.dumps({"base": SPEC.hardware, "price": {"price_usd_per_hour": price}}))
        seen.add(task_inputs(SPEC, hardware=str(path), table=TABLE)["hardware"])
    assert len(seen) == 2


def test_a_task_is_its_file(tmp_path: Path) -> None:
    """A number that is changed makes it another task of the same name."""
    path = tmp_path / "static_workload.json"
    data = json.loads(task_path("static_workload").read_text())
    path.write_text(json.dumps(data | {"horizon": 100}))
    found = task_inputs(load_task(str(path)))
    assert found != OWN and found["task"] == OWN["task"]
