"""Where commands print: results to stdout, progress and errors to stderr."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

_PIPE_WIDTH = 120
"""Characters in a line that does not go to a terminal."""


def result_console() -> Console:
    """Stdout, wide enough for every table where it is no terminal."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    return console


@contextmanager
def progress_bars() -> Iterator[Callable[[str, int, int], None]]:
    """Bars on stderr while the block runs, gone after it; nothing where stderr is no terminal.

    Yields:
      a function to call with a stage's name, steps done and steps in all; one bar a stage.
    """
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns,
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bars:
        stages = {}

        def advance(stage: str, done: int, total: int) -> None:
            if stage not in stages:
                stages[stage] = bars.add_task(stage, total=total)
            bars.update(stages[stage], completed=done, total=total)

        yield advance
