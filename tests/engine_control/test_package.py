"""The package works in two distributions: jaxserve, and the plug-in for vLLM."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "jaxserve" / "engine_control"
MODULES = sorted(PACKAGE.glob("*.py"))


def test_the_plug_in_has_the_same_files() -> None:
    """Its folder is a link to ours, which builds follow."""
    assert (ROOT / "integrations/vllm/src/jaxserve_vllm/engine_control").resolve() == PACKAGE


def test_nothing_of_jaxserve_is_imported() -> None:
    """Modules import each other, the standard library, and Starlette."""
    found = set()
    for module in MODULES:
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                found.add((node.module or "").split(".")[0])
    assert found - sys.stdlib_module_names == {"starlette"}
