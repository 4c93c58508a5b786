"""A node: it asks the service for sessions, brings them to their end, and tells of that.

It goes on with what it has while the service is down.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import os
import secrets
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

from jaxserve.errors import InputError
from jaxserve.rollouts.bounded_process import Limits, run_process
from jaxserve.rollouts.service.control import Control
from jaxserve.rollouts.service.crew import Crew
from jaxserve.rollouts.service.doors import SERVICE, Shown
from jaxserve.rollouts.service.leases import Lease, lease_of
from jaxserve.rollouts.service.leftovers import remove_leftovers
from jaxserve.rollouts.service.settings import NodeSettings, RolloutTokens
from jaxserve.rollouts.service.work import Worker
from jaxserve.runtime.storage import locked_file

_LOG = logging.getLogger("jaxserve.rollouts")
_TIMEOUT_S = 60.0
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.2, 5.0
_FOR_EVER_S = 1e9
_BEFORE_ANOTHER_S = 1.0


class _NotRegistered(Exception):
    """The service does not know this start of the node."""


class Node:
    """One node, from its registration on."""

    def __init__(self, settings: NodeSettings, tokens: RolloutTokens) -> None:
        """Must be made inside the event loop.

        Args: what the operator chose, and secrets.
        """
        self._settings, self._start = settings, secrets.token_hex(8)
        self._http = httpx.AsyncClient(
            base_url=settings.service.rstrip("/"),
            auth=Shown(SERVICE, settings.service, tokens.service),
            timeout=_TIMEOUT_S,
            trust_env=False,
        )
        self._control = Control(settings.control, tokens.control)
        self._crew = Crew(Worker(settings, tokens, self, self._control))

    async def serve(self) -> None:
        """Works until it is cancelled; what it has then begins elsewhere.

        Raises:
          InputError: the service refuses it.
        """
        said = ""
        try:
            await remove_leftovers(self._settings.save_dir)
            await self._register()
            while True:
                try:
                    await self._heartbeat()
                    said = ""
                except _NotRegistered:
                    await self._register()
                except httpx.HTTPError as error:
                    if not said:
                        said = str(error) or type(error).__name__
                        _LOG.warning("the service does not answer, work goes on: %s", said)
                await asyncio.sleep(self._settings.heartbeat_s)
        finally:
            await self._crew.close()
            with contextlib.suppress(httpx.HTTPError, _NotRegistered, InputError):
                await self._tell("leave")
            await self._http.aclose()
            await self._control.close()

    async def move(
        self, lease: Lease, state: str, reason: str, values: Mapping[str, Any], line: bytes
    ) -> bool:
        """See ``Book``."""
        told = {
            "lease": lease.to_json(),
            "state": state,
            "reason": reason,
            "values": values,
            "line": base64.b64encode(line).decode(),
        }
        wait_s = _FIRST_WAIT_S
        while True:
            try:
                return (await self._tell("move", **told))["moved"]
            except _NotRegistered:
                pass  # the next heartbeat registers; the service knows the lease still, or not
            except httpx.HTTPError as error:
                _LOG.warning("%s of %s is not told yet: %s", state, lease.session.id, error)
            await asyncio.sleep(wait_s)
            wait_s = min(2.0 * wait_s, _LONGEST_WAIT_S)

    async def _register(self) -> None:
        settings = self._settings
        about = {
            "id": settings.id,
            "start": self._start,
            "pools": settings.pools,
            "models": list(settings.models),
            "gateway": settings.gateway,
            "control": settings.registered_control,
        }
        while await self._control.load() is None:
            await asyncio.sleep(_BEFORE_ANOTHER_S)  # without a gateway no session can begin
        while True:
            try:
                await self._ask("/nodes/register", about)
                return
            except (httpx.HTTPError, _NotRegistered) as error:
                _LOG.warning("the service does not take the node: %s", error)
            await asyncio.sleep(_BEFORE_ANOTHER_S)

    async def _heartbeat(self) -> None:
        load = await self._control.load()
        told = await self._tell("heartbeat", has=self._crew.keys, load=load)
        held = {(id, lease) for id, lease in told["held"]}
        self._crew.take(held, [lease_of(one) for one in told["new"]])

    async def _tell(self, what: str, **body: Any) -> Any:
        path = f"/nodes/{self._settings.id}/{what}"
        return await self._ask(path, {"start": self._start, **body})

    async def _ask(self, path: str, body: Mapping[str, Any]) -> Any:
        """An answer.

        Raises:
          InputError: the service refuses.
          httpx.HTTPError: it does not answer, or has failed.
          _NotRegistered: it does not know this node.
        """
        answer = await self._http.post(path, json=body)
        if answer.status_code == 404:
            raise _NotRegistered
        if answer.status_code in (400, 401):
            raise InputError(f"the service refuses the node: {answer.text:.200}")
        answer.raise_for_status()
        return answer.json()


async def keep_gateway(arguments: tuple[str, ...], folder: Path) -> None:
    """Runs a gateway, and another one when it ends; it ends with this process, however that does.

    Args:
      arguments: of ``jaxserve gateway``.
      folder: for what it prints.
    """
    command = (sys.executable, "-m", "jaxserve.cli", "gateway", *arguments)
    while True:
        printed = folder / "gateway.log"
        ended = await run_process(command, folder, dict(os.environ), printed, Limits(_FOR_EVER_S))
        _LOG.error("the gateway ended with %s; another one begins", ended.code or ended.reason)
        await asyncio.sleep(_BEFORE_ANOTHER_S)


def run(settings: NodeSettings, gateway: tuple[str, ...] | None = None) -> None:
    """Serves until it is told to stop.

    Args:
      gateway: arguments of a gateway to run beside it.

    Raises:
      InputError: settings that cannot be, a folder in use, or a service that refuses.
    """
    logging.basicConfig(level=logging.WARNING, format="jaxserve: %(message)s", stream=sys.stderr)
    logging.getLogger("httpx").setLevel(logging.ERROR)
    settings.check()
    folder = settings.save_dir.absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = locked_file(folder / ".node.lock")
    except OSError as error:
        raise InputError(f"--save-dir is {folder}: {error.strerror}") from None
    if lock is None:
        raise InputError(f"--save-dir is {folder}; it must be free, and another node has it")
    print(f"jaxserve: node {settings.id} of {settings.service}", file=sys.stderr, flush=True)
    asyncio.run(_serve(settings, gateway, folder))


async def _serve(settings: NodeSettings, gateway: tuple[str, ...] | None, folder: Path) -> None:
    loop = asyncio.get_running_loop()
    tasks = [asyncio.create_task(Node(settings, RolloutTokens.from_environment()).serve())]
    if gateway is not None:
        tasks.append(asyncio.create_task(keep_gateway(gateway, folder)))
    stopped = asyncio.Event()
    for one in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(one, stopped.set)
    stopping = asyncio.create_task(stopped.wait())
    done, _ = await asyncio.wait([*tasks, stopping], return_when=asyncio.FIRST_COMPLETED)
    for task in reversed(tasks):
        if task not in done:
            task.cancel()
    stopping.cancel()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    for one in found:
        if isinstance(one, Exception):
            raise one
