"""Processes of this machine, and commands behind a prefix."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from jaxserve.checks import JsonObject
from jaxserve.errors import InputError
from jaxserve.rollouts.sandboxes import SandboxCommand, parse_sandbox
from jaxserve.rollouts.sandboxes.processes import LocalSandbox, container_name
from tests.patience import PATIENCE_S, alive, wait_until
from tests.rollouts.sandboxes.commands import executed, session_folder

NASTY = "a'b\"c\n$(touch pwned) `touch pwned` \\ {{NAME}}"
LOOK = "import json, os, resource, sys\n" + (
    "said = [dict(os.environ), os.getcwd(), sys.argv[1:], sys.stdin.read(), os.nice(0),"
    " resource.getrlimit(resource.RLIMIT_AS)[0]]\n"
    "json.dump(said, open('said', 'w'))"
)
"""An agent that tells what it is given."""


def test_local_processes_get_no_token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And what a task sets cannot change what the service sets."""
    monkeypatch.setenv("PATH", "/bin")
    monkeypatch.setenv("JAXSERVE_ROLLOUT_TOKEN", "TOKEN")
    task = {"OPENAI_API_KEY": "other", "PATH": "/x", "A": "b"}
    command = SandboxCommand(("run",), tmp_path, task, tmp_path, {"OPENAI_API_KEY": "SECRET"})
    process = LocalSandbox(JsonObject({}, "runtime"), tmp_path).command_line(command)
    assert process.argv == ("run",)
    assert process.environment["OPENAI_API_KEY"] == "SECRET"
    assert (process.environment["PATH"], process.environment["A"]) == ("/bin", "b")
    assert "JAXSERVE_ROLLOUT_TOKEN" not in process.environment
    assert "SECRET" not in repr(command)


PREFIXES: dict[str, Any] = {
    "nice": {"wrap": ["nice", "-n", "3"]},
    "prlimit": {"wrap": ["prlimit", "--as={{MEMORY_MIB}}000000", "--"], "memory_mib": 3000},
    "env": {"wrap": ["env", "-i", "PATH=/usr/bin:/bin"]},
    "bwrap": {
        "wrap": [
            *("bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"),
            *("--bind", "{{SESSION_DIR}}", "{{SESSION_DIR}}", "--die-with-parent", "--clearenv"),
            *("--setenv", "PATH", "/usr/bin:/bin"),
        ]
    },
}


@pytest.mark.parametrize("name", PREFIXES)
def test_a_real_prefix(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command has exactly its variables and arguments, whatever the prefix passes on, and the
    prefix has its effect; nothing of the service reaches the command, and no file keeps the key."""
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not in PATH")
    monkeypatch.setenv("JAXSERVE_ROLLOUT_TOKEN", "TOKEN")
    monkeypatch.setenv("KUBECONFIG", "/of/the/client")
    top = session_folder(tmp_path / "0.1")
    runtime = {"kind": "wrapped", **PREFIXES[name]}
    command = [sys.executable, "-c", LOOK, NASTY]
    ended = asyncio.run(executed(runtime, top, command, given=b"input", TASK=NASTY))
    printed = (top / "printed").read_text()
    if name == "bwrap" and "No permissions to create" in printed:
        pytest.skip("bwrap may not create namespaces here")
    assert ended.code == 0, (ended, printed)
    environment, folder, arguments, said, niceness, memory = json.loads(
        (top / "work" / "said").read_text()
    )
    assert (environment["KEY"], environment["TASK"]) == ("SECRET", NASTY)
    assert environment["HOME"] == str(top / "home")
    assert {"JAXSERVE_ROLLOUT_TOKEN", "KUBECONFIG"}.isdisjoint(environment)
    assert (folder, arguments, said) == (str(top / "work"), [NASTY], "input")
    assert niceness == os.nice(0) + (3 if name == "nice" else 0)
    assert (memory == 3_000_000_000) == (name == "prlimit")
    assert sorted(one.name for one in top.iterdir()) == ["home", "printed", "work"]
    assert not list(tmp_path.rglob("pwned"))


DAEMON = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"],
    start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
with open("part", "w") as file:
    file.write(f"{os.getpid()} {child.pid}")
os.rename("part", "pids")
time.sleep(1000)
"""
"""An agent that ignores TERM, with a process that left its group."""


@pytest.mark.skipif(sys.platform != "linux", reason="is found by /proc")
@pytest.mark.parametrize("cancelled", [False, True], ids=["late", "cancelled"])
def test_all_processes_behind_a_prefix_end(cancelled: bool, tmp_path: Path) -> None:
    """At the time limit and after a cancellation, also those that ignore TERM and those that left
    the group; then the command that removes what the prefix has left runs, with its name."""
    top = session_folder(tmp_path / "0.1")
    removal = f"echo {{{{NAME}}}} {{{{SESSION_DIR}}}} >> {tmp_path}/removed"
    runtime = {"kind": "wrapped", "wrap": ["nice"], "end": ["sh", "-c", removal]}
    pids = top / "work" / "pids"

    async def run() -> None:
        command = [sys.executable, "-c", DAEMON]
        budget_s = PATIENCE_S if cancelled else 5.0
        running = asyncio.create_task(executed(runtime, top, command, budget_s=budget_s))
        if cancelled:
            async with asyncio.timeout(PATIENCE_S):
                while not pids.exists():
                    await asyncio.sleep(0.01)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
        else:
            assert (await running).timed_out

    asyncio.run(run())
    for pid in pids.read_text().split():
        wait_until(lambda pid=pid: not alive(int(pid)), "the end of all processes")
    assert (tmp_path / "removed").read_text() == f"{container_name(top)} {top}\n"
    assert not (top / ".environment").exists()


@pytest.mark.parametrize(
    ("runtime", "message"),
    [
        ({}, "runtime: wrap is missing; it must be a list with at least one entry"),
        ({"wrap": []}, "runtime: wrap is []; it must be a list with at least one entry"),
        ({"wrap": "nice"}, "runtime: wrap is 'nice'; it must be a list"),
        ({"wrap": ["nice", ""]}, "it must be program and arguments, a list of texts without NUL"),
        ({"wrap": ["a\0"]}, "it must be program and arguments"),
        ({"wrap": ["a"], "end": [1]}, "runtime: end is [1]; it must be program and arguments"),
        ({"wrap": ["a", "{{CPU}}"]}, "runtime: wrap is '{{CPU}}'; it must be a command whose"),
        ({"wrap": ["a", "-c{{CPUS}}"]}, "runtime: cpus is None; it must be there for {{CPUS}}"),
        ({"wrap": ["a"], "cpus": 2}, "runtime: cpus is 2; it must be left out, or used in wrap"),
        ({"wrap": ["{{CPUS}}"], "cpus": 0}, "runtime: cpus is 0; it must be a number from 0.01"),
        ({"wrap": ["{{MEMORY_MIB}}"], "memory_mib": 1}, "memory_mib is 1; it must be a whole"),
        ({"wrap": ["a"], "image": "x"}, "runtime: field 'image' is unknown; allowed are cpus"),
    ],
)
def test_a_prefix_that_is_wrong(runtime: dict[str, Any], message: str) -> None:
    """Is refused in one sentence."""
    with pytest.raises(InputError) as caught:
        parse_sandbox(JsonObject({"kind": "wrapped", **runtime}, "runtime"))
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_braces_of_json_are_no_placeholders(tmp_path: Path) -> None:
    """``kubectl run --overrides`` has them."""
    overrides = '{"spec": {"volumes": [{"name": "{{NAME}}"}]}}'
    runtime = {"kind": "wrapped", "wrap": ["echo", overrides]}
    top = session_folder(tmp_path / "0.1")
    assert asyncio.run(executed(runtime, top, ["x"])).code == 0
    said = (top / "printed").read_text()
    assert said.startswith(overrides.replace("{{NAME}}", container_name(top)))
