"""What a task file may name: pairs of model and GPU that have a table, profiles of acceptance."""

from __future__ import annotations

from docs_pages.markdown import code, table
from jaxserve.sim.machine.acceptance import profile_names
from jaxserve.sim.table.file import read_table_file, table_names


def pair_table() -> str:
    """One packaged latency table a row."""
    found = [read_table_file(name).metadata for name in table_names()]
    rows = [[code(one.hardware), code(one.model), f"{one.tensor_parallel}"] for one in found]
    return table(["hardware", "model", "tensor_parallel"], sorted(rows))


def profile_list() -> str:
    """Names of the profiles of draft acceptance."""
    return code(*profile_names())
