"""Inputs of an environment: names and digests that are equal where the contents are.

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

_DIGITS = 16
"""Hexadecimal digits of a digest."""


class InputFiles:
    """Latency tables and traces of a setup, each read once."""

    def __init__(self) -> None:
        """A reader that has read nothing yet."""
        self._tables: dict[str, TableFile] = {}
        self._traces: dict[Path, str] = {}

    def table(self, name: str | Path) -> TableFile:
        """The table of a name or path, as ``read_table_file`` reads it."""
        if str(name) not in self._tables:
            self._tables[str(name)] = read_table_file(name)
        return self._tables[str(name)]

    def trace_digest(self, name: str | Path) -> str:
        """Digest of a trace's file.

        Raises:
          InputError: the file cannot be read.
        """
        path = trace_path(name)
        if path not in self._traces:
            try:
                with path.open("rb") as file:
                    found = hashlib.file_digest(file, "sha256").hexdigest()
                self._traces[path] = found[:_DIGITS]
            except OSError as error:
                raise InputError(f"trace {path} cannot be read: {error.strerror}") from None
        return self._traces[path]


def task_inputs(
    spec: TaskSpec,
    hardware: str | None = None,
    model: str | None = None,
    table: str | Path | None = None,
    trace: str | Path | None = None,
    files: InputFiles | None = None,
) -> dict[str, Any]:
    """Task, hardware, model, table and trace by name and digest, ready for JSON.

    The place of a file is no part of it: a copy is the same input.

    Args:
      spec: the task.
      hardware: as in ``jaxserve.make``, like the next three; the task's own where None.
      model: name of a model, or path of a file.
      table: name or path of a latency table.
      trace: path of a recorded trace.
      files: reads each file once for several calls.

    Raises:
      InputError: a file is unknown or unreadable.
    """
    files = files or InputFiles()
    gpu = load_gpu(spec.hardware if hardware is None else hardware)
    llm = load_model(spec.model if model is None else model)
    file = files.table(f"{llm.name}__{gpu.name}" if table is None else table)
    recorded = spec.trace if trace is None else trace
    return {
        "task": spec.name,
        "task_version": spec.version,
        "task_digest": spec.digest,
        "hardware": f"{gpu.name} {_digest(repr(gpu).encode())}",
        "model": f"{llm.name} {_digest(repr(llm).encode())}",
        "table": _table_digest(file),
        "trace": None if recorded is None else files.trace_digest(recorded),
    }


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(parts)).hexdigest()[:_DIGITS]


def _table_digest(file: TableFile) -> str:
    columns = (file.columns[name].tobytes() for name in sorted(file.columns))
    return _digest(file.metadata.to_json().encode(), *columns)
