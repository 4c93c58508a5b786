"""The list of examples, from their docstrings."""

from __future__ import annotations

import ast
from pathlib import Path

from docs_pages.markdown import table


def example_table(folder: Path) -> str:
    """One example a row: its first line says what it shows, the rest what it prints."""
    rows = []
    for path in sorted(folder.glob("*.py")):
        docs = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        title, _, rest = docs.partition("\n")
        prints = rest.strip().split("\n\n")[0]
        rows.append([f"[`{path.name}`](../examples/{path.name})", title, prints])
    return table(["file", "what it shows", "what it prints"], rows)
