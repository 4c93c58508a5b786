"""A node: asks the service for sessions, works on them, and reports their progress.

The node continues its sessions while the service is down.
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
from jaxserve.rollouts.bounded_process import CommandOutput, ProcessLimits, run_process
from jaxserve.rollouts.service.client import SERVICE, TokenAuth
from jaxserve.rollouts.service.cluster.cleanup import remove_containers
from jaxserve.rollouts.service.control_client import ControlClient
from jaxserve.rollouts.service.settings import NodeSettings, RolloutTokens
from jaxserve.rollouts.service.state.lifecycle import Lease, lease_from_json
from jaxserve.rollouts.service.worker.worker import SessionWorker, WorkerPool
from jaxserve.runtime.storage import lock_file

_LOG = logging.getLogger("jaxserve.rollouts")
_TIMEOUT_S = 60.0
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.2, 5.0
_FOREVER_S = 1e9
_RETRY_S = 1.0


class _NotRegistered(Exception):
    """The service does not know this process of the node."""


class Node:
    """A node, and the ``SessionWriter`` of its sessions."""

    def __init__(self, settings: NodeSettings, tokens: RolloutTokens) -> None:
        """Must be called inside the event loop.

        Args: settings and secrets.
        """
        self._settings, self._start = settings, secrets.token_hex(8)
        self._http = httpx.AsyncClient(
            base_url=settings.service.rstrip("/"),
            auth=TokenAuth(SERVICE, settings.service, tokens.service),
            timeout=_TIMEOUT_S,
            trust_env=False,
        )
        self._control = ControlClient(settings.control, tokens.control)
        self._pool = WorkerPool(SessionWorker(settings, tokens, self, self._control))

    async def serve(self) -> None:
        """Works until cancelled; open sessions then begin on other nodes.

        Raises:
          InputError: the service refuses the node.
        """
        message = ""
        try:
            await remove_containers(self._settings.save_dir)
            await self._register()
            while True:
                try:
                    await self._heartbeat()
                    message = ""
                except _NotRegistered:
                    await self._register()
                except httpx.HTTPError as error:
                    if not message:
                        message = str(error) or type(error).__name__
                        _LOG.warning("the service does not answer, work goes on: %s", message)
                await asyncio.sleep(self._settings.heartbeat_s)
        finally:
            await self._pool.close()
            with contextlib.suppress(httpx.HTTPError, _NotRegistered, InputError):
                await self._tell("leave")
            await self._http.aclose()
            await self._control.close()

    async def move(
        self, lease: Lease, state: str, reason: str, values: Mapping[str, Any], line: bytes
    ) -> bool:
        """See ``SessionWriter``."""
        progress = {
            "lease": lease.to_json(),
            "state": state,
            "reason": reason,
            "values": values,
            "line": base64.b64encode(line).decode(),
        }
        wait_s = _FIRST_WAIT_S
        while True:
            try:
                return (await self._tell("move", **progress))["moved"]
            except _NotRegistered:
                pass  # the next heartbeat registers; whether the lease is valid, the service knows
            except httpx.HTTPError as error:
                _LOG.warning("%s of %s is not written yet: %s", state, lease.session.id, error)
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
            await asyncio.sleep(_RETRY_S)  # without a gateway no session can begin
        while True:
            try:
                await self._ask("/nodes/register", about)
                return
            except (httpx.HTTPError, _NotRegistered) as error:
                _LOG.warning("the service does not take the node: %s", error)
            await asyncio.sleep(_RETRY_S)

    async def _heartbeat(self) -> None:
        load = await self._control.load()
        answer = await self._tell("heartbeat", has=self._pool.keys, load=load)
        held = {(id, lease) for id, lease in answer["held"]}
        self._pool.take(held, [lease_from_json(one) for one in answer["new"]])

    async def _tell(self, what: str, **body: Any) -> Any:
        path = f"/nodes/{self._settings.id}/{what}"
        return await self._ask(path, {"start": self._start, **body})

    async def _ask(self, path: str, body: Mapping[str, Any]) -> Any:
        """The service's answer.

        Raises:
          InputError: the service refuses.
          httpx.HTTPError: the service does not answer, or fails.
          _NotRegistered: the service does not know this node.
        """
        answer = await self._http.post(path, json=body)
        if answer.status_code == 404:
            raise _NotRegistered
        if answer.status_code in (400, 401):
            raise InputError(f"the service refuses the node: {answer.text:.200}")
        answer.raise_for_status()
        return answer.json()


async def keep_gateway(arguments: tuple[str, ...], folder: Path) -> None:
    """Runs a gateway, restarts it whenever it ends, and ends it with this process.

    Args:
      arguments: arguments of ``jaxserve gateway``.
      folder: folder of its output file.
    """
    command = (sys.executable, "-m", "jaxserve.cli", "gateway", *arguments)
    limits = ProcessLimits(_FOREVER_S)
    while True:
        with CommandOutput(folder / "gateway.log", limits.output_bytes) as output:
            ended = await run_process(command, folder, dict(os.environ), output.write, limits)
        _LOG.error("the gateway ended with %s; another one begins", ended.code or ended.reason)
        await asyncio.sleep(_RETRY_S)


def run(settings: NodeSettings, gateway: tuple[str, ...] | None = None) -> None:
    """Runs a node until a signal.

    Args:
      gateway: arguments of a gateway to run as well.

    Raises:
      InputError: an invalid setting, a folder in use, or a service that refuses.
    """
    logging.basicConfig(level=logging.WARNING, format="jaxserve: %(message)s", stream=sys.stderr)
    logging.getLogger("httpx").setLevel(logging.ERROR)
    settings.check()
    folder = settings.save_dir.absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = lock_file(folder / ".node.lock")
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
