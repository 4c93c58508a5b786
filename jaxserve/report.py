"""Evaluations and tasks as tables for the terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from rich import box
from rich.table import Table

from jaxserve.agents.evaluation import Evaluation
from jaxserve.agents.statistics import Interval
from jaxserve.tasks.spec import TaskSpec

TABLE_WIDTH = 100
"""Characters that the widest evaluation table needs."""


def evaluation_table(evaluations: Sequence[Evaluation], episodes: int, split: str) -> Table:
    """One task's agents, one a row: means, and their 95 % intervals below."""
    columns = [column for column in _COLUMNS if any(column[0] in e.summary() for e in evaluations)]
    table = _plain_table(
        title=f"{evaluations[0].task}, {episodes} {split} episodes",
        caption="mean of an episode, and the 95 % interval of that mean",
    )
    table.add_column("agent", no_wrap=True)
    for _, heading, _ in columns:
        table.add_column(heading, justify="right", overflow="fold")
    for evaluation in evaluations:
        found = evaluation.summary()
        cells = [_cell(found.get(name), show) for name, _, show in columns]
        table.add_row(evaluation.agent, *cells)
    return table


def task_table(specs: Sequence[TaskSpec]) -> Table:
    """The tasks, one a row."""
    table = _plain_table()
    table.add_column("task", no_wrap=True)
    table.add_column("deployment", no_wrap=True)
    table.add_column("traffic, and the knobs to turn")
    for spec in specs:
        alias = spec.difficulty if spec.alias is None else f"{spec.difficulty}, alias {spec.alias}"
        table.add_row(
            f"{spec.name}\n[dim]{alias}[/dim]",
            f"{spec.deployment.num_gpus} x {spec.hardware}\n[dim]{spec.model}[/dim]",
            f"{spec.description}\n[dim]{', '.join(spec.knobs)}[/dim]\n",
        )
    return table


_Show = Callable[[Interval], tuple[str, str, str]]
"""An interval's mean, low and high as text."""


def _fixed(factor: float, decimals: int) -> _Show:
    def show(found: Interval) -> tuple[str, str, str]:
        mean, low, high = (
            f"{factor * value:.{decimals}f}" for value in (found.mean, found.low, found.high)
        )
        return mean, low, high

    return show


def _seconds(found: Interval) -> tuple[str, str, str]:
    """In milliseconds below a second."""
    unit, factor = ("ms", 1000.0) if found.mean < 1.0 else ("s", 1.0)
    mean, low, high = (_short(factor * value) for value in (found.mean, found.low, found.high))
    return f"{mean} {unit}", low, high


def _usd_per_million(found: Interval) -> tuple[str, str, str]:
    mean, low, high = (_short(1000.0 * value) for value in (found.mean, found.low, found.high))
    return mean, low, high


def _short(value: float) -> str:
    """Three significant digits, without an exponent."""
    return f"{value:.0f}" if abs(value) >= 999.5 else f"{value:#.3g}".removesuffix(".")


_COLUMNS: tuple[tuple[str, str, _Show], ...] = (
    ("score", "score", _fixed(1.0, 2)),
    ("objective", "reward", _fixed(1.0, 2)),
    ("goodput_rps", "goodput\nreq/s", _fixed(1.0, 1)),
    ("slo_attainment", "SLO met\n%", _fixed(100.0, 1)),
    ("ttft_p50_s", "TTFT\np50", _seconds),
    ("ttft_p99_s", "TTFT\np99", _seconds),
    ("itl_s", "ITL", _seconds),
    ("usd_per_1k_good_tokens", "USD / 1M\ngood tok.", _usd_per_million),
)
"""Statistic, heading, and how it is shown."""


def _cell(found: Interval | None, show: _Show) -> str:
    if found is None or math.isnan(found.mean):
        return "-"
    mean, low, high = show(found)
    return f"{mean}\n[dim]{low}–{high}[/dim]"


def _plain_table(title: str | None = None, caption: str | None = None) -> Table:
    return Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), title=title, caption=caption)
