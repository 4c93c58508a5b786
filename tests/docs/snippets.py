"""The code blocks of a page, run from top to bottom as a reader would.

Comments that a reader does not see say what is special about the block below them:

- ``<!-- file: NAME -->``: the text of a file, which is written and not run.
- ``<!-- shortened: OLD => NEW -->``: a long run, tried with other numbers. May be repeated.
- ``<!-- not run: REASON -->``: needs a GPU or the network.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, chdir, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import pytest

from jaxserve import cli
from tests.quick_compiler import commands_compute

_BLOCK = re.compile(r"((?:^<!-- [^\n]* -->\n)*)^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_COMMENT = re.compile(r"<!-- (file|shortened|not run): (.*?) -->")
_EXCUSES = ("GPU", "network")
_PLAYS = re.compile(r"(?:jaxserve (?:evaluate|simulate|table|tasks)\b(?:\\\n|[^\n|<>$;&#])*\n)+")
LANGUAGES = ("python", "sh")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    code: str
    """as it is run."""
    line: int
    file: str | None
    """where it is written, if it is the text of a file."""


def blocks(page: Path) -> Iterator[Block]:
    """All blocks that are run or written."""
    text = page.read_text(encoding="utf-8")
    for found in _BLOCK.finditer(text):
        comments, language, code = found.groups()
        file = None
        excuse = None
        for kind, value in _COMMENT.findall(comments):
            if kind == "file":
                file = value
            elif kind == "not run":
                excuse = value
                assert any(word in value for word in _EXCUSES), f"{page.name}: {value}"
            else:
                old, _, new = value.partition(" => ")
                assert old in code, f"{page.name}: {old!r} is not in the block below"
                code = code.replace(old, new)
        if excuse is None and (file is not None or language in LANGUAGES):
            line = text[: found.start()].count("\n") + 1
            yield Block(language, code, line, file)


def run_page(page: Path, folder: Path) -> str:
    """Runs a page's blocks in an empty folder; returns what they printed.

    Python blocks share their names. Shell blocks stop at the first command that fails.
    """
    names: dict[str, object] = {"__name__": "__main__"}
    printed = StringIO()
    sys.path.insert(0, str(folder))
    try:
        with chdir(folder):
            for block in blocks(page):
                where = f"{page.name}, line {block.line}"
                if block.file is not None:
                    Path(block.file).write_text(block.code, encoding="utf-8")
                elif block.language == "sh" and _PLAYS.fullmatch(block.code):
                    printed.write(_played(block.code, where))
                elif block.language == "sh":
                    with _compiler_for(block.code):
                        printed.write(_shell(block.code, where))
                else:
                    with redirect_stdout(printed):
                        exec(compile(block.code, where, "exec"), names)
    finally:
        sys.path.remove(str(folder))
    return printed.getvalue()


def _played(code: str, where: str) -> str:
    """Commands that play and print, in this process: it has traced their programs for other pages
    already, which takes a process of its own longer than all the rest."""
    printed = StringIO()
    for line in code.replace("\\\n", " ").splitlines():
        with (
            redirect_stdout(printed),
            redirect_stderr(printed),
            pytest.MonkeyPatch.context() as patch,
        ):
            patch.setenv("COLUMNS", "120")
            status = cli.main(shlex.split(line)[1:])
        assert status == 0, f"{where}: {line}\n{printed.getvalue()}"
    return printed.getvalue()


def run_code(language: str, code: str, folder: Path) -> str:
    """Runs one block by itself in a folder; returns what it printed."""
    with chdir(folder):
        if language == "sh":
            with _compiler_for(code):
                return _shell(code, "the block")
        printed = StringIO()
        with redirect_stdout(printed):
            exec(compile(code, "the block", "exec"), {"__name__": "__main__"})
        return printed.getvalue()


def _compiler_for(code: str) -> AbstractContextManager[None]:
    """A quick one, but for commands on a trace: they search for its best setting, and compute for
    longer than the compiler takes."""
    return commands_compute() if "--trace" in code else nullcontext()


def _shell(code: str, where: str) -> str:
    programs = Path(sys.executable).parent
    environment = os.environ | {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", code],
        env=environment | {"COLUMNS": "120"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, f"{where}: exit code {done.returncode}\n{done.stdout}"
    return done.stdout
