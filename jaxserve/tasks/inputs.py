"""What an environment is built from, in texts that are equal where the contents are.

Numbers are taken as the files have them: what an environment computes from them differs in its last
bits from one kind of processor to another.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from jaxserve.errors import InputError
from jaxserve.sim.machine.hardware import load_gpu
from jaxserve.sim.machine.models import load_model
from jaxserve.sim.table.file import TableFile, read_table_file
from jaxserve.tasks.replay import trace_path
from jaxserve.tasks.spec import TaskSpec


def task_inputs(
    spec: TaskSpec,
    hardware: str | None = None,
    model: str | None = None,
    table: str | Path | None = None,
    trace: str | Path | None = None,
) -> dict[str, Any]:
    """Task, hardware, model, table and trace by name and digest, ready for JSON.

    Where a file lies is no part of it: a copy is the same input.

    Args:
      hardware, model, table, trace: as in ``jaxserve.make``; the task's own where None.

    Raises:
      InputError: a file is unknown or unreadable.
    """
    gpu = load_gpu(spec.hardware if hardware is None else hardware)
    llm = load_model(spec.model if model is None else model)
    file = read_table_file(f"{llm.name}__{gpu.name}" if table is None else table)
    recorded = spec.trace if trace is None else trace
    return {
        "task": spec.name,
        "task_version": spec.version,
        "task_digest": spec.digest,
        "hardware": f"{gpu.name} {_digest(repr(gpu).encode())}",
        "model": f"{llm.name} {_digest(repr(llm).encode())}",
        "table": _table_digest(file),
        "trace": None if recorded is None else _trace_digest(recorded),
    }


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


def _table_digest(file: TableFile) -> str:
    columns = (file.columns[name].tobytes() for name in sorted(file.columns))
    return _digest(file.metadata.to_json().encode(), *columns)


def _trace_digest(name: str | Path) -> str:
    path = trace_path(name)
    try:
        return _digest(path.read_bytes())
    except OSError as error:
        raise InputError(f"trace {path} cannot be read: {error.strerror}") from None
