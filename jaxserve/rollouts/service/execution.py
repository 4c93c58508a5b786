"""Commands of a task, one after the other, within the time that all of them have."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jaxserve.gateway.recording.redaction import Redaction
from jaxserve.rollouts.bounded_process import Ended, Limits, run_process
from jaxserve.rollouts.runtimes import Ours, Process, Runtime, process_of, removal

_REMOVAL_S = 60.0


@dataclass(frozen=True)
class Place:
    """Where a command runs."""

    top: Path
    """all of this machine that a container sees."""
    folder: Path
    """inside it, where it begins."""
    ours: Ours
    """variables that the service gives."""
    printed: Path
    """file for what it prints."""
    redaction: Redaction = field(default_factory=Redaction)
    """of that."""

    @classmethod
    def of_evaluation(cls, top: Path, printed: Path) -> Place:
        """Of commands that test what an agent left: they have no key."""
        ours = Ours(top, {"ARTIFACTS_DIR": str(top / "artifacts")})
        return cls(top, top / "work", ours, printed)


class Execution:
    """The commands of one stage."""

    def __init__(self, runtime: Runtime, budget_s: float, output_bytes: int) -> None:
        """Args: where they run; the time of all together, from now; how much of what each prints
        is kept."""
        self._runtime, self._output_bytes = runtime, output_bytes
        self._deadline_s = time.monotonic() + budget_s

    async def run(self, command: Sequence[str], place: Place, given: bytes = b"") -> Ended:
        """Runs one to its end, its container included.

        Args:
          given: what it reads.
        """
        process = process_of(
            self._runtime, command, place.ours, place.top, place.folder, reads=bool(given)
        )
        limits = Limits(self._deadline_s - time.monotonic(), output_bytes=self._output_bytes)
        try:
            return await run_process(
                process.argv,
                place.folder,
                process.environment,
                place.printed,
                limits,
                given,
                place.redaction,
            )
        finally:
            await asyncio.shield(self.remove(place.top))

    def run_and_wait(self, place: Place, command: Sequence[str], printed: Path) -> Ended:
        """The same, from a thread without a loop."""
        return asyncio.run(self.run(command, Place(place.top, place.folder, place.ours, printed)))

    async def remove(self, top: Path) -> None:
        """Ends a container that outlived its command, or its node."""
        process: Process | None = removal(self._runtime, top)
        if process is not None:
            printed = top.with_name(f".{top.name}.removal")
            limits = Limits(_REMOVAL_S, output_bytes=2**16)
            top.parent.mkdir(parents=True, exist_ok=True)
            await run_process(process.argv, top.parent, process.environment, printed, limits)
            printed.unlink(missing_ok=True)


def copy_artifacts(left: Path, to: Path) -> None:
    """What an agent left for others, for its evaluator; links are not followed."""
    shutil.rmtree(to, ignore_errors=True)
    if left.is_dir():
        shutil.copytree(left, to, symlinks=True)
    else:
        to.mkdir()
