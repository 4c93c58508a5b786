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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

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
    output_bytes: int = 0
    """size of the whole output."""
    reason: str = ""
    """reason of a failed start."""


async def run_process(
    command: Sequence[str],
    folder: Path,
    variables: Mapping[str, str],
    output: Path,
    limits: ProcessLimits,
    given: bytes = b"",
    redaction: Redaction | None = None,
) -> ProcessExit:
    """Runs a command to its end, and kills all its processes when the caller is cancelled.

    Args:
      command: program and arguments.
      folder: working directory.
      variables: the whole environment, to which ``MARK`` is added.
      output: file to which the output is appended.
      limits: bounds of the process.
      given: standard input.
      redaction: secrets to remove from the output.
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
    reader: asyncio.Task[int] | None = None
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
        hidden = redaction or Redaction()
        reader = asyncio.create_task(_keep(process.stdout, output, limits.output_bytes, hidden))
        timed_out = not await _ends(process, limits.budget_s)
        if timed_out:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(guard.pid, signal.SIGTERM)
            await _ends(process, limits.grace_s)
        await _kill(guard)
        code = await process.wait()
        await _settle(reader)
        return ProcessExit(code, timed_out, reader.result() if reader.done() else 0)
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


async def _keep(stream: asyncio.StreamReader, output: Path, most: int, redaction: Redaction) -> int:
    total, rest = 0, b""
    with output.open("ab") as file:
        try:
            while piece := await stream.read(_PIECE):
                room = max(0, most - total)
                total += len(piece)
                text = redaction.text(rest + piece[:room])
                end = len(text) - redaction.partial_secret(text)
                # What may be the first half of a secret waits for the second.
                file.write(text[:end])
                rest = text[end:]
                if 0 < room < len(piece):
                    file.write(_CUT)
                    rest = b""
                file.flush()
        finally:
            file.write(rest)
    return total


async def _settle(reader: asyncio.Task[int]) -> None:
    """Waits a while for the reader; a process that holds the pipe open is not waited for."""
    await asyncio.wait([reader], timeout=_AFTER_END_S)
    reader.cancel()
