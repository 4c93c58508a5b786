"""The tables of the earlier project's cases and faults name tests that there are."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.gateway.dialects.earlier.cases import CASES as PLAYED

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "rollout_cases.md"
CASES = 152
"""Unit tests of Polar at the commit that the page names."""
FAULTS = 14
"""Five of its builders, and nine further ones."""
REFERENCE = r"`tests/[\w/]+\.py::test_\w+`"
HELD = rf"{REFERENCE}(, {REFERENCE})*"


def rows() -> list[tuple[str, str, str]]:
    """File and name of each case, and what stands beside it."""
    found, section = [], ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            section = line.strip("# `")
        elif match := re.fullmatch(r"\| `(test_\w+)` \| (.+) \|", line):
            found.append((section, match[1], match[2]))
    return found


def faults() -> list[str]:
    """What stands beside each fault."""
    page = PAGE.read_text(encoding="utf-8")
    section = page.partition("\n## Faults\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| (?!fault|-).+ \| (.+) \|$", section, re.MULTILINE)


def test_every_case_has_its_answer() -> None:
    """Once, and each is held by tests, or said to be otherwise, or both in part."""
    found = rows()
    assert len({row[:2] for row in found}) == len(found) == CASES
    for _, case, beside in found:
        assert re.fullmatch(rf"({HELD}|({HELD}; )?otherwise: .+)", beside), case


def test_every_fault_has_a_test() -> None:
    """And nothing but tests beside it."""
    found = faults()
    assert len(found) == FAULTS and all(re.fullmatch(HELD, beside) for beside in found)


def test_what_is_held_is_played() -> None:
    """Inputs of each case of a dialect, under its name; and of no other case."""
    held = {
        case
        for section, case, beside in rows()
        if section.startswith("gateway/test_transform_") and not beside.startswith("otherwise: ")
    }
    assert held == PLAYED


def test_the_tests_that_it_names_exist() -> None:
    """As functions of the files that it says; those that a reason names, somewhere."""
    functions: dict[str, set[str]] = {}
    for file in ROOT.glob("tests/**/test_*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        functions[str(file.relative_to(ROOT))] = names
    everywhere = set().union(*functions.values())
    named = 0
    for beside in (*(row[2] for row in rows()), *faults()):
        for file, name in re.findall(r"`(?:(tests/[\w/]+\.py)::)?(test_\w+)`", beside):
            named += 1
            assert name in (functions.get(file, set()) if file else everywhere), (file, name)
    assert named > CASES
