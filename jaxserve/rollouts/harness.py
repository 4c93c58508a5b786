"""How the agent of a task is started: by the user's own command."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jaxserve.checks import JsonObject, one_of, refuse

INSTRUCTION = "{{INSTRUCTION}}"
_WHOLE = re.compile(r"(--?[A-Za-z0-9][\w-]*=)?\{\{INSTRUCTION\}\}")


@dataclass(frozen=True)
class Shell:
    """The user's own command."""

    argv: tuple[str, ...]
    """with ``{{INSTRUCTION}}`` in the place of an argument, or after ``--name=``."""

    def command(self, instruction: str) -> tuple[str, ...]:
        """Program and arguments. The instruction is one of them, or a part of one, whatever it
        contains."""
        return tuple(each.replace(INSTRUCTION, instruction) for each in self.argv)


def parse_shell(given: Any) -> Shell:
    """A command as a text, split as a shell would and read by none, or as a list of arguments.

    Raises:
      InputError: it is neither, or the instruction would be read as code.
    """
    name = "agent: command"
    try:
        argv: Sequence[Any] = shlex.split(given) if isinstance(given, str) else given
    except ValueError as error:
        refuse(name, given, f"a command line ({error})")
    if not isinstance(argv, list) or not argv or not all(isinstance(each, str) for each in argv):
        refuse(name, given, "a text, or a list of texts, with a program first")
    for before, each in zip(["", *argv], argv, strict=False):
        if "\0" in each:
            refuse(name, each, "without NUL")
        if INSTRUCTION in each and (before == "-c" or not _WHOLE.fullmatch(each) or not before):
            refuse(
                name,
                each,
                f"an argument that is {INSTRUCTION}, or --name={INSTRUCTION}, and no program of -c",
            )
    return Shell(tuple(argv))


def parse_agent(given: JsonObject) -> Shell:
    """The agent of a submission.

    Raises:
      InputError: there is no such preset, or its fields are wrong.
    """
    one_of("agent: preset", given.get("preset", "shell"), ("shell",))
    return parse_shell(given.get("command"))
