"""Commands in actors of Ray, and copies of folders that agents may have filled."""

from __future__ import annotations

import asyncio
import io
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jaxserve.checks import JsonObject
from jaxserve.errors import InputError
from jaxserve.rollouts.sandboxes import parse_sandbox
from jaxserve.rollouts.sandboxes.processes import container_name
from jaxserve.rollouts.sandboxes.ray_actor import pack_folder, unpack_folder
from tests.patience import PATIENCE_S, alive, wait_until
from tests.rollouts.sandboxes.commands import executed, session_folder
from tests.rollouts.sandboxes.test_processes import DAEMON

ROOT = Path(__file__).resolve().parents[3]
RAY = {"kind": "jaxserve.rollouts.sandboxes.ray_actor:RaySandbox"}


def test_a_folder_comes_back_as_it_was(tmp_path: Path) -> None:
    """Files with their modes, inner links and empty folders; what was there before is gone."""
    here, there = tmp_path / "here", tmp_path / "there"
    (here / "empty").mkdir(parents=True)
    (here / "run").write_text("x")
    (here / "run").chmod(0o755)
    (here / "link").symlink_to("run")
    there.mkdir()
    (there / "old").touch()
    unpack_folder(pack_folder(here), there)
    assert sorted(one.name for one in there.iterdir()) == ["empty", "link", "run"]
    assert (there / "link").is_symlink() and (there / "run").stat().st_mode & 0o100


def test_an_agents_archive_writes_nothing_outside(tmp_path: Path) -> None:
    """Links and paths that lead out are left out, and the other files come."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, target in (("out", "/etc"), ("up", "../.."), ("kept", "inner")):
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, target
            archive.addfile(link)
        for name in ("../escaped", "up/escaped", "inner"):
            file = tarfile.TarInfo(name)
            file.size = 1
            archive.addfile(file, io.BytesIO(b"x"))
        device = tarfile.TarInfo("device")
        device.type = tarfile.CHRTYPE
        archive.addfile(device)
    there = tmp_path / "a" / "there"
    there.parent.mkdir()
    unpack_folder(packed.getvalue(), there)
    assert not [one for one in tmp_path.rglob("escaped") if there not in one.parents]
    assert sorted(one.name for one in there.iterdir()) == ["inner", "kept", "up"]
    assert not (there / "up").is_symlink()


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"cpus": -1}, "runtime: cpus is -1; it must be a number from 0 to 1024"),
        ({"gpus": "1"}, "runtime: gpus is '1'; it must be a number"),
        ({"memory_mib": 0}, "runtime: memory_mib is 0; it must be a whole number"),
        ({"image": "x"}, "runtime: field 'image' is unknown"),
    ],
)
def test_a_resource_that_is_wrong(option: dict[str, Any], message: str) -> None:
    """Is refused in one sentence, without Ray."""
    with pytest.raises(InputError) as caught:
        parse_sandbox(JsonObject({**RAY, **option}, "runtime"))
    assert str(caught.value).startswith(message)


def test_ray_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Is the reason of the end, and says what to do."""
    monkeypatch.setitem(sys.modules, "ray", None)
    ended = asyncio.run(executed(RAY, session_folder(tmp_path / "0.1"), ["true"]))
    assert ended.reason == "Ray is not installed: pip install 'jaxserve[ray]'"


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A cluster of this machine."""
    import ray

    variables = {"env_vars": {"PYTHONPATH": str(ROOT)}}
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, runtime_env=variables)
    yield
    ray.shutdown()


LOOK = """
import os, sys
for name in ("KEY", "HOME", "TASK"):
    print(os.environ[name])
print(os.getcwd(), sys.argv[1:], sys.stdin.read(), open("given").read())
print("PATH" in os.environ, "JAXSERVE_ROLLOUT_TOKEN" in os.environ)
open("made", "w").write("x")
open(os.environ["HOME"] + "/of_home", "w").write("x")
os.remove("given")
raise SystemExit(7)
"""


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_a_command_of_an_actor(tmp_path: Path) -> None:
    """The command has its folders, variables and input, and its changes come back; its copy of the
    folder is gone then."""
    top = session_folder(tmp_path / "0.1")
    (top / "work" / "given").write_text("of the node")
    inside = Path("/tmp") / container_name(top)
    command = [sys.executable, "-c", LOOK, "a b"]
    ended = asyncio.run(executed({**RAY, "cpus": 1}, top, command, given=b"input", TASK="of it"))
    assert (ended.code, ended.timed_out, ended.reason) == (7, False, "")
    assert (top / "printed").read_text().splitlines() == [
        "SECRET",
        f"{inside}/home",
        "of it",
        f"{inside}/work ['a b'] input of the node",
        "True False",
    ]
    files = {str(path.relative_to(top)) for path in top.rglob("*") if path.is_file()}
    assert files == {"printed", "work/made", "home/of_home"}
    assert not inside.exists()


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("end", ["late", "cancelled", "lost"])
def test_all_processes_of_an_actor_end(end: str, tmp_path: Path) -> None:
    """At the time limit, after a cancellation, and where the actor is lost, which is the reason of
    the end."""
    top = session_folder(tmp_path / "0.1")
    pids = tmp_path / "pids"
    note = f"\nos.rename('pids', {str(pids)!r})\n"
    code = DAEMON.replace("\ntime.sleep(1000)", f"{note}time.sleep(1000)")
    if end == "lost":
        code = code.replace(note, f"{note}os.kill(os.getppid(), signal.SIGKILL)\n")

    async def run() -> None:
        budget_s = 40.0 if end == "late" else PATIENCE_S
        command = [sys.executable, "-c", code]
        running = asyncio.create_task(executed(RAY, top, command, budget_s=budget_s))
        if end == "cancelled":
            async with asyncio.timeout(PATIENCE_S):
                while not pids.exists():
                    await asyncio.sleep(0.01)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            return
        ended = await running
        assert ended.timed_out == (end == "late")
        assert ended.reason.startswith("the sandbox is lost: " if end == "lost" else "")

    asyncio.run(run())
    for pid in pids.read_text().split():
        wait_until(lambda pid=pid: not alive(int(pid)), "the end of all processes")
