"""A sandbox on any machine of a Ray cluster: an actor with a copy of the session's folder.

Every machine of the cluster needs jaxserve with the extras ``gateway`` and ``ray``, and reaches the
gateway at its address. Ray places the actors by their ``cpus``, ``gpus`` and ``memory_mib``; Ray
does not enforce them.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import shutil
import tarfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

from jaxserve.checks import JsonObject
from jaxserve.errors import InputError
from jaxserve.rollouts.bounded_process import ProcessExit, ProcessLimits, run_process
from jaxserve.rollouts.sandboxes.interface import SandboxCommand, sandbox_options
from jaxserve.rollouts.sandboxes.processes import command_variables, container_name
from jaxserve.runtime.ray_cluster import connected_ray

_TOP = Path("/tmp")
"""Folder of all copies; it exists on every machine, and another user cannot replace a copy."""
_REMOVAL_S = 30.0
_RUNTIME = {"env_vars": {"RAY_USE_UVLOOP": "0"}}
"""uvloop cannot start a process in the group of another process."""
_MOST_CPUS, _MOST_GPUS, _MOST_MEMORY_MIB = 1024.0, 64.0, 2**24


class RaySandbox:
    """A Ray actor for each command."""

    def __init__(self, options: JsonObject, outside: Path) -> None:
        """Options: ``cpus`` (1), ``gpus`` (0) and ``memory_mib``, resources of the actor."""
        known = sandbox_options(options, "cpus", "gpus", "memory_mib")
        self._resources: dict[str, Any] = {
            "num_cpus": known.number("cpus", 0.0, _MOST_CPUS, 1.0),
            "num_gpus": known.number("gpus", 0.0, _MOST_GPUS, 0.0),
        }
        if "memory_mib" in known:
            self._resources["memory"] = known.whole("memory_mib", 1, _MOST_MEMORY_MIB) * 2**20
        self._outside = outside
        self.inside = _TOP / container_name(outside)
        self._actor: Any = None

    async def put(self, name: str) -> None:
        """See ``Sandbox``."""
        if self._actor is None:
            ray = await asyncio.to_thread(connected_ray)
            made = ray.remote(**self._resources, runtime_env=_RUNTIME)(SandboxActor)
            self._actor = made.remote(str(self.inside))
        packed = await asyncio.to_thread(pack_folder, self._outside / name)
        with _lost():
            await self._actor.put.remote(name, packed)

    async def run(
        self, command: SandboxCommand, output: Callable[[bytes], None], limits: ProcessLimits
    ) -> ProcessExit:
        """See ``Sandbox``."""
        with _lost():
            pieces = self._actor.run.options(num_returns="streaming").remote(command, limits)
            async for piece in pieces:
                found = await piece
                if isinstance(found, ProcessExit):
                    return found
                output(found)
        raise InputError("the sandbox ended before its command")

    async def get(self, name: str) -> None:
        """See ``Sandbox``."""
        with _lost():
            packed = await self._actor.get.remote(name)
        await asyncio.to_thread(unpack_folder, packed, self._outside / name)

    async def end(self) -> None:
        """See ``Sandbox``. A killed node's actors end by themselves."""
        if self._actor is None:
            return
        actor, self._actor = self._actor, None
        with contextlib.suppress(Exception):  # an actor that is lost or has not begun
            await asyncio.wait_for(actor.end.remote(), _REMOVAL_S)
        ray = await asyncio.to_thread(connected_ray)
        await asyncio.to_thread(ray.kill, actor)


class SandboxActor:
    """The far side: a process on a machine of the cluster, in an event loop."""

    def __init__(self, top: str) -> None:
        """Args: path of the session's folder on this machine."""
        self._top = Path(top)
        self._running: asyncio.Task[ProcessExit] | None = None
        shutil.rmtree(self._top, ignore_errors=True)
        self._top.mkdir(mode=0o700)

    async def put(self, name: str, packed: bytes) -> None:
        """Replaces a subfolder."""
        await asyncio.to_thread(unpack_folder, packed, self._top / name)

    async def run(
        self, command: SandboxCommand, limits: ProcessLimits
    ) -> AsyncIterator[bytes | ProcessExit]:
        """Yields pieces of the command's output as they come, and then the command's end."""
        pieces: asyncio.Queue[bytes | None] = asyncio.Queue()
        kept = 0

        def output(piece: bytes) -> None:
            nonlocal kept
            if kept <= limits.output_bytes:
                pieces.put_nowait(piece)
            kept += len(piece)

        environment = {**command.environment, **command_variables()}
        self._running = asyncio.create_task(
            run_process(command.argv, command.folder, environment, output, limits, command.given)
        )
        self._running.add_done_callback(lambda _: pieces.put_nowait(None))
        while (piece := await pieces.get()) is not None:
            yield piece
        yield await self._running

    async def get(self, name: str) -> bytes:
        """The packed subfolder."""
        return await asyncio.to_thread(pack_folder, self._top / name)

    async def end(self) -> None:
        """Ends the command, and removes the folder."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait([self._running])
        await asyncio.to_thread(shutil.rmtree, self._top, ignore_errors=True)


def pack_folder(folder: Path) -> bytes:
    """A folder as an archive; sockets and devices are left out."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.add(folder, arcname=".", filter=_plain_member)
    return packed.getvalue()


def unpack_folder(packed: bytes, folder: Path) -> None:
    """Replaces a folder by an archive, which may be an agent's work: links that lead out of the
    folder are left out, and nothing outside is written."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter=_inner_member)


def _plain_member(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return member if member.isfile() or member.isdir() or member.issym() or member.islnk() else None


def _inner_member(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo | None:
    try:
        return tarfile.data_filter(member, path)
    except tarfile.FilterError:
        return None


@contextlib.contextmanager
def _lost() -> Iterator[None]:
    """Raises InputError where the actor or its machine is lost, or the actor fails."""
    from ray.exceptions import RayError  # type: ignore[import-not-found]

    try:
        yield
    except RayError as error:
        cause = getattr(error, "cause", None)  # of a method of the actor
        said = (str(error) if cause is None else f"{type(cause).__name__}: {cause}").strip()
        raise InputError(f"the sandbox is lost: {said.partition(chr(10))[0]}") from None
