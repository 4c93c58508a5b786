"""The packages of the gateway are layers: imports go from a higher one to a lower one."""

from __future__ import annotations

import ast
from pathlib import Path

import jaxserve.gateway

ROOT = Path(jaxserve.gateway.__path__[0])
LOWER = ("settings", "http", "dialects", "engines", "measure")
LAYERS = (*LOWER, "knobs", "exchange", "recording", "app")
"""From the lowest to the highest."""


def imports(file: Path) -> set[str]:
    """Layers of the gateway that a module imports."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            module = (node.module or "").split(".")
            names = module[2:3] or [alias.name for alias in node.names]
            found |= set(names) if module[:2] == ["jaxserve", "gateway"] else set()
    return found


def layer(file: Path) -> str:
    """Package of a module; the name of a module that is in none."""
    return file.relative_to(ROOT).with_suffix("").parts[0]


def test_imports_go_down() -> None:
    """No circle among the packages, and no module beside them but the settings."""
    wrong, seen = [], 0
    for file in ROOT.rglob("*.py"):
        here = layer(file)
        for there in imports(file) - {here}:
            seen += 1
            if LAYERS.index(there) >= LAYERS.index(here):
                wrong.append(f"{here} imports {there}: {file.name}")
    assert seen > 50
    assert not wrong


def test_dialects_are_pure() -> None:
    """A dialect knows forms of errors, headers and JSON; nothing that serves."""
    found = set().union(*(imports(file) for file in (ROOT / "dialects").rglob("*.py")))
    assert found == {"dialects", "http"}
