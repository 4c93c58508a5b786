"""The table of the earlier project's cases names tests that there are."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "rollout_cases.md"
CASES = 152
"""Unit tests of Polar at the commit that the page names."""


def rows() -> list[tuple[str, str, str]]:
    """File and name of each case, and what stands beside it."""
    found, section = [], ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            section = line.strip("# `")
        elif match := re.fullmatch(r"\| `(test_\w+)` \| (.+) \|", line):
            found.append((section, match[1], match[2]))
    return found


def test_every_case_has_its_answer() -> None:
    """Once, and each is held by tests or said to be otherwise."""
    found = rows()
    assert len({row[:2] for row in found}) == len(found) == CASES
    reference = r"`tests/[\w/]+\.py::test_\w+`"
    for _, case, beside in found:
        held = re.fullmatch(rf"{reference}(, {reference})*", beside)
        assert held or beside.startswith("otherwise: "), case


def test_the_tests_that_it_names_exist() -> None:
    """As functions of the files that it says; those that a reason names, somewhere."""
    functions: dict[str, set[str]] = {}
    for file in ROOT.glob("tests/**/test_*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        functions[str(file.relative_to(ROOT))] = names
    everywhere = set().union(*functions.values())
    named = 0
    for _, _, beside in rows():
        for file, name in re.findall(r"`(?:(tests/[\w/]+\.py)::)?(test_\w+)`", beside):
            named += 1
            assert name in (functions.get(file, set()) if file else everywhere), (file, name)
    assert named > CASES
