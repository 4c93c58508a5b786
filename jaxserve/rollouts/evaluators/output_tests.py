"""Runs tests on an agent's changes to its source."""

from __future__ import annotations

import filecmp
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from jaxserve.checks import JsonObject, refuse
from jaxserve.errors import InputError
from jaxserve.rollouts.evaluators.interface import EvalResult, EvaluationContext
from jaxserve.rollouts.traces import Trajectory

_LINE = re.compile(r"^(?:(PASSED|FAILED|ERROR)\s+(\S+)|(\S+)\s+(PASSED|FAILED|ERROR)\b)", re.M)
_MOST_NAMES = 200


class OutputTests:
    """Applies the agent's changes to a fresh copy of the source, and runs a command there.

    The reward is 1 where the command ends with code 0, prints at least one test as ``PASSED`` and
    none as ``FAILED`` or ``ERROR``, and prints all expected ones, else 0.
    """

    needs_fresh = True
    """The service prepares a copy of the source while the agent runs."""

    def __init__(self, options: JsonObject) -> None:
        """Options: ``command``, a list of arguments; ``keep``, files and folders of the source that
        stay as they were, such as the tests; ``expected``, names of tests that must pass."""
        known = JsonObject(options, options.where, ("command", "keep", "expected"))
        self._command = _texts(known, "command", known.entries("command"))
        self._keep = frozenset(_texts(known, "keep", known.get("keep", [])))
        self._expected = _texts(known, "expected", known.get("expected", []))

    def evaluate(self, trajectory: Trajectory, context: EvaluationContext) -> EvalResult:
        """See the class."""
        fresh, printed = context.fresh, context.scratch / "tests.log"
        changed = apply_changes(context.source, context.work, fresh, self._keep)
        ended = context.execute(self._command, printed)
        if ended.reason:
            raise InputError(f"evaluator: command: {ended.reason}")
        passed, failed = outcomes(printed.read_text(errors="replace") if printed.exists() else "")
        missing = sorted(set(self._expected) - passed)
        # A command that dies half way has not printed its later failures.
        good = ended.code == 0 and not ended.timed_out
        good = good and bool(passed) and not failed and not missing
        metadata = {
            "passed": len(passed),
            "failed": sorted(failed)[:_MOST_NAMES],
            "missing": missing[:_MOST_NAMES],
            "exit_code": ended.code,
            "timed_out": ended.timed_out,
            "changed": changed,
        }
        return EvalResult(float(good), metadata=metadata)


def outcomes(text: str) -> tuple[set[str], set[str]]:
    """Names of passed tests and of failed tests in the output of pytest.

    A test that is printed as both has failed.
    """
    passed, failed = set(), set()
    for match in _LINE.finditer(text):
        outcome, name = match[1] or match[4], match[2] or match[3]
        (passed if outcome == "PASSED" else failed).add(name)
    return passed - failed, failed


def apply_changes(source: Path | None, work: Path, fresh: Path, keep: frozenset[str]) -> int:
    """Applies the changes from ``source`` to ``work`` to ``fresh``; returns the number of files.

    Links are neither followed nor copied: a link could lead out of the folder.
    """
    theirs = set(_files(work))
    ours = set() if source is None else set(_files(source))
    changed = 0
    for name in sorted(theirs | ours):
        if any(str(part) in keep for part in (name, *name.parents)):
            continue
        if name not in theirs:
            (fresh / name).unlink(missing_ok=True)
        elif name in ours and filecmp.cmp(work / name, fresh / name, shallow=False):
            continue
        else:
            _put(work, fresh, name)
        changed += 1
    return changed


def _put(work: Path, fresh: Path, name: Path) -> None:
    """Copies a file, after removing links and files in the way of its path: no link is followed."""
    for parent in (*reversed(name.parents), name):
        place = fresh / parent
        if place.is_symlink() or (place.is_file() and parent != name):
            place.unlink()
        elif place.is_dir() and parent == name:
            shutil.rmtree(place)
    (fresh / name).parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(work / name, fresh / name)
    shutil.copymode(work / name, fresh / name)


def _files(folder: Path) -> Iterator[Path]:
    for top, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != ".git"]
        for name in names:
            file = Path(top, name)
            if file.is_file() and not file.is_symlink():
                yield file.relative_to(folder)


def _texts(options: JsonObject, key: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        refuse(options.name(key), value, "a list of texts")
    return tuple(value)
