"""The protocol of a sandbox, and the command that a sandbox runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from jaxserve.checks import JsonObject
from jaxserve.rollouts.bounded_process import ProcessExit, ProcessLimits

RUNTIME_FIELDS = ("kind", "source", "prepare", "eval_prepare", "variables")
"""Fields of a task's ``runtime`` that are not options of its sandbox."""


@dataclass(frozen=True)
class SandboxCommand:
    """A command, with paths as they are inside of the sandbox."""

    argv: tuple[str, ...]
    """program and arguments."""
    folder: Path
    """working directory, inside the session's folder."""
    variables: Mapping[str, str]
    """variables of the task."""
    home: Path
    """``HOME``."""
    secret_variables: Mapping[str, str] = field(repr=False)
    """other variables of the service, keys among them: they must not be on a command line."""
    given: bytes = field(default=b"", repr=False)
    """standard input."""

    @property
    def environment(self) -> dict[str, str]:
        """All variables of the command; the sandbox adds ``PATH``."""
        return {**self.variables, "HOME": str(self.home), **self.secret_variables}


class Sandbox(Protocol):
    """A place that runs one command of a session, on a copy of the session's folder.

    Order of calls: ``put`` of each subfolder, ``run``, ``get`` of each subfolder, ``end``. Only the
    subfolders outlive the command. A sandbox may raise InputError, whose sentence becomes the
    session's reason.
    """

    def __init__(self, options: JsonObject, outside: Path) -> None:
        """Begins nothing: a task's options are checked by a call.

        Args:
          options: fields of the task's ``runtime`` that are not in ``RUNTIME_FIELDS``.
          outside: the session's folder on the node's machine, a different one for each session.

        Raises:
          InputError: an option is wrong.
        """
        ...

    @property
    def inside(self) -> Path:
        """Absolute path of the session's folder inside, the same for equal arguments."""
        ...

    async def put(self, name: str) -> None:
        """Makes a subfolder inside equal to that outside; begins the sandbox.

        Args:
          name: ``work``, ``home`` or ``artifacts``.
        """
        ...

    async def run(
        self, command: SandboxCommand, output: Callable[[bytes], None], limits: ProcessLimits
    ) -> ProcessExit:
        """Runs the command to its end, or to its time limit.

        Args:
          output: is called with each piece of the output.
        """
        ...

    async def get(self, name: str) -> None:
        """Makes a subfolder outside equal to that inside."""
        ...

    async def end(self) -> None:
        """Ends all processes and removes the sandbox.

        Called at the end of every command, also after a cancellation, and for a sandbox that a
        killed node has left.
        """
        ...


def sandbox_options(options: JsonObject, *known: str) -> JsonObject:
    """The options of a sandbox.

    Raises:
      InputError: an option is not in ``known``.
    """
    return JsonObject(options, options.where, (*RUNTIME_FIELDS, *known))
