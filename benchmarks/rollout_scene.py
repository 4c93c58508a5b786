"""A rollout service, its nodes and an engine as processes that can be harmed."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml

from jaxserve.rollouts.service.client import SERVICE, TokenAuth
from jaxserve.runtime.child_processes import own_process
from server.local import free_port

NODES = ("a", "b")
_ATTEMPTS = 2
SILENT_S = 5.0
_AWAY_S = SILENT_S + 2.0
FAULTS = 0.15
_FULL_S = 1.0
_PATIENCE_S = 3000.0


class Scene:
    """All processes; each can be killed and begun again."""

    def __init__(self, folder: Path) -> None:
        """Args: an empty folder."""
        self._folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._end = contextlib.ExitStack()
        engine, self.port = free_port(), free_port()
        topology = {
            "rollout": {
                "port": self.port,
                "save_dir": str(folder / "state"),
                "silent_s": SILENT_S,
                "attempts": _ATTEMPTS,
            },
            "gateway": {"heartbeat_s": 0.2, "sessions": str(folder / "records")},
            "nodes": [
                {
                    "id": id,
                    "port": free_port(),
                    "control_port": free_port(),
                    "inference": {"engine": "vllm", "base_url": f"http://127.0.0.1:{engine}"},
                    "workers": {"init": 2, "run": 3},
                }
                for id in NODES
            ],
        }
        path = folder / "topology.yaml"
        path.write_text(yaml.safe_dump(topology))
        jaxserve = [sys.executable, "-m", "jaxserve.cli", "rollout"]
        uvicorn = [sys.executable, "-m", "uvicorn", "benchmarks.chat_engine:app"]
        self._commands = {
            "engine": [*uvicorn, "--port", str(engine), "--no-access-log"],
            "service": [*jaxserve, "serve", "--topology", str(path)],
            **{id: [*jaxserve, "gateway", "--topology", str(path), "--node", id] for id in NODES},
        }
        url = f"http://127.0.0.1:{self.port}"
        # The service makes its token when it begins.
        self.http = httpx.Client(base_url=url, auth=TokenAuth(SERVICE, url, None), timeout=30.0)

    def __enter__(self) -> Scene:
        for name in self._commands:
            self.start(name)
        return self

    def __exit__(self, *exception: object) -> None:
        with self._end:
            self.http.close()
            for process in reversed(self._running.values()):
                process.terminate()
            for process in self._running.values():
                process.wait(60.0)

    def start(self, name: str) -> None:
        """Begins a process."""
        variables = {**os.environ, "CHAT_ENGINE_FAULTS": str(FAULTS), "JAX_PLATFORMS": "cpu"}
        with (self._folder / f"{name}.log").open("ab") as printed:
            # Until the scene ends: what a killed process leaves behind is the scene's own matter.
            own = own_process(self._commands[name], env=variables, stdout=printed, stderr=printed)
            self._running[name] = self._end.enter_context(own)

    def harm(self, name: str, node: str, room: int) -> bool:
        """Kills one and begins it again; a gateway is begun again by its node. ``disk`` lets no
        file of the service and of what a node has started grow beyond ``room`` bytes for a while.
        Says whether there was anything to harm.

        Args:
          node: which one it meets, where it meets one.
        """
        if name == "gateway":
            found = self._gateway(node)
            if found is not None:
                found.kill()
            return found is not None
        if name == "disk":
            self._limit(node, room)
            time.sleep(_FULL_S)
            self._limit(node, resource.RLIM_INFINITY)
            return True
        killed = node if name in ("node", "lost node") else name
        self._running[killed].kill()
        self._running[killed].wait()
        if name == "lost node":
            time.sleep(_AWAY_S)
        self.start(killed)
        return True

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """An answer of the service; waits until it has one."""
        until = time.monotonic() + _PATIENCE_S
        while time.monotonic() < until:
            try:
                answer = self.http.request(method, path, json=body)
                if answer.is_success:
                    return answer.json()
            except httpx.HTTPError:
                pass
            time.sleep(0.1)
        raise RuntimeError(f"{method} {path} was not answered")

    def _gateway(self, node: str) -> psutil.Process | None:
        try:
            for child in psutil.Process(self._running[node].pid).children():
                if "gateway" in child.cmdline():
                    return child
        except psutil.Error:
            pass
        return None

    def _limit(self, node: str, size: int) -> None:
        """No file of the service, of a node, and of what that has started grows beyond a size.
        Processes that start meanwhile inherit the size."""
        found = [self._running["service"].pid, self._running[node].pid]
        with contextlib.suppress(psutil.Error):
            children = psutil.Process(self._running[node].pid).children(recursive=True)
            found += [child.pid for child in children]
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
