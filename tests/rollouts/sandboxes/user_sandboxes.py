"""Sandboxes as users write them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from jaxserve.checks import JsonObject
from jaxserve.errors import InputError
from jaxserve.rollouts.bounded_process import ProcessExit, ProcessLimits, run_process
from jaxserve.rollouts.sandboxes import SandboxCommand, sandbox_options


class Elsewhere:
    """Copies folders to another place of this machine."""

    def __init__(self, options: JsonObject, outside: Path) -> None:
        """Options: ``root``, the other place; ``fails``, the method that fails (none)."""
        known = sandbox_options(options, "root", "fails")
        self._outside, self._fails = outside, known.get("fails")
        self.inside = Path(known.text("root")) / f"{outside.parent.name}-{outside.name}"

    async def put(self, name: str) -> None:
        """Copies a folder there."""
        self._fail("put")
        shutil.copytree(self._outside / name, self.inside / name)

    async def run(
        self, command: SandboxCommand, output: Callable[[bytes], None], limits: ProcessLimits
    ) -> ProcessExit:
        """Runs the command there."""
        self._fail("run")
        return await run_process(
            command.argv, command.folder, command.environment, output, limits, command.given
        )

    async def get(self, name: str) -> None:
        """Copies a folder back."""
        self._fail("get")
        shutil.rmtree(self._outside / name)
        shutil.copytree(self.inside / name, self._outside / name)

    async def end(self) -> None:
        """Removes the copies."""
        shutil.rmtree(self.inside, ignore_errors=True)
        self._fail("end")

    def _fail(self, method: str) -> None:
        if self._fails == method:
            raise InputError(f"{method}: the other place is full")
        if self._fails == f"{method} broken":
            raise RuntimeError("no such region")


class NoSandbox:
    """Lacks ``get`` and ``end``."""

    def __init__(self, options: JsonObject, outside: Path) -> None:
        """Takes anything."""

    async def put(self, name: str) -> None:
        """Does nothing."""

    async def run(self, *arguments: object) -> None:
        """Does nothing."""
