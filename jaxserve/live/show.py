"""Lines and tables of a controller of real engines: for each window, and for a whole log."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.table import Table

from jaxserve.live.supervisor import InControl
from jaxserve.show.text_table import plain_table

if TYPE_CHECKING:
    from jaxserve.agents.task_setup import TaskSetup
    from jaxserve.live.episode_file import LiveEpisode
    from jaxserve.live.figures import Summary
    from jaxserve.live.twins import Expectation


@dataclass(frozen=True)
class WindowComparison:
    """A measured window beside the simulator's expectations on the same traffic."""

    seen: Expectation
    """the measurement, in the terms of the expectations."""
    in_force: Expectation
    """expectation under the knobs in force."""
    policy: Expectation
    """expectation under the policy's knobs from the start on."""
    static: Expectation
    """expectation under the best static knobs from the start on."""
    ended: int
    """requests that ended."""
    unjudged: int
    """requests among them of which nobody knows whether they met their objectives."""


@dataclass(frozen=True)
class Report:
    """The operator's report of a window."""

    window: int
    mode: str
    reason: str | None
    """fault that puts the static setting into force; None without a fault."""
    comparison: WindowComparison | None = None
    """None if the window could not be measured."""
    command: dict[str, float] = field(default_factory=dict)
    """knobs that were turned; in mode shadow, that would be turned."""
    changes: dict[str, int] = field(default_factory=dict)
    """changes in the last minute of the knobs with limited changes."""
    in_control: InControl = InControl.ENGINES
    """source of the values in force after the window."""
    in_force: dict[str, float] = field(default_factory=dict)
    """knobs in force after the window; empty if they are not known."""


def print_heading(window_s: float) -> None:
    """Prints what the numbers in the line of a window are."""
    print(
        f"a line every {window_s:g} s: good requests, measured; the simulator's expectation of "
        "them for the same arrivals under the knobs in force (under the policy's, under the best "
        "static ones)",
        flush=True,
    )


def print_report(report: Report) -> None:
    """Prints one line for a window."""
    why = "" if report.reason is None else f" [{report.reason}]"
    line = f"{report.window:6d} {report.mode}{why}"
    if (found := report.comparison) is not None:
        knobs = ", ".join(f"{name} {value:g}" for name, value in report.command.items())
        does = "set" if report.mode in ("guarded", "free") else "would set"
        unjudged = f"; {found.unjudged / found.ended:.0%} not judged" if found.unjudged else ""
        line += (
            f": good {found.seen.good:.0f}, expected {found.in_force.good:.1f} (policy "
            f"{found.policy.good:.1f}, static {found.static.good:.1f}){unjudged}; {does} {knobs}"
        )
    if report.changes:
        changes = ", ".join(f"{name} {number}" for name, number in report.changes.items())
        line += f"; changes in a minute: {changes}"
    print(line, flush=True)


def live_table(setup: TaskSetup, episode: LiveEpisode) -> Table:
    """Table of a live episode: its measurements, and the simulator's expectations."""
    from jaxserve.evaluation.episode_statistics import STATISTICS, episode_statistics

    statistics = episode_statistics(setup.env, episode.rollout)
    table = plain_table()
    table.title = f"{setup.spec.name}, measured, {len(episode.notes)} windows"
    table.add_column("figure")
    table.add_column("measured", justify="right")
    for name in STATISTICS:
        table.add_row(name, f"{getattr(statistics, name)[0]:.4g}")
    seconds = sum(float(note["seconds"]) for note in episode.notes)
    for twin in ("in_force", "policy", "static"):
        good = sum(float(note["expected"][twin]["good"]) for note in episode.notes)
        table.add_row(f"goodput_rps expected, {twin}", f"{good / seconds:.4g}")
    fallen = sum(note["reason"] is not None for note in episode.notes)
    table.add_row("windows with a reason to fall back", f"{fallen}")
    table.caption = (
        "Measured on real engines: no score, since anchors are of simulated episodes. Expected: "
        "the simulator on the same arrivals, under knobs in force, the policy's, and static ones"
    )
    return table


def summary_table(title: str, summary: Summary) -> Table:
    """Table of a load test, measured by the client."""
    table = plain_table()
    table.title = title
    table.add_column("figure")
    table.add_column("measured", justify="right")
    for name, value in vars(summary).items():
        table.add_row(name, f"{value:.4g}")
    return table
