"""Consoles of commands: results to stdout, progress and errors to stderr."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

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
    """Bars on stderr while the block runs, gone after it; names of stages where it is no terminal.

    Yields:
      a function to call with a stage's name, steps done and steps in all; one bar a stage.
    """
    console = Console(stderr=True, highlight=False)
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
                if not console.is_terminal:
                    console.print(stage, soft_wrap=True)
            bars.update(stages[stage], completed=done, total=total)

        yield advance


@contextmanager
def training_bar() -> Iterator[Callable[[Any], None]]:
    """A bar on stderr while the block runs; a line every tenth of the run where it is no terminal.

    Yields:
      a function to call with a ``jaxserve.learning.training.TrainingStatus``.
    """
    console = Console(stderr=True, highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    with Progress(
        *columns,
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bar:
        stage = bar.add_task("compiling", total=None)
        tenths = 0

        def watch(status: Any) -> None:
            nonlocal tenths
            worth = "" if status.score is None else f", score {status.score:.3f} (static 0.5)"
            text = f"{status.windows_per_s:,.0f} windows/s, reward {status.reward:.3f}{worth}"
            bar.update(stage, completed=status.windows, total=status.total, description=text)
            if not console.is_terminal and 10 * status.windows // status.total > tenths:
                tenths = 10 * status.windows // status.total
                done = f"{status.windows:,} of {status.total:,} windows"
                console.print(f"{done}: {text}", soft_wrap=True)

        yield watch
