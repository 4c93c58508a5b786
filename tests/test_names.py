"""``import jaxserve``: its names, which are imported when they are used."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import jaxserve


def test_every_name_is_there() -> None:
    """As an attribute, in ``dir`` and by ``from jaxserve import *``."""
    everything: dict[str, object] = {}
    exec("from jaxserve import *", everything)
    for name in jaxserve.__all__:
        assert everything[name] is getattr(jaxserve, name)
        assert name in dir(jaxserve)


def test_jax_comes_with_the_first_that_needs_it() -> None:
    """In a new process."""
    code = """
import sys, jaxserve
before = "jax" in sys.modules
jaxserve.InputError
between = "jax" in sys.modules
jaxserve.make
print(before, between, "jax" in sys.modules)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False", "False", "True"]


def test_a_name_that_is_not_there() -> None:
    """As of any module."""
    with pytest.raises(AttributeError, match="module 'jaxserve' has no attribute 'nonsense'"):
        _ = jaxserve.nonsense  # pyright: ignore[reportAttributeAccessIssue]


def test_a_class_has_a_name_of_its_own() -> None:
    """One name for one thing in jaxserve, server and the plug-in for vLLM."""
    root = Path(__file__).parents[1]
    defined: dict[str, list[str]] = {}
    for top in ("jaxserve", "server", "integrations/vllm/src/jaxserve_vllm"):
        for file in sorted((root / top).rglob("*.py")):
            if "engine_control" in file.parts and top.startswith("integrations"):
                continue  # a link to jaxserve's own
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    defined.setdefault(node.name, []).append(str(file.relative_to(root)))
    assert len(defined) > 300
    assert {name: files for name, files in defined.items() if len(files) > 1} == {}
