"""Markdown tables."""

from __future__ import annotations

from collections.abc import Sequence


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; ``|`` inside a cell is escaped and line breaks become spaces."""
    lines = [_row(headings), "|" + "---|" * len(headings)]
    return "\n".join([*lines, *map(_row, rows)])


def code(*names: str) -> str:
    """Names as code, separated by commas."""
    return ", ".join(f"`{name}`" for name in names)


def number(value: float) -> str:
    """At most four significant digits, whole numbers in full."""
    return f"{value:,.0f}" if value == round(value) else f"{value:.4g}"


def _row(cells: Sequence[str]) -> str:
    clean = (" ".join(cell.split()).replace("|", r"\|") for cell in cells)
    return "| " + " | ".join(clean) + " |"
