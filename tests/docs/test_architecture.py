"""The map of the code is that of the files, and imports go one way."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAP_PAGE = ROOT / "docs" / "architecture.md"
HAND_WRITTEN = ("README.md", "CONTRIBUTING.md", *(f"docs/{p.name}" for p in ROOT.glob("docs/*.md")))


_SHARED = {"jaxserve/checks.py", "jaxserve/datafiles.py", "jaxserve/errors.py", "jaxserve/runtime/"}
OUTSIDE = {
    "jaxserve/gateway/": _SHARED | {"jaxserve/engine_control/"},
    "jaxserve/rollouts/": _SHARED | {"jaxserve/gateway/", "jaxserve/client/"},
}
"""What stands before engines and runs agents, and all that it may import."""


def rooms() -> set[str]:
    """Modules and packages at the top of server, jaxserve and jaxserve/sim, as maps write them."""
    found = set()
    for folder in ("server", "jaxserve", "jaxserve/sim"):
        modules = {str(file.relative_to(ROOT)) for file in (ROOT / folder).glob("*.py")}
        packages = {f"{file.parent.relative_to(ROOT)}/" for file in ROOT.glob(f"{folder}/*/*.py")}
        found |= modules | packages
    # Those without code of their own.
    return found - {"server/__init__.py", "jaxserve/sim/__init__.py", "jaxserve/sim/"}


def floors() -> list[list[str]]:
    """The lines of the map: each is a floor of rooms, the highest comes first."""
    found, top = [], ""
    (text,) = re.findall(r"^```text\n(server/\n.*?)^```$", MAP_PAGE.read_text(), re.M | re.S)
    for line in text.splitlines():
        names = re.match(r" *((?:[\w/]+(?:/|\.py)(?: +|$))*)", line)
        assert names is not None
        if line.startswith(" "):
            found.append([top + name for name in names[1].split()])
        else:
            top = line
    return found


def imported(file: Path) -> Iterator[str]:
    """Rooms that a file imports from, its own included, at its top or later."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (room(f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (room(alias.name) for alias in node.names)


def room(name: str) -> str:
    """Where a dotted name is defined; empty if that is elsewhere."""
    parts = name.split(".")
    if parts[0] not in ("server", "jaxserve"):
        return ""
    depth = 3 if parts[:2] == ["jaxserve", "sim"] else 2
    path = "/".join(parts[:depth])
    if (ROOT / path).is_dir() and len(parts) >= depth:
        return f"{path}/"
    return f"{path}.py" if (ROOT / f"{path}.py").is_file() else f"{parts[0]}/__init__.py"


def test_the_map_is_whole() -> None:
    """Every room is on the map once, and the map names no room that does not exist."""
    named = [name for floor in floors() for name in floor if name != "server/static/"]
    assert len(named) == len(set(named))
    assert set(named) == rooms()


def test_imports_go_down() -> None:
    """A room imports only from floors below its own."""
    floor_of = {name: height for height, floor in enumerate(floors()) for name in floor}
    wrong, seen = [], 0
    for top in ("server", "jaxserve"):
        for file in ROOT.glob(f"{top}/**/*.py"):
            parts = file.relative_to(ROOT).with_suffix("").parts
            here = room(".".join(parts))
            for there in {*imported(file)} - {here, ""}:
                seen += 1
                if {here, there} <= floor_of.keys() and floor_of[there] <= floor_of[here]:
                    wrong.append(f"{here} imports {there}")
    assert seen > 100
    assert not wrong


@pytest.mark.parametrize("top", OUTSIDE)
def test_the_simulator_is_behind_its_client(top: str) -> None:
    """Gateway and rollouts know an environment by its server only: agents, grades and tasks are
    those that the client asks for."""
    found = {there for file in ROOT.glob(f"{top}**/*.py") for there in imported(file)} - {"", top}
    assert found <= OUTSIDE[top]
    assert found, "nothing was read"


def test_neither_loads_the_simulator() -> None:
    """Not by way of another module either, when all of both is imported."""
    tops = [name.strip("/").replace("/", ".") for name in OUTSIDE]
    code = f"""
import importlib, pkgutil, sys
count = 0
for top in {tops}:
    for module in pkgutil.walk_packages(importlib.import_module(top).__path__, top + "."):
        importlib.import_module(module.name)
        count += 1
assert count > 50, count
print(*sorted(sys.modules))
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    loaded = {room(name) for name in done.stdout.split() if name.startswith("jaxserve.")}
    assert loaded <= set(OUTSIDE).union(*OUTSIDE.values(), {"jaxserve/__init__.py"})
    assert "jax" not in done.stdout.split()


def test_tests_are_in_the_folders_of_the_code() -> None:
    """A package of jaxserve, or a folder beside it, has its tests in the folder of its name."""
    tests = ROOT / "tests"
    folders = {file.parent.relative_to(tests) for file in tests.glob("**/test_*.py")}
    assert len(folders) > 30
    tops = (ROOT / "jaxserve", ROOT)
    assert not [one for one in folders if not any((top / one).is_dir() for top in tops)]


@pytest.mark.parametrize("page", [*HAND_WRITTEN, "docs/architecture.svg"])
def test_files_that_a_page_names_exist(page: str) -> None:
    """Modules with their folder, from the top or from jaxserve/."""
    text = (ROOT / page).read_text(encoding="utf-8")
    own = re.findall(r"<!-- file: (\S+) -->", text)  # which the reader is to write
    named = {*re.findall(r"(?<![\w/.])\w+(?:/\w+)+\.py\b", text)} - {*own}
    missing = [n for n in named if not any((ROOT / top / n).is_file() for top in ("", "jaxserve"))]
    assert not missing


def test_names_in_docstrings_exist() -> None:
    """``jaxserve.a.b.name`` in the code names a module, or something written in one."""
    wrong = []
    for top in ("jaxserve", "server"):
        for file in ROOT.glob(f"{top}/**/*.py"):
            text = file.read_text(encoding="utf-8")
            names = set(re.findall(r"``((?:jaxserve|server)(?:\.\w+)+)", text))
            wrong += [f"{file.name}: {name}" for name in names if not is_written(name)]
    assert not wrong


def is_written(name: str) -> bool:
    """Whether a dotted name is a package, a module, or a word in the text of one."""
    path = ROOT
    for part in name.split("."):
        if (path / part).is_dir():
            path = path / part
        elif path.suffix != ".py" and (path / f"{part}.py").is_file():
            path = path / f"{part}.py"
        else:
            file = path if path.suffix == ".py" else path / "__init__.py"
            return re.search(rf"\b{part}\b", file.read_text(encoding="utf-8")) is not None
    return True
