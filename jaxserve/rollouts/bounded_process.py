"""Runs a command in its own process group, with bounds on time and output.

No shell sees the command. The group ends with the command, and with this process, even when this
process is killed. Processes that left the group by ``setsid``, as daemons do, end as well: they are
found by the variable ``MARK``, so only a process without it, as by ``env -i``, survives.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from jaxserve.gateway.recording.redaction import Redaction
from jaxserve.runtime.child_processes import sweeping_leader

MARK = "JAXSERVE_RUN"
"""Variable of all processes of a command, with a different value for each command."""
_PIECE = 65_536
_AFTER_END_S = 2.0
"""Wait for output of processes that left the group and hold the pipe open."""
_SWEEP_S = 30.0
"""Time limit for ending processes that left the group."""
_CUT = b"\n[cut: no more output is kept]\n"


@dataclass(frozen=True)
class ProcessLimits:
    """Bounds of a process."""

    budget_s: float
    """time until the process is terminated, s."""
    grace_s: float = 5.0
    """time between TERM and KILL, s."""
    output_bytes: int = 16 * 2**20
    """size of the output that is kept; the rest is read and dropped."""


@dataclass(frozen=True)
class ProcessExit:
    """End of a process."""

    code: int
    """exit code; minus the number of a signal; 127 for a process that could not be started."""
    timed_out: bool = False
    """whether the process was terminated by its time limit."""
    reason: str = ""
    """reason of a failed start."""


class CommandOutput:
    """The output of a command, appended to a file: up to a size, and without secrets.

    A context manager. The file gets nothing after the block.
    """

    def __init__(self, path: Path, most_bytes: int, redaction: Redaction | None = None) -> None:
        """Args: the file; the largest size that is kept; secrets to remove."""
        self._path, self._most = path, most_bytes
        self._redaction = redaction or Redaction()
        self._rest = b""
        self._total = 0

    def __enter__(self) -> CommandOutput:
        self._file = self._path.open("ab")
        return self

    def write(self, piece: bytes) -> None:
        """Appends a piece of the output. The first half of a secret waits for the second half."""
        room = max(0, self._most - self._total)
        self._total += len(piece)
        text = self._redaction.text(self._rest + piece[:room])
        end = len(text) - self._redaction.partial_secret(text)
        self._file.write(text[:end])
        self._rest = text[end:]
        if 0 < room < len(piece):
            self._file.write(_CUT)
            self._rest = b""
        self._file.flush()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._file:
            self._file.write(self._rest)


async def run_process(
    command: Sequence[str],
    folder: Path,
    variables: Mapping[str, str],
    output: Callable[[bytes], None],
    limits: ProcessLimits,
    given: bytes = b"",
) -> ProcessExit:
    """Runs a command to its end, and kills all its processes when the caller is cancelled.

    Args:
      command: program and arguments.
      folder: working directory.
      variables: the whole environment, to which ``MARK`` is added.
      output: called with each piece of the output, until the return.
      limits: bounds of the process; its ``output_bytes`` concern whoever keeps the output.
      given: standard input.
    """
    if limits.budget_s <= 0:
        return ProcessExit(-signal.SIGTERM, timed_out=True)
    mark = secrets.token_hex(16)
    guard = await asyncio.create_subprocess_exec(
        *sweeping_leader(f"{MARK}={mark}"),
        env={"PATH": os.environ.get("PATH", os.defpath)},
        stdin=asyncio.subprocess.PIPE,
        process_group=0,
    )
    reader: asyncio.Task[None] | None = None
    try:
        try:
            # Standard input is a file, so that no task has to write to a pipe.
            with tempfile.TemporaryFile() as file:
                file.write(given)
                file.seek(0)
                process = await asyncio.create_subprocess_exec(
                    *command,
                    cwd=folder,
                    env={**variables, MARK: mark},
                    stdin=file,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.STDOUT,
                    process_group=guard.pid,
                )
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            return ProcessExit(127, reason=f"{command[0]!r:.80} cannot be started: {reason}")
        assert process.stdout is not None
        reader = asyncio.create_task(_pass_on(process.stdout, output))
        timed_out = not await _ends(process, limits.budget_s)
        if timed_out:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(guard.pid, signal.SIGTERM)
            await _ends(process, limits.grace_s)
        await _kill(guard)
        code = await process.wait()
        await _settle(reader)
        if reader.done():
            reader.result()  # raises where the output could not be kept
        return ProcessExit(code, timed_out)
    finally:
        await asyncio.shield(_kill(guard))
        if reader is not None:
            await _settle(reader)


async def _ends(process: asyncio.subprocess.Process, within_s: float) -> bool:
    try:
        await asyncio.wait_for(process.wait(), within_s)
    except TimeoutError:
        return False
    return True


async def _kill(guard: asyncio.subprocess.Process) -> None:
    """Ends the whole group, and processes that left it."""
    assert guard.stdin is not None
    guard.stdin.close()
    if not await _ends(guard, _SWEEP_S):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(guard.pid, signal.SIGKILL)
    await guard.wait()


async def _pass_on(stream: asyncio.StreamReader, output: Callable[[bytes], None]) -> None:
    while piece := await stream.read(_PIECE):
        output(piece)


async def _settle(reader: asyncio.Task[None]) -> None:
    """Waits a while for the reader; a process that holds the pipe open is not waited for."""
    await asyncio.wait([reader], timeout=_AFTER_END_S)
    reader.cancel()
