"""Sandboxes in containers of the node's machine.

A container sees the session's folder, at its own path, and no other file of this machine.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from jaxserve.checks import JsonObject, refuse
from jaxserve.rollouts.sandboxes.interface import SandboxCommand, sandbox_options
from jaxserve.rollouts.sandboxes.processes import (
    CommandLine,
    MachineSandbox,
    client_variables,
    container_name,
    digest,
    resource_limits,
)

_REFERENCE = re.compile(r"[!-,./-~][!-~]*")
_IMAGE_OPTIONS = ("image", "cpus", "memory_mib")


class DockerSandbox(MachineSandbox):
    """A docker container for each command."""

    def __init__(self, options: JsonObject, outside: Path) -> None:
        """Options: ``image``; ``network`` (``host``, since the gateway is usually on this machine);
        ``cpus`` and ``memory_mib``, limits of the container."""
        super().__init__(outside)
        known = sandbox_options(options, *_IMAGE_OPTIONS, "network")
        self._image = _reference(known, "image")
        self._network = _reference(known, "network") if "network" in known else "host"
        limits = resource_limits(known)
        self._limits = [f"--cpus={limits['cpus']}"] if "cpus" in limits else []
        if "memory_mib" in limits:
            self._limits.append(f"--memory={limits['memory_mib']}m")

    def command_line(self, command: SandboxCommand) -> CommandLine:
        """See ``MachineSandbox``."""
        top = self.inside
        inputs = ("--interactive",) if command.given else ()
        argv = (
            "docker",
            "run",
            "--rm",
            "--init",
            *inputs,
            f"--name={container_name(top)}",
            f"--label={_label(top.parent.parent)}",
            f"--user={os.getuid()}:{os.getgid()}",
            f"--network={self._network}",
            *self._limits,
            f"--mount={_mount('target', top)}",
            f"--workdir={command.folder}",
            *(f"--env={name}={value}" for name, value in command.variables.items()),
            f"--env=HOME={command.home}",
            *(f"--env={name}" for name in command.secret_variables),
            "--entrypoint=",
            "--",
            self._image,
            *command.argv,
        )
        # docker reads the value of --env=NAME from its own environment, so that no key is on a
        # command line. The service's names are fixed; those of a task could configure docker.
        return CommandLine(argv, {**command.secret_variables, **client_variables()})

    def removal(self) -> tuple[str, ...]:
        """See ``MachineSandbox``."""
        return containers_removal([container_name(self.inside)])


class ApptainerSandbox(MachineSandbox):
    """An Apptainer container for each command."""

    def __init__(self, options: JsonObject, outside: Path) -> None:
        """Options: ``image``; ``cpus`` and ``memory_mib``, limits of the container."""
        super().__init__(outside)
        known = sandbox_options(options, *_IMAGE_OPTIONS)
        self._image = _reference(known, "image")
        limits = resource_limits(known)
        self._limits = [f"--cpus={limits['cpus']}"] if "cpus" in limits else []
        if "memory_mib" in limits:
            self._limits.append(f"--memory={limits['memory_mib']}M")

    def command_line(self, command: SandboxCommand) -> CommandLine:
        """See ``MachineSandbox``."""
        argv = (
            "apptainer",
            "exec",
            "--containall",
            "--cleanenv",
            "--no-eval",  # without it variables and arguments are evaluated as by a shell
            "--writable-tmpfs",
            *self._limits,
            f"--mount={_mount('destination', self.inside)}",
            f"--home={command.home}",
            f"--pwd={command.folder}",
            "--",
            self._image,
            *command.argv,
        )
        inside = {**command.variables, **command.secret_variables}
        named = {f"APPTAINERENV_{name}": value for name, value in inside.items()}
        return CommandLine(argv, {**named, **client_variables()})


def list_containers(tasks: Path) -> tuple[str, ...]:
    """The command that prints the containers of all sessions in a folder of tasks."""
    return ("docker", "ps", "--all", "--quiet", f"--filter=label={_label(tasks)}")


def containers_removal(containers: Sequence[str]) -> tuple[str, ...]:
    """The command that removes containers by name."""
    return ("docker", "rm", "--force", "--volumes", *containers)


def _label(tasks: Path) -> str:
    """Label of all containers of a node, determined by its folder of tasks."""
    return f"jaxserve.tasks={digest(tasks)}"


def _reference(options: JsonObject, name: str) -> str:
    given = options.get(name)
    if not isinstance(given, str) or not _REFERENCE.fullmatch(given):
        refuse(options.name(name), given, "printable ASCII without spaces, no - first")
    return given


def _mount(target: str, top: Path) -> str:
    """A mount of a folder at its own path; its fields are a line of CSV."""
    fields = ["type=bind", f"source={top}", f"{target}={top}"]
    doubled = '""'
    return ",".join(
        f'"{one.replace(chr(34), doubled)}"' if any(c in one for c in ',"') else one
        for one in fields
    )
