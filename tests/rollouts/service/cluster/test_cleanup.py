"""Cleanup after a killed node: a restart removes its containers and no others; keys of its sessions
are closed at its gateway."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from jaxserve.checks import JsonObject
from jaxserve.errors import InputError
from jaxserve.rollouts.sandboxes import SandboxCommand
from jaxserve.rollouts.sandboxes.containers import DockerSandbox
from jaxserve.rollouts.sandboxes.processes import container_name
from jaxserve.rollouts.service.cluster import cleanup
from jaxserve.rollouts.service.cluster.cleanup import KeyCleanup, remove_containers
from jaxserve.rollouts.service.control_client import ControlClient
from jaxserve.rollouts.service.state.database import StateDatabase
from server.local import free_port
from tests.gateway.gateway_thread import RunningGateway
from tests.patience import PATIENCE_S, wait_until
from tests.rollouts.service.service_thread import RunningNode, RunningService

DOCKER = """#!{python}
import json, pathlib, sys
verb, *given = sys.argv[1:]
there = pathlib.Path({there!r})
kept = json.loads(there.read_text()) if there.exists() else {{}}
options = dict(one.partition("=")[::2] for one in given)
if verb == "run":
    kept[options["--name"]] = options["--label"]
elif verb == "ps":
    assert {{"--all", "--quiet"}} <= set(given)
    kind, label = options["--filter"].split("=", 1)
    print("\\n".join(name for name in kept if kept[name] == label and kind == "label"))
    sys.exit(there.with_name("fails").exists())
elif verb == "rm":
    assert "--force" in given
    for name in given:
        kept.pop(name, None)
part = there.with_suffix(".part")
part.write_text(json.dumps(kept))
part.replace(there)
"""
"""Keeps containers, which nothing ends but their removal."""


class Docker:
    """A stand-in for docker, and what it has."""

    def __init__(self, folder: Path) -> None:
        """Args: where it is put."""
        self.there = folder / "containers.json"
        path = folder / "docker"
        path.write_text(DOCKER.format(python=sys.executable, there=str(self.there)))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def outlived(self, save_dir: Path, session: str) -> str:
        """The name of a container whose node was killed."""
        top = save_dir / "tasks" / "t" / session
        top.mkdir(parents=True)
        sandbox = DockerSandbox(JsonObject({"image": "i"}, "runtime"), top)
        process = sandbox.command_line(SandboxCommand(("x",), top, {}, top, {}))
        subprocess.run(process.argv, env=dict(process.environment), check=True)
        return container_name(top)

    def names(self) -> set[str]:
        """Containers that are there."""
        return set(json.loads(self.there.read_text()))


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Docker:
    """First in the path."""
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    return Docker(programs)


def test_those_of_one_folder(docker: Docker, tmp_path: Path) -> None:
    """Agents' and evaluators', all of them, and none of another node's; where there is nothing to
    remove, and where docker fails, nothing happens."""
    asyncio.run(remove_containers(tmp_path / "a"))
    assert not docker.there.exists()  # who never had a task asks for nothing
    for session in ("0.1", "0.1.evaluation", "1.2"):
        docker.outlived(tmp_path / "a", session)
    other = docker.outlived(tmp_path / "b", "0.1")
    assert len(docker.names()) == 4
    for _ in range(2):
        asyncio.run(remove_containers(tmp_path / "a"))
        assert docker.names() == {other}
    docker.there.with_name("fails").touch()
    asyncio.run(remove_containers(tmp_path / "b"))
    assert docker.names() == {other}


class Asked:
    """How often gateways were asked to close a key, and what they answered."""

    def __init__(self) -> None:
        self.known = self.unknown = 0
        self.failed_s: list[float] = []
        """times of requests that had no answer."""

    @property
    def total(self) -> int:
        return self.known + self.unknown + len(self.failed_s)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """Counts requests; keys are looked for without a pause, and each again after 10 ms."""
    found, shut = Asked(), ControlClient.shut

    async def counted(self: ControlClient, id: str, patience_s: float = 0.0) -> bool:
        try:
            known = await shut(self, id, patience_s)
        except InputError:
            found.failed_s.append(time.monotonic())
            raise
        found.known += known
        found.unknown += not known
        return known

    monkeypatch.setattr(ControlClient, "shut", counted)
    monkeypatch.setattr(cleanup, "_INTERVAL_S", 0.001)
    monkeypatch.setattr(cleanup, "_AT_ONCE", (0.0, 0.01))
    return found


async def look(state: StateDatabase, done: Callable[[], bool]) -> None:
    """Closes lost keys until something is so."""
    looking = asyncio.create_task(KeyCleanup(state, None).run())
    async with asyncio.timeout(PATIENCE_S):
        while not done():
            await asyncio.sleep(0.01)
    looking.cancel()


def test_a_gateway_that_does_not_answer(
    gateway: RunningGateway, tmp_path: Path, asked: Asked
) -> None:
    """Keys are closed where gateways answer; one that does not is asked after ever longer waits."""
    state = StateDatabase(tmp_path / "state.sqlite3")
    for node, url in (("here", gateway.control_url), ("gone", "http://127.0.0.1:9")):
        state.put_node(node, "1", {"control": url})
        state.note_key("silent.0.1", node, made=True)
    assert gateway.control.post("/sessions", json={"id": "silent.0.1"}).is_success
    asyncio.run(look(state, lambda: len(asked.failed_s) >= 5))
    assert gateway.control.get("/sessions/silent.0.1").json()["closed"]
    (left,) = state.open_keys()
    assert left[:2] == ("silent.0.1", "http://127.0.0.1:9")
    waits_s = [later - earlier for earlier, later in pairwise(asked.failed_s)]
    assert all(wait_s >= 0.02 * 2**number for number, wait_s in enumerate(waits_s))
    state.close()


def test_another_gateway_at_the_address(
    tmp_path: Path, asked: Asked, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A gateway without the session closes no key, and is asked until the right gateway is back. A
    session that no gateway has is given up, with a line in the log."""
    state = StateDatabase(tmp_path / "state.sqlite3")
    port = free_port()

    def gateway_of(folder: str) -> RunningGateway:
        return RunningGateway(["vllm=http://e"], sessions=tmp_path / folder, control_port=port)

    state.put_node("a", "1", {"control": f"http://127.0.0.1:{port}"})
    state.note_key("t.0.1", "a", made=True)
    with gateway_of("owner") as owner:
        assert owner.control.post("/sessions", json={"id": "t.0.1"}).is_success
    with gateway_of("other"):
        asyncio.run(look(state, lambda: asked.unknown >= 3))
    assert len(state.open_keys()) == 1
    with gateway_of("owner") as owner:
        asyncio.run(look(state, lambda: not state.open_keys()))
        assert owner.control.get("/sessions/t.0.1").json()["closed"]
        assert "jaxserve.rollouts" not in {record.name for record in caplog.records}
        for session in ("t.1.1", "t.2.1"):
            state.note_key(session, "a", made=session == "t.1.1")
        monkeypatch.setattr(cleanup, "_LONGEST_WAIT_S", 0.01)
        asyncio.run(look(state, lambda: not state.open_keys()))
    (said,) = (one for one in caplog.messages if "its key is given up" in one)
    assert "has no session t.1.1;" in said
    state.close()


def test_a_gateway_that_is_gone_for_ever(
    tmp_path: Path, asked: Asked, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Old keys are given up, with a line in the log, also after a restart of the service, but only
    after it has asked for some minutes."""
    path, now = tmp_path / "state.sqlite3", time.time
    monkeypatch.setattr(cleanup, "_LONGEST_WAIT_S", 0.08)
    state = StateDatabase(path)
    state.put_node("gone", "1", {"control": "http://127.0.0.1:9"})
    state.note_key("t.0.1", "gone", made=True)
    asyncio.run(look(state, lambda: asked.total >= 5))
    assert len(state.open_keys()) == 1 and not caplog.records
    state.close()
    before, state = asked.total, StateDatabase(path)
    monkeypatch.setattr(time, "time", lambda: now() + cleanup._LONGEST_SILENCE_S)
    state.note_key("t.1.1", "gone", made=True)
    asyncio.run(look(state, lambda: len(state.open_keys()) == 1))
    assert asked.total - before >= 3
    assert [key.recorded for key in state.open_keys()] == ["t.1.1"]
    (said,) = caplog.messages
    assert "session t.0.1 is given up after 24 h" in said and "127.0.0.1:9 does not serve" in said
    state.close()


def test_nodes_begin_with_that(docker: Docker, gateway: RunningGateway, tmp_path: Path) -> None:
    """A node elsewhere, and the one in the service: before they are given anything."""
    left = docker.outlived(tmp_path / "s", "0.1")
    lost = docker.outlived(tmp_path / "a", "0.1")
    with RunningService(gateway, tmp_path / "s") as service:
        wait_until(lambda: docker.names() == {lost}, f"the end of {left}")
        with RunningNode(service, gateway, tmp_path / "a", "a"):
            wait_until(
                lambda: any(one["id"] == "a" for one in service.http.get("/nodes").json()["nodes"])
            )
            assert docker.names() == set()
