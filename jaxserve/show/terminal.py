"""Consoles of commands: results go to stdout, progress and errors to stderr."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

_PIPE_WIDTH = 120
"""Characters of a line in a pipe or a file."""


class _ResultConsole(Console):
    """A console that prints the caption of a table in lines of its own, since Rich would wrap the
    caption to the width of the table."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Prints objects, with the caption of a table below it."""
        captions = []
        for each in objects:
            if isinstance(each, Table) and isinstance(each.caption, str):
                captions += each.caption.splitlines()
                each.caption = None
        super().print(*objects, **options)
        for caption in captions:
            super().print(f" {caption}", style="italic", soft_wrap=not self.is_terminal)


class _Compilation(ProgressColumn):
    """Column that shows while XLA compiles."""

    _running = 0

    def __enter__(self) -> _Compilation:
        from jax import monitoring

        monitoring.register_event_listener(self._begin)
        monitoring.register_event_duration_secs_listener(self._end)
        return self

    def __exit__(self, *_: object) -> None:
        from jax import monitoring

        monitoring.unregister_event_listener(self._begin)
        monitoring.unregister_event_duration_listener(self._end)

    def _begin(self, event: str, **kwargs: Any) -> None:
        self._running += event == "/jax/compilation_cache/compile_requests_use_cache"

    def _end(self, event: str, duration_secs: float, **kwargs: Any) -> None:
        self._running -= event == "/jax/core/compile/backend_compile_duration"

    def render(self, task: Any) -> Text:
        """The word while a compilation runs; an empty text otherwise."""
        return Text("compiling" if self._running > 0 else "")


def result_console() -> Console:
    """Console on stdout; a pipe or a file is wide enough for every table."""
    console = _ResultConsole(highlight=False)
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    return console


@contextmanager
def progress_bars() -> Iterator[Callable[[str, int, int], None]]:
    """Transient bars on stderr during the block; a pipe or a file gets the names of stages.

    Yields:
      function of a stage's name, its finished steps and its total steps; a bar for each stage.
    """
    console = Console(stderr=True, highlight=False)
    compilation = _Compilation()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with (
        compilation if console.is_terminal else nullcontext(),
        Progress(
            *columns,
            TimeElapsedColumn(),
            compilation,
            console=console,
            transient=True,
            disable=not console.is_terminal,
        ) as bars,
    ):
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
    """Transient bar on stderr during the block; a pipe or a file gets a line every tenth of it.

    Yields:
      function of a ``jaxserve.learning.training.TrainingStatus``.
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
