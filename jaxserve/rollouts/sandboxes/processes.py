"""Sandboxes on the node's own machine, or behind a command that shares the node's folders.

No shell sees a command but to set its variables: a command is program and arguments from the
submission to the kernel.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jaxserve.checks import JsonObject, refuse
from jaxserve.rollouts.bounded_process import ProcessExit, ProcessLimits, run_process
from jaxserve.rollouts.sandboxes.interface import SandboxCommand, sandbox_options

_COMMANDS_PASSED_ON = ("PATH", "LANG", "LC_ALL", "TZ", "SSL_CERT_FILE")
"""Variables of the service that commands get; others may hold its tokens."""
_CLIENTS_PASSED_ON = (
    "PATH",
    "HOME",
    "DOCKER_HOST",
    "DOCKER_CONFIG",
    "XDG_RUNTIME_DIR",
    "TMPDIR",
    "DBUS_SESSION_BUS_ADDRESS",
    "KUBECONFIG",
    "SLURM_CONF",
    "SLURM_JOB_ID",
)
"""Variables of the service that programs such as ``docker`` or ``srun`` need."""
_REMOVAL_S = 60.0
_LIMITS = ("cpus", "memory_mib")
_PLACEHOLDER = re.compile(r"\{\{(\w*)\}\}")
_MOST_CPUS, _MOST_MEMORY_MIB = 4096.0, 2**24
_ENVIRONMENT = ".environment"
_WITH_ENVIRONMENT = 'cd "$1" && . "$2" && shift 2 && exec "$@"'
"""Shell command that sets the variables of a file, and becomes the command."""


@dataclass(frozen=True)
class CommandLine:
    """A command with its environment, ready to start on this machine."""

    argv: tuple[str, ...]
    """program and arguments."""
    environment: Mapping[str, str] = field(repr=False)
    """the whole environment."""


class MachineSandbox(ABC):
    """A sandbox whose commands are processes of this machine, in the session's own folder."""

    def __init__(self, outside: Path) -> None:
        """Args: the session's folder."""
        self.inside = outside

    async def put(self, name: str) -> None:
        """Does nothing: the folder is there."""
        del name

    async def get(self, name: str) -> None:
        """Does nothing: the folder is there."""
        del name

    async def run(
        self, command: SandboxCommand, output: Callable[[bytes], None], limits: ProcessLimits
    ) -> ProcessExit:
        """See ``Sandbox``."""
        line = self.command_line(command)
        return await run_process(
            line.argv, command.folder, line.environment, output, limits, command.given
        )

    async def end(self) -> None:
        """Runs the command that removes what a killed process has left, if there is one."""
        argv = self.removal()
        if argv:
            await run_process(
                argv, Path("/"), client_variables(), lambda _: None, ProcessLimits(_REMOVAL_S)
            )

    @abstractmethod
    def command_line(self, command: SandboxCommand) -> CommandLine:
        """The process of a command."""

    def removal(self) -> tuple[str, ...]:
        """The command that removes the sandbox; empty where the process group is all of it."""
        return ()


class LocalSandbox(MachineSandbox):
    """Processes of the node's machine and user, without further isolation."""

    def __init__(self, options: JsonObject, outside: Path) -> None:
        """Takes no options."""
        sandbox_options(options)
        super().__init__(outside)

    def command_line(self, command: SandboxCommand) -> CommandLine:
        """See ``MachineSandbox``."""
        # What a task sets cannot change what the service sets.
        environment = {**command.environment, **command_variables()}
        return CommandLine(command.argv, environment)


class WrappedSandbox(MachineSandbox):
    """Commands behind a prefix such as ``srun -n1`` or ``bwrap``.

    The command sees the session's folder at its own path. Its variables are in a file of that
    folder, which is removed after the command: some prefixes pass no variables on, and no key is on
    a command line.
    """

    def __init__(self, options: JsonObject, outside: Path) -> None:
        """Options: ``wrap``, program and arguments before the command; ``end``, a command that
        removes what the prefix may have left; ``cpus`` and ``memory_mib``, limits of the command.
        In both commands ``{{NAME}}`` is a name of the sandbox, ``{{SESSION_DIR}}`` the session's
        folder, and ``{{CPUS}}`` and ``{{MEMORY_MIB}}`` are the limits."""
        super().__init__(outside)
        known = sandbox_options(options, "wrap", "end", *_LIMITS)
        wrap, end = _words(known, "wrap"), _words(known, "end") if "end" in known else ()
        values = {"NAME": container_name(outside), "SESSION_DIR": str(outside)}
        values |= {name.upper(): value for name, value in resource_limits(known).items()}
        named = set(_PLACEHOLDER.findall(" ".join((*wrap, *end))))
        for name in _LIMITS:
            if name in known and name.upper() not in named:
                limit = f"left out, or used in wrap as {{{{{name.upper()}}}}}"
                refuse(known.name(name), known[name], limit)
        for name in sorted(named - set(values)):
            if name.lower() in _LIMITS:
                limit = f"there for {{{{{name}}}}} of wrap"
                refuse(known.name(name.lower()), None, limit)
            placeholders = ("NAME", "SESSION_DIR", *(limit.upper() for limit in _LIMITS))
            allowed = f"a command whose placeholders are {', '.join(placeholders)}"
            refuse(known.name("wrap"), f"{{{{{name}}}}}", allowed)
        self._wrap, self._end = _filled(wrap, values), _filled(end, values)

    async def run(
        self, command: SandboxCommand, output: Callable[[bytes], None], limits: ProcessLimits
    ) -> ProcessExit:
        """See ``Sandbox``."""
        path = self.inside / _ENVIRONMENT
        path.touch(mode=0o600)
        path.write_text(_exports(command.environment))
        return await super().run(command, output, limits)

    async def end(self) -> None:
        """See ``Sandbox``."""
        (self.inside / _ENVIRONMENT).unlink(missing_ok=True)
        await super().end()

    def command_line(self, command: SandboxCommand) -> CommandLine:
        """See ``MachineSandbox``."""
        shell = ("/bin/sh", "-c", _WITH_ENVIRONMENT, "sh")
        paths = (str(command.folder), str(self.inside / _ENVIRONMENT))
        return CommandLine((*self._wrap, *shell, *paths, *command.argv), client_variables())

    def removal(self) -> tuple[str, ...]:
        """See ``MachineSandbox``."""
        return self._end


def resource_limits(options: JsonObject) -> dict[str, str]:
    """The limits ``cpus`` and ``memory_mib`` that options have, as words of a command.

    Raises:
      InputError: a limit is out of range.
    """
    found = {}
    if "cpus" in options:
        found["cpus"] = f"{options.number('cpus', 0.01, _MOST_CPUS):.15g}"
    if "memory_mib" in options:
        found["memory_mib"] = str(options.whole("memory_mib", 16, _MOST_MEMORY_MIB))
    return found


def container_name(outside: Path) -> str:
    """Name of a session's sandbox, determined by its folder, so that a later process finds it."""
    return f"jaxserve-{digest(outside)}"


def digest(path: Path) -> str:
    """24 characters that stand for a path."""
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:24]


def command_variables() -> dict[str, str]:
    """Variables of this process that commands get."""
    return _of_this_process(_COMMANDS_PASSED_ON)


def client_variables() -> dict[str, str]:
    """Variables of this process that programs need which start sandboxes."""
    return _of_this_process(_CLIENTS_PASSED_ON)


def _of_this_process(names: Sequence[str]) -> dict[str, str]:
    return {name: os.environ[name] for name in names if name in os.environ}


def _exports(variables: Mapping[str, str]) -> str:
    """Lines of a shell that leave a command with its own variables, and none of its client's."""
    clients = sorted({*_CLIENTS_PASSED_ON} - {*_COMMANDS_PASSED_ON, "TMPDIR"})
    lines = [f"unset {' '.join(clients)}"]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    return "\n".join(lines) + "\n"


def _words(options: JsonObject, name: str) -> tuple[str, ...]:
    words = options.entries(name)
    if not all(isinstance(word, str) and word and "\0" not in word for word in words):
        refuse(options.name(name), words, "program and arguments, a list of texts without NUL")
    return tuple(words)


def _filled(words: Sequence[str], values: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(_PLACEHOLDER.sub(lambda found: values[found[1]], word) for word in words)
