"""Runtimes of an agent's commands: processes of this machine, or containers.

A container sees the session's folder, at its own path, and no other file of this machine. No shell
is involved: a command is program and arguments from the submission to the kernel.
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
"""Variables of the service that local commands get; others may hold its tokens."""
_CLIENT_PASSED_ON = ("PATH", "HOME", "DOCKER_HOST", "DOCKER_CONFIG", "XDG_RUNTIME_DIR", "TMPDIR")
"""Variables of the service that ``docker`` and ``apptainer`` need."""


@dataclass(frozen=True)
class Runtime:
    """The runtime of a task's commands."""

    kind: str = LOCAL
    """``local``, ``docker`` or ``apptainer``."""
    image: str = ""
    """image of the container."""
    network: str = "host"
    """network of a docker container; ``host``, since the gateway is usually on this machine."""
    source: Path | None = None
    """folder that is copied for each agent; None gives agents an empty folder."""
    prepare: tuple[tuple[str, ...], ...] = ()
    """commands to run in the copy before the agent."""
    eval_prepare: tuple[tuple[str, ...], ...] = ()
    """commands to run in the evaluation's own copy."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """variables of all commands, beside the service's."""


@dataclass(frozen=True)
class ServiceVariables:
    """Variables that the service sets, apart from those of a task."""

    home: Path
    """``HOME``."""
    values: Mapping[str, str] = field(default_factory=dict, repr=False)
    """other variables, keys among them."""


@dataclass(frozen=True)
class CommandLine:
    """A command with its environment, ready to start on this machine."""

    argv: tuple[str, ...]
    """program and arguments."""
    environment: Mapping[str, str] = field(repr=False)
    """the whole environment."""


def command_line(
    runtime: Runtime,
    command: Sequence[str],
    own: ServiceVariables,
    top: Path,
    folder: Path,
    *,
    reads: bool = False,
) -> CommandLine:
    """The command line by which this machine runs a command of a task.

    Args:
      runtime: runtime of the task.
      command: program and arguments.
      own: the service's variables.
      top: the session's folder, which a container sees: ``TASKS/TASK/SAMPLE.ATTEMPT``.
      folder: working directory, inside ``top``.
      reads: whether the command has a standard input.
    """
    home = {"HOME": str(own.home)}
    if runtime.kind == LOCAL:
        passed = _passed_on(_LOCAL_PASSED_ON)
        return CommandLine(tuple(command), {**runtime.variables, **passed, **home, **own.values})
    client = _passed_on(_CLIENT_PASSED_ON)
    if runtime.kind == DOCKER:
        argv = _docker(runtime, own, top, folder, reads)
        # docker reads the value of --env=NAME from its own environment, so that no key is on a
        # command line. The service's names are fixed; those of a task could configure docker.
        return CommandLine((*argv, runtime.image, *command), {**own.values, **client})
    inside = {**runtime.variables, **own.values}
    argv = _apptainer(runtime, own, top, folder)
    named = {f"APPTAINERENV_{name}": value for name, value in inside.items()}
    return CommandLine((*argv, runtime.image, *command), {**named, **client})


def container_removal(runtime: Runtime, top: Path) -> CommandLine | None:
    """The command that removes a session's container; None for runtimes without one."""
    if runtime.kind != DOCKER:
        return None
    return containers_removal([container_name(top)])


def list_containers(tasks: Path) -> CommandLine:
    """The command that prints the containers of all sessions in a folder of tasks."""
    argv = ("docker", "ps", "--all", "--quiet", f"--filter=label={_label(tasks)}")
    return CommandLine(argv, _passed_on(_CLIENT_PASSED_ON))


def containers_removal(containers: Sequence[str]) -> CommandLine:
    """The command that removes containers by name."""
    argv = ("docker", "rm", "--force", "--volumes", *containers)
    return CommandLine(argv, _passed_on(_CLIENT_PASSED_ON))


def container_name(top: Path) -> str:
    """Name of a session's container, determined by its folder, so that a later process finds it."""
    return f"jaxserve-{_digest(top)}"


def _label(tasks: Path) -> str:
    """Label of all containers of a node, determined by its folder of tasks."""
    return f"jaxserve.tasks={_digest(tasks)}"


def _digest(path: Path) -> str:
    return hashlib.sha256(str(path).encode()).hexdigest()[:24]


def _docker(
    runtime: Runtime, own: ServiceVariables, top: Path, folder: Path, reads: bool
) -> tuple[str, ...]:
    inputs = ("--interactive",) if reads else ()
    of_task = [f"--env={name}={value}" for name, value in runtime.variables.items()]
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
        *of_task,
        f"--env=HOME={own.home}",
        *(f"--env={name}" for name in own.values),
        "--entrypoint=",
        "--",
    )


def _apptainer(runtime: Runtime, own: ServiceVariables, top: Path, folder: Path) -> tuple[str, ...]:
    return (
        "apptainer",
        "exec",
        "--containall",
        "--cleanenv",
        "--no-eval",  # without it variables and arguments are evaluated as by a shell
        "--writable-tmpfs",
        f"--mount={_mount('destination', top)}",
        f"--home={own.home}",
        f"--pwd={folder}",
        "--",
    )


def _mount(target: str, top: Path) -> str:
    """A mount of a folder at its own path; its fields are a line of CSV."""
    fields = ["type=bind", f"source={top}", f"{target}={top}"]
    doubled = '""'
    return ",".join(
        f'"{one.replace(chr(34), doubled)}"' if any(c in one for c in ',"') else one
        for one in fields
    )


def _passed_on(names: Sequence[str]) -> dict[str, str]:
    return {name: os.environ[name] for name in names if name in os.environ}
