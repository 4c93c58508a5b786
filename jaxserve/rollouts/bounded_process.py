"""A command as a process of this machine: in a group of its own, its time and output bounded.

No shell sees the command. The group ends with the command, and with this process, even when that
one is killed; and so does what has left the group by ``setsid``, as daemons do. That is found by
the variable ``MARK``: only what began without it, as by ``env -i``, lives on.
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
from jaxserve.runtime.process_group import sweeping_leader

MARK = "JAXSERVE_RUN"
"""Variable of all that a command starts; its value is another one for each command."""
_PIECE = 65_536
_AFTER_END_S = 2.0
"""For output of what has left the group and holds the pipe open."""
_SWEEP_S = 30.0
"""For finding and ending what has left the group."""
_CUT = b"\n[cut: no more output is kept]\n"


@dataclass(frozen=True)
class Limits:
    """What a process may use."""

    budget_s: float
    """until it is told to end."""
    grace_s: float = 5.0
    """between TERM and KILL."""
    output_bytes: int = 16 * 2**20
    """that are kept of what it prints; the rest is read and thrown away."""


@dataclass(frozen=True)
class Ended:
    """How a process ended."""

    code: int
    """its exit code; below 0 the signal that ended it; 127 where it could not be started."""
    timed_out: bool = False
    """whether it was told to end because its time was up."""
    output_bytes: int = 0
    """that it printed."""
    reason: str = ""
    """why it could not be started."""


async def run_process(
    command: Sequence[str],
    folder: Path,
    variables: Mapping[str, str],
    output: Path,
    limits: Limits,
    given: bytes = b"",
    redaction: Redaction | None = None,
) -> Ended:
    """Runs a command to its end. When the caller is cancelled, all that it started is killed.

    Args:
      command: program and arguments, as they are.
      folder: where it runs.
      variables: its whole environment but for ``MARK``.
      output: file to which what it prints is added.
      limits: what it may use.
      given: what it reads; its standard input ends after that.
      redaction: of what it prints.
    """
    if limits.budget_s <= 0:
        return Ended(-signal.SIGTERM, timed_out=True)
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
            # A file, so that nobody has to feed it.
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
            return Ended(127, reason=f"{command[0]!r:.80} cannot be started: {reason}")
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
        return Ended(code, timed_out, reader.result() if reader.done() else 0)
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
    """Ends the whole group, and what has left it."""
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
    """Lets it read the rest; what still holds the pipe open is not waited for."""
    await asyncio.wait([reader], timeout=_AFTER_END_S)
    reader.cancel()
