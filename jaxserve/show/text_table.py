"""A table of texts, for the terminal and for Markdown."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass

from rich import box
from rich.table import Table

_INTERVAL = re.compile(r" \((\S+) to (\S+)\)")


def plain_table(title: str | None = None, caption: str | None = None) -> Table:
    """A table without columns in the style of all that commands print."""
    return Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), title=title, caption=caption)


@dataclass(frozen=True)
class TextTable:
    """Table of texts. All columns but the first are numbers; an interval is written "mean (low to
    high)"."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str | None = None

    def markdown(self) -> str:
        """The table without its title and caption; a line break in a cell becomes a space."""
        lines = [self.header, ("---", *["--:"] * (len(self.header) - 1)), *self.rows]
        texts = [" | ".join(line).replace("\n", " ") for line in lines]
        return "".join(f"| {text} |\n" for text in texts).replace("*", "\\*")

    def rich(self) -> Table:
        """Table for the terminal, where intervals stand below their numbers."""
        table = plain_table(self.title, self.caption)
        if len(self.header) > 8:
            table.padding = 0  # so that intervals of nine columns fit into 100 characters
        rows = [[_INTERVAL.sub(r"\n\1..\2", cell) for cell in row] for row in self.rows]
        for index, name in enumerate(self.header):
            numbers = index > 0
            lines = [line for row in rows for line in row[index].splitlines()]
            table.add_column(
                _wrapped(name, max(map(len, lines), default=0)),
                justify="right" if numbers else "left",
                no_wrap=not numbers,
                overflow="fold" if numbers else "ellipsis",
            )
        for row in self.rows:
            table.add_row(*(_INTERVAL.sub(r"\n[dim]\1..\2[/dim]", cell) for cell in row))
        return table


def _wrapped(heading: str, width: int) -> str:
    """A heading in lines no longer than the numbers below it or its longest word, so that it never
    takes the room that numbers need."""
    words = heading.split() or [heading]
    return "\n".join(textwrap.wrap(heading, max([width, 1, *map(len, words)])))
