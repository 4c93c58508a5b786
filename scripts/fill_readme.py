"""Fills README.md with the tables that benchmarks, fidelity checks and comparisons printed.

    python scripts/fill_readme.py

A block between ``<!-- table FILE COLUMNS -->`` and ``<!-- end -->`` gets the first table of that
file, its first so many columns, with links as seen from the README. Nothing in such a block is
written by hand.
"""

from __future__ import annotations

import argparse
import itertools
import re
from pathlib import Path

from jaxserve.datafiles import write_atomic

ROOT = Path(__file__).resolve().parent.parent
_LINK = re.compile(r"(\]\()(?!https?:|#)")
_BLOCK = re.compile(r"(<!-- table (\S+) (\d+) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(text: str) -> str:
    """``text`` with every block up to date."""

    def table(found: re.Match[str]) -> str:
        begin, name, columns, end = found.groups()
        lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
        from_table = itertools.dropwhile(lambda line: line[:1] != "|", lines)
        only_table = itertools.takewhile(lambda line: line[:1] == "|", from_table)
        rows = [line.strip("|").split("|")[: int(columns)] for line in only_table]
        text = "".join(f"|{'|'.join(row)}|\n" for row in rows)
        return begin + _LINK.sub(rf"\1{Path(name).parent}/", text) + end

    return _BLOCK.sub(table, text)


if __name__ == "__main__":
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    readme = ROOT / "README.md"
    write_atomic(readme, filled(readme.read_text(encoding="utf-8")).encode())
