"""Command lines of containers to the letter, and what a stand-in for docker is really given."""

from __future__ import annotations

import asyncio
import csv
import hashlib
import json
import os
import shutil
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jaxserve.checks import JsonObject
from jaxserve.rollouts.sandboxes import SandboxCommand
from jaxserve.rollouts.sandboxes.containers import ApptainerSandbox, DockerSandbox
from jaxserve.rollouts.sandboxes.processes import CommandLine, container_name
from tests.rollouts.sandboxes.commands import executed, session_folder

TOP = Path("/s/a task/0.1")
KEYS = {"OPENAI_API_KEY": "SECRET", "INSTRUCTION": "a\nb"}
USER = f"--user={os.getuid()}:{os.getgid()}"
NASTY = "'; touch pwned; $(touch pwned) `touch pwned` \" \\ --rm \n{{X}}"


def command_line(
    made: type[Any], options: dict[str, Any], argv: tuple[str, ...], given: bytes, **variables: str
) -> CommandLine:
    """The process by which a sandbox of ``TOP`` runs a command."""
    sandbox = made(JsonObject(options, "runtime"), TOP)
    command = SandboxCommand(argv, TOP / "work", variables, TOP / "home", KEYS, given)
    return sandbox.command_line(command)


def test_docker_to_the_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    """The session's folder and nothing else is mounted; keys stand on no command line."""
    monkeypatch.setenv("PATH", "/bin")
    monkeypatch.setenv("JAXSERVE_ROLLOUT_TOKEN", "TOKEN")
    options = {"image": "img:1", "network": "none", "cpus": 1.5, "memory_mib": 512}
    process = command_line(DockerSandbox, options, ("run", NASTY), b"x", A="b c", LD_PRELOAD="x.so")
    assert process.argv == (
        "docker",
        "run",
        "--rm",
        "--init",
        "--interactive",
        f"--name={container_name(TOP)}",
        f"--label=jaxserve.tasks={hashlib.sha256(b'/s').hexdigest()[:24]}",
        USER,
        "--network=none",
        "--cpus=1.5",
        "--memory=512m",
        "--mount=type=bind,source=/s/a task/0.1,target=/s/a task/0.1",
        "--workdir=/s/a task/0.1/work",
        "--env=A=b c",
        "--env=LD_PRELOAD=x.so",
        "--env=HOME=/s/a task/0.1/home",
        "--env=OPENAI_API_KEY",
        "--env=INSTRUCTION",
        "--entrypoint=",
        "--",
        "img:1",
        "run",
        NASTY,
    )
    assert process.environment["OPENAI_API_KEY"] == "SECRET"
    assert process.environment["PATH"] == "/bin"
    assert {"LD_PRELOAD", "JAXSERVE_ROLLOUT_TOKEN"}.isdisjoint(process.environment)
    gone = DockerSandbox(JsonObject(options, "runtime"), TOP).removal()
    assert gone == ("docker", "rm", "--force", "--volumes", container_name(TOP))


def test_apptainer_to_the_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables have its prefix, and nothing is evaluated as a shell would."""
    monkeypatch.setenv("PATH", "/bin")
    options = {"image": "docker://img", "cpus": 2, "memory_mib": 512}
    process = command_line(ApptainerSandbox, options, ("run", "-x"), b"", A="b")
    assert process.argv == (
        "apptainer",
        "exec",
        "--containall",
        "--cleanenv",
        "--no-eval",
        "--writable-tmpfs",
        "--cpus=2",
        "--memory=512M",
        "--mount=type=bind,source=/s/a task/0.1,destination=/s/a task/0.1",
        "--home=/s/a task/0.1/home",
        "--pwd=/s/a task/0.1/work",
        "--",
        "docker://img",
        "run",
        "-x",
    )
    theirs = {name for name in process.environment if name.startswith("APPTAINERENV_")}
    assert theirs == {
        "APPTAINERENV_A",
        "APPTAINERENV_OPENAI_API_KEY",
        "APPTAINERENV_INSTRUCTION",
    }
    assert ApptainerSandbox(JsonObject(options, "runtime"), TOP).removal() == ()


@given(
    st.binary(min_size=1, max_size=20)
    | st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20).map(str.encode)
)
@example(b"\xff")
def test_any_folder_is_one_field(content: bytes) -> None:
    """Commas and quotes in its name do not begin another option of the mount; the name may be any
    bytes that a file system takes."""
    name = os.fsdecode(content.replace(b"\0", b"").replace(b"/", b"") or b"x")
    top = Path("/s") / name
    sandbox = DockerSandbox(JsonObject({"image": "i"}, "runtime"), top)
    argv = sandbox.command_line(SandboxCommand(("x",), top, {}, top, {})).argv
    (mount,) = [one for one in argv if one.startswith("--mount=")]
    text = mount.removeprefix("--mount=")
    if "\n" not in name and "\r" not in name:
        assert next(csv.reader([text], strict=True)) == [
            "type=bind",
            f"source={top}",
            f"target={top}",
        ]


STAND_IN = """#!{python}
import json, os, sys, subprocess
with open({log!r}, "a") as log:
    log.write(json.dumps([sys.argv[1:], sys.stdin.read() if "--interactive" in sys.argv else "",
                          sorted(os.environ)]) + "\\n")
if sys.argv[1] == "run":
    after = sys.argv.index("--")
    raise SystemExit(subprocess.call(sys.argv[after + 2 :]))
"""


def test_a_stand_in_for_docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gets every argument and the input as they are; the container is removed in the end, also
    when the time was up."""
    programs, log = tmp_path / "bin", tmp_path / "log"
    programs.mkdir()
    docker = programs / "docker"
    docker.write_text(STAND_IN.format(python=sys.executable, log=str(log)))
    docker.chmod(docker.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    top = session_folder(tmp_path / 'task, "x"' / "0.1")
    runtime = {"kind": "docker", "image": "img"}
    code = "import sys; print(sys.argv[1:])"
    ended = asyncio.run(executed(runtime, top, [sys.executable, "-c", code, NASTY], given=b"input"))
    assert ended.code == 0 and repr([NASTY]) in (top / "printed").read_text()
    assert asyncio.run(executed(runtime, top, ["sleep", "60"], budget_s=0.5)).timed_out
    calls = [json.loads(line) for line in log.read_text().splitlines()]
    name = container_name(top)
    assert [call[0][:2] for call in calls] == [["run", "--rm"], ["rm", "--force"]] * 2
    assert calls[0][0][-1] == NASTY and calls[0][1] == "input" and "KEY" in calls[0][2]
    assert calls[1][0] == ["rm", "--force", "--volumes", name] and f"--name={name}" in calls[0][0]
    assert "SECRET" not in log.read_text() and not list(tmp_path.rglob("pwned"))


@pytest.mark.parametrize("kind", ["docker", "apptainer"])
def test_a_real_one(kind: str, tmp_path: Path) -> None:
    """A real container, where this machine has the program and an image to run."""
    image = os.environ.get("JAXSERVE_CONTAINER_IMAGE")
    if shutil.which(kind) is None or image is None:
        pytest.skip(f"{kind} is not in PATH, or JAXSERVE_CONTAINER_IMAGE names no image")
    top = session_folder(tmp_path / "0.1")
    command = ["sh", "-c", 'echo "$KEY" > said']
    assert asyncio.run(executed({"kind": kind, "image": image}, top, command)).code == 0
    assert (top / "work" / "said").read_text() == "SECRET\n"
