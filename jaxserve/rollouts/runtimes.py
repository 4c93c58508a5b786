"""Where an agent's commands run: as processes of this machine, or in containers.

A container sees the session's folder at its own path and nothing else of this machine's files. No
shell reads any of this: a command is program and arguments from the submission to the kernel.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

LOCAL, DOCKER, APPTAINER = "local", "docker", "apptainer"
KINDS = (LOCAL, DOCKER, APPTAINER)
_LOCAL_PASSED_ON = ("PATH", "LANG", "LC_ALL", "TZ", "SSL_CERT_FILE")
"""Of the service's own variables; others may hold its tokens."""
_CLIENT_PASSED_ON = ("PATH", "HOME", "DOCKER_HOST", "DOCKER_CONFIG", "XDG_RUNTIME_DIR", "TMPDIR")
"""What the programs ``docker`` and ``apptainer`` need to work."""


@dataclass(frozen=True)
class Runtime:
    """Where the commands of a task run."""

    kind: str = LOCAL
    """``local``, ``docker`` or ``apptainer``."""
    image: str = ""
    """of a container."""
    network: str = "host"
    """of a docker container. The gateway is usually an address of this machine."""
    source: Path | None = None
    """folder of which each agent gets a copy to work in; None begins with an empty one."""
    prepare: tuple[tuple[str, ...], ...] = ()
    """commands that run in the copy before the agent."""
    eval_prepare: tuple[tuple[str, ...], ...] = ()
    """commands that run in the evaluation's own copy."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """of all commands, beside those that agents get."""


@dataclass(frozen=True)
class ServiceVariables:
    """Variables that the service gives, apart from those of a task."""

    home: Path
    """``HOME``."""
    values: Mapping[str, str] = field(default_factory=dict, repr=False)
    """others; keys are among them."""


@dataclass(frozen=True)
class CommandLine:
    """What is started on this machine."""

    argv: tuple[str, ...]
    """program and arguments."""
    environment: Mapping[str, str] = field(repr=False)
    """all its variables."""


def command_line(
    runtime: Runtime,
    command: Sequence[str],
    ours: ServiceVariables,
    top: Path,
    folder: Path,
    *,
    reads: bool = False,
) -> CommandLine:
    """A command of a task as a process of this machine.

    Args:
      runtime: where it runs.
      command: program and arguments, as they are.
      ours: what the service gives.
      top: the session's folder, all that a container sees, in that of its task, in that of all.
      folder: inside it, where the command runs.
      reads: whether it is given an input.
    """
    home = {"HOME": str(ours.home)}
    if runtime.kind == LOCAL:
        passed = _passed_on(_LOCAL_PASSED_ON)
        return CommandLine(tuple(command), {**runtime.variables, **passed, **home, **ours.values})
    client = _passed_on(_CLIENT_PASSED_ON)
    if runtime.kind == DOCKER:
        argv = _docker(runtime, ours, top, folder, reads)
        # docker takes the value of a variable that is only named from its own environment, so
        # that no key stands on a command line. Names of the service's are fixed ones; those of a
        # task could change what docker itself does.
        return CommandLine((*argv, runtime.image, *command), {**ours.values, **client})
    inside = {**runtime.variables, **ours.values}
    argv = _apptainer(runtime, ours, top, folder)
    named = {f"APPTAINERENV_{name}": value for name, value in inside.items()}
    return CommandLine((*argv, runtime.image, *command), {**named, **client})


def container_removal(runtime: Runtime, top: Path) -> CommandLine | None:
    """What ends a session's containers that outlived the command; None where none can."""
    if runtime.kind != DOCKER:
        return None
    return containers_removal([container_name(top)])


def list_containers(tasks: Path) -> CommandLine:
    """What prints the containers of all sessions in a folder of tasks."""
    argv = ("docker", "ps", "--all", "--quiet", f"--filter=label={_label(tasks)}")
    return CommandLine(argv, _passed_on(_CLIENT_PASSED_ON))


def containers_removal(containers: Sequence[str]) -> CommandLine:
    """What ends containers, by their names."""
    argv = ("docker", "rm", "--force", "--volumes", *containers)
    return CommandLine(argv, _passed_on(_CLIENT_PASSED_ON))


def container_name(top: Path) -> str:
    """Of a session's container: one for each folder, so that whoever comes next finds it."""
    return f"jaxserve-{_digest(top)}"


def _label(tasks: Path) -> str:
    """Of all containers of a node, which has a folder of tasks to itself."""
    return f"jaxserve.tasks={_digest(tasks)}"


def _digest(path: Path) -> str:
    return hashlib.sha256(str(path).encode()).hexdigest()[:24]


def _docker(
    runtime: Runtime, ours: ServiceVariables, top: Path, folder: Path, reads: bool
) -> tuple[str, ...]:
    inputs = ("--interactive",) if reads else ()
    theirs = [f"--env={name}={value}" for name, value in runtime.variables.items()]
    return (
        "docker",
        "run",
        "--rm",
        "--init",
        *inputs,
        f"--name={container_name(top)}",
        f"--label={_label(top.parent.parent)}",
        f"--user={os.getuid()}:{os.getgid()}",
        f"--network={runtime.network}",
        f"--mount={_mount('target', top)}",
        f"--workdir={folder}",
        *theirs,
        f"--env=HOME={ours.home}",
        *(f"--env={name}" for name in ours.values),
        "--entrypoint=",
        "--",
    )


def _apptainer(
    runtime: Runtime, ours: ServiceVariables, top: Path, folder: Path
) -> tuple[str, ...]:
    return (
        "apptainer",
        "exec",
        "--containall",
        "--cleanenv",
        "--no-eval",  # else it reads variables and arguments as a shell does
        "--writable-tmpfs",
        f"--mount={_mount('destination', top)}",
        f"--home={ours.home}",
        f"--pwd={folder}",
        "--",
    )


def _mount(target: str, top: Path) -> str:
    """A mount of a folder at its own path. The fields are a line of CSV."""
    fields = ["type=bind", f"source={top}", f"{target}={top}"]
    doubled = '""'
    return ",".join(
        f'"{one.replace(chr(34), doubled)}"' if any(c in one for c in ',"') else one
        for one in fields
    )


def _passed_on(names: Sequence[str]) -> dict[str, str]:
    return {name: os.environ[name] for name in names if name in os.environ}
