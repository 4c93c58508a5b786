"""Fills README.md with tables of benchmarks, fidelity checks and comparisons.

    python scripts/fill_readme.py

A block between ``<!-- table FILE COLUMNS -->`` and ``<!-- end -->`` gets the first table of that
file, its first so many columns, with links as seen from the README. The text between
``<!-- figure FILE | TITLE | ROW | COLUMN -->`` and ``<!-- end -->`` is the number in a cell of the
table below a line that begins with the title. Nothing of this is written by hand.
"""

from __future__ import annotations

import argparse
import itertools
import re
from pathlib import Path

from jaxserve.datafiles import write_atomic

ROOT = Path(__file__).resolve().parent.parent
_LINK = re.compile(r"(\]\()(?!https?:|#)")
_FIGURE = re.compile(
    r"(<!-- figure (\S+) \| (.+?) \| (.+?) \| (.+?) -->).*?(<!-- end -->)", re.DOTALL
)
_BLOCK = re.compile(r"(<!-- table (\S+) (\d+) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(text: str) -> str:
    """``text`` with every block up to date."""

    def table(found: re.Match[str]) -> str:
        begin, name, columns, end = found.groups()
        rows = [row[: int(columns)] for row in _table(name)]
        text = "".join(f"|{'|'.join(row)}|\n" for row in rows)
        return begin + _LINK.sub(rf"\1{Path(name).parent}/", text) + end

    def figure(found: re.Match[str]) -> str:
        begin, name, title, wanted, column, end = found.groups()
        header, _, *rows = ([cell.strip() for cell in row] for row in _table(name, title))
        (cell,) = (row[header.index(column)] for row in rows if row[0] == wanted)
        return begin + cell.split()[0] + end  # without its interval

    return _FIGURE.sub(figure, _BLOCK.sub(table, text))


def _table(name: str, title: str = "") -> list[list[str]]:
    """Cells of a file's first table, or of the first one below a title."""
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    below = itertools.dropwhile(lambda line: not line.startswith(title), lines)
    from_table = itertools.dropwhile(lambda line: line[:1] != "|", below)
    only_table = itertools.takewhile(lambda line: line[:1] == "|", from_table)
    return [line.strip("|").split("|") for line in only_table]


if __name__ == "__main__":
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    readme = ROOT / "README.md"
    write_atomic(readme, filled(readme.read_text(encoding="utf-8")).encode())
