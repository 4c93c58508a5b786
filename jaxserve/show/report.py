"""Evaluations and tasks as tables for the terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from rich.table import Table

from jaxserve.show.text_table import TextTable, plain_table
from jaxserve.spaces import KNOB_FIELDS, action_text
from jaxserve.tasks.anchors import anchors_score
from jaxserve.tasks.spec import TaskSpec

# The modules that make these take seconds to import, and most commands print only one.
if TYPE_CHECKING:
    from jaxserve.agents.search import StaticSearch
    from jaxserve.agents.task_setup import TaskSetup
    from jaxserve.evaluation.episode_statistics import Interval
    from jaxserve.evaluation.held_out import Evaluations
    from jaxserve.learning.training import TrainingResult
    from jaxserve.sim.fit.extrapolation import Extrapolation
    from jaxserve.sim.fit.kernel_table import KernelReport
    from jaxserve.sim.fit.load_test import FitReport


def evaluation_table(evaluated: Evaluations) -> TextTable:
    """Table of a task's agents, one a row: figures over all episodes, with 95 % intervals."""
    from jaxserve.evaluation.held_out import gains

    setup, rows = evaluated.setup, _intervals(evaluated, _COLUMNS)
    for agent, gain in gains(evaluated).items():
        rows[agent]["gain"] = gain
    columns = _resolved(_COLUMNS, evaluated)
    columns = [column for column in columns if any(column[0] in found for found in rows.values())]
    header = ["agent", *(heading for _, heading, _ in columns)]
    cells = [_cells(agent, rows[agent], columns) for agent in rows]
    if len(setup.kinds) > 1:
        header.append("SLO met %, worst class")
        cells = [[*row, _worst_class(evaluated, row[0])] for row in cells]
    caption = ["over the requests of all episodes together, and the 95 % interval"]
    if "gain" in (name for name, _, _ in columns):
        caption[0] += "; gain: reward above that of best_static in the same episodes"
        if evaluated.in_doubt:
            caption[0] += f", also on hardware {100 * setup.doubt:.0f} % slower and faster"
    caption += [_best_static_text(evaluated), *adapting_texts(evaluated), setup.note]
    return TextTable(
        title=f"{setup.spec.name}, {evaluated.episodes} {evaluated.split} episodes",
        header=tuple(header),
        rows=tuple(map(tuple, cells)),
        caption="\n".join(filter(None, caption)),
    )


def search_table(setup: TaskSetup, found: StaticSearch) -> TextTable:
    """The best constant settings, the named one first, and which of them are equal to it. Each open
    knob has a column."""
    from jaxserve.agents.search import equal_text
    from jaxserve.grids import grid_sizes

    sizes = grid_sizes(setup.env)
    knobs = [(i, knob) for i, knob in enumerate(KNOB_FIELDS.values()) if sizes[i] > 1]
    percent = f"{100 * found.doubt:.0f} %"
    doubted = found.doubt > 0.0
    header = ["", *(knob.label for _, knob in knobs), "reward", "difference"]
    header += [f"{percent} slower", f"{percent} faster"] if doubted else []
    rows = []
    for place, each in enumerate(found.contenders[:_SETTINGS_SHOWN]):
        mean, low, high = each.difference
        verdict = "equal" if each.equal else "worse" if high < 0.0 else "not known"
        values = [
            knob.names[each.setting[i]] if knob.names else f"{knob.grid[each.setting[i]]:g}"
            for i, knob in knobs
        ]
        cells = [verdict if place else "best", *values, f"{each.reward:.3f}"]
        cells.append(_difference(mean, low, high) if place else "-")
        if doubted:
            cells += [f"{each.slower:+.4f}", f"{each.faster:+.4f}"] if place else ["-", "-"]
        rows.append(tuple(cells))
    caption = [
        "reward per window, and the difference from the best in the same episodes with its 95 % "
        "interval"
    ]
    if doubted:
        caption.append(
            f"the table's times are in doubt by {percent}: the best setting loses least on "
            "slower and faster hardware, and settings are equal where the doubt decides"
        )
    caption.append(equal_text(found, sizes) or "")
    if not found.resolved:
        caption.append(
            "there is no more traffic to tell the best settings further apart: a longer trace would"
            if setup.has_parts and found.exhausted
            else "the best settings are not further apart after as many episodes as a search plays"
        )
    return TextTable(
        title=f"{setup.spec.name}, best constant settings on {found.episodes} training episodes",
        header=tuple(header),
        rows=tuple(rows),
        caption="\n".join(filter(None, caption)),
    )


def adapting_texts(evaluated: Evaluations) -> list[str]:
    """Sentences on controllers that gain nothing over the best constant setting, or whose gain is
    not known."""
    from jaxserve.agents.search import TIE
    from jaxserve.evaluation.held_out import gains

    texts = []
    for agent, gain in gains(evaluated).items():
        if agent not in _CONTROLLERS or gain.low > TIE:
            continue
        said = "adapting gains nothing here"
        if gain.high > TIE:
            said = "whether adapting gains anything here is not known"
        texts.append(
            f"{said}: {agent} {_difference(gain.mean, gain.low, gain.high)} over the best constant "
            "setting"
        )
    return texts


def _difference(mean: float, low: float, high: float) -> str:
    """A difference in reward and its interval, where one is known."""
    known = math.isfinite(low) and math.isfinite(high)
    return f"{mean:+.4f} ({low:+.4f} to {high:+.4f})" if known else f"{mean:+.4f}"


_CONTROLLERS = ("heuristic", "ppo")
_SETTINGS_SHOWN = 8


def tail_table(evaluated: Evaluations) -> TextTable:
    """Slow requests, bad hours and cost of the same agents."""
    columns = _resolved(_TAIL_COLUMNS, evaluated)
    rows = _intervals(evaluated, columns)
    span, cells = "hour", []
    for agent, found in evaluated.agents.items():
        worst = found.worst_hour()
        span = worst.span
        p99 = _cell(_point(worst.ttft_p99_s), _up_to(evaluated.longest_ttft_s))
        attained = _cell(_point(worst.slo_attainment), _fixed(100.0, 1))
        name, *figures = _cells(agent, rows[agent], columns)
        cells.append((name, figures[0], p99, attained, *figures[1:]))
    caption = [
        "undecided: requests inside their objectives when an episode ended; SLO met leaves them out"
    ]
    limit_s = evaluated.longest_ttft_s
    if any(found["ttft_p99_s"].mean > limit_s for found in rows.values()):
        caption.append(
            f"TTFT beyond {limit_s:g} s is known to be longer and no more; `jaxserve simulate` "
            "plays a trace without this limit"
        )
    headings = [heading for _, heading, _ in columns]
    worst_headings = (f"TTFT p99, worst {span}", f"SLO met %, worst {span}")
    return TextTable(
        title=f"{evaluated.setup.spec.name}, tail and cost",
        header=("agent", headings[0], *worst_headings, *headings[1:]),
        rows=tuple(cells),
        caption="\n".join(caption),
    )


def evaluation_markdown(tables: Sequence[TextTable]) -> str:
    """Evaluations of several tasks, each below its title."""
    return "\n".join(
        f"## {table.title}\n\n{table.markdown()}\n{table.caption}\n" for table in tables
    )


def task_table(specs: Sequence[TaskSpec]) -> Table:
    """The tasks, one a row."""
    table = plain_table()
    table.add_column("task", no_wrap=True)
    table.add_column("deployment", no_wrap=True)
    table.add_column("traffic, and the knobs to turn")
    for spec in specs:
        alias = spec.difficulty if spec.alias is None else f"{spec.difficulty}, alias {spec.alias}"
        table.add_row(
            f"{spec.name}\n[dim]{alias}[/dim]",
            f"{spec.deployment.gpus_text(spec.hardware)}\n[dim]{spec.model}[/dim]",
            f"{spec.description}\n[dim]{', '.join(spec.knobs)}[/dim]\n",
        )
    return table


def _best_static_text(evaluated: Evaluations) -> str | None:
    """Sentence that names the best static setting and its origin."""
    from jaxserve.agents.open_loop import StaticPolicy

    setup, found = evaluated.setup, evaluated.agents.get("best_static")
    if found is None or not isinstance(found.policy, StaticPolicy):
        return None
    knobs = action_text(found.policy.action, setup.env.knob_active.tolist())
    source = "the search above" if setup.anchors is None else "the search for the anchors"
    return f"best_static is {knobs}, by {source} on training episodes"


_Show: TypeAlias = "Callable[[Interval], tuple[str, str, str]]"
"""An interval's mean, low and high as text."""


def _fixed(factor: float, decimals: int) -> _Show:
    def show(found: Interval) -> tuple[str, str, str]:
        mean, low, high = (
            f"{factor * value:.{decimals}f}" for value in (found.mean, found.low, found.high)
        )
        return mean, low, high

    return show


def _signed(found: Interval) -> tuple[str, str, str]:
    return f"{found.mean:+.2f}", f"{found.low:.2f}", f"{found.high:.2f}"


def _seconds(found: Interval) -> tuple[str, str, str]:
    """Seconds as text, in milliseconds below a second."""
    unit, factor = ("ms", 1000.0) if found.mean < 1.0 else ("s", 1.0)
    mean, low, high = (_short(factor * value, 3) for value in (found.mean, found.low, found.high))
    return f"{mean} {unit}", low, high


def _up_to(limit_s: float) -> _Show:
    """``_seconds`` of what is known up to a limit only."""

    def show(found: Interval) -> tuple[str, str, str]:
        mean, low, high = _seconds(found)
        return (f"> {limit_s:g} s", low, high) if found.mean > limit_s else (mean, low, high)

    return show


def _two_digits(found: Interval, factor: float = 1.0) -> tuple[str, str, str]:
    mean, low, high = (_short(factor * value, 2) for value in (found.mean, found.low, found.high))
    return mean, low, high


def _usd_per_million(found: Interval) -> tuple[str, str, str]:
    return _two_digits(found, 1000.0)


def _short(value: float, digits: int) -> str:
    """A number with so many significant digits, but without an exponent."""
    large = abs(value) >= 10.0**digits - 0.5
    return f"{value:.0f}" if large else f"{value:#.{digits}g}".removesuffix(".")


_Column: TypeAlias = "tuple[str, str, _Show]"
"""Statistic, heading, and how it is shown."""

_COLUMNS: tuple[_Column, ...] = (
    ("score", "score", _fixed(1.0, 2)),
    ("changes_per_minute", "changes / min", _two_digits),
    ("objective", "reward", _fixed(1.0, 2)),
    ("gain", "gain", _signed),
    ("goodput_rps", "goodput req/s", _fixed(1.0, 1)),
    ("slo_attainment", "SLO met %", _fixed(100.0, 1)),
    ("ttft_p50_s", "TTFT p50", _seconds),
)
_TAIL_COLUMNS: tuple[_Column, ...] = (
    ("ttft_p99_s", "TTFT p99", _seconds),
    ("itl_s", "ITL", _seconds),
    ("undecided_share", "undecided %", _fixed(100.0, 1)),
    ("usd_per_hour", "USD / hour", _two_digits),
    ("usd_per_month", "USD / month", _two_digits),
    ("usd_per_1k_good_tokens", "USD / 1M good tok.", _usd_per_million),
)


def _resolved(columns: Sequence[_Column], evaluated: Evaluations) -> list[_Column]:
    """The columns, those of TTFT up to what the fast simulator resolves."""
    show_ttft = _up_to(evaluated.longest_ttft_s)
    return [
        (name, heading, show_ttft if name.startswith("ttft") else show)
        for name, heading, show in columns
    ]


def _intervals(
    evaluated: Evaluations, columns: Sequence[_Column]
) -> dict[str, dict[str, Interval]]:
    """Intervals of each agent's statistics that have a column."""
    names = {name for name, _, _ in columns}
    return {
        agent: {name: each for name, each in found.summary().items() if name in names}
        for agent, found in evaluated.agents.items()
    }


def _cells(agent: str, found: Mapping[str, Interval], columns: Sequence[_Column]) -> list[str]:
    """Cells of an agent's row."""
    return [agent, *(_cell(found.get(name), show) for name, _, show in columns)]


def _worst_class(evaluated: Evaluations, agent: str) -> str:
    found = evaluated.worst_class(agent)
    return "-" if found is None else f"{100.0 * found[1]:.1f} ({found[0]})"


def _point(value: float) -> Interval:
    """A figure without an interval."""
    from jaxserve.evaluation.episode_statistics import Interval

    return Interval(value, value, value)


def _cell(found: Interval | None, show: _Show) -> str:
    if found is None or math.isnan(found.mean):
        return "-"
    mean, low, high = show(found)
    known = found.low != found.high and math.isfinite(found.low) and math.isfinite(found.high)
    return f"{mean} ({low} to {high})" if known and not mean.startswith(">") else mean


def fit_report_table(report: FitReport) -> Table:
    """Table of a fit: its constants and its errors."""

    def percent(error: float | None) -> str:
        return "not measured" if error is None else f"{100.0 * error:.1f} %"

    row, error = report.worst_row
    table = plain_table(
        title=f"fit to {report.rows} rows",
        caption=(
            f"mean TPOT error {percent(report.tpot_error)}, held out "
            f"{percent(report.held_out_tpot_error)} (before the fit "
            f"{percent(report.prior_tpot_error)}); mean TTFT error {percent(report.ttft_error)}, "
            f"held out {percent(report.held_out_ttft_error)}; worst is row {row}, TPOT "
            f"{100.0 * error:+.1f} %; mean TPOT error beyond the rows of a fit: "
            f"{', '.join(map(_beyond, report.extrapolations)) or 'not known'}"
            + "".join(
                f"; all {name} have {tokens:g} tokens, beyond which nothing is known"
                for name, tokens in report.single_lengths.items()
            )
        ),
    )
    table.add_column("time spent on", no_wrap=True)
    table.add_column("fitted /\nprior", justify="right")
    table.add_column("known from\nthe rows", justify="right")
    for constant in report.constants:
        limit = " (at its limit)" if constant.at_limit else ""
        known = f"{100.0 * constant.known:.0f} %"
        table.add_row(constant.name, f"{constant.factor:.2f}{limit}", known)
    return table


def _beyond(edge: Extrapolation) -> str:
    """Extrapolation errors of a fit, from rows that it was not shown."""
    return (
        f"from {edge.largest_left:g} to {edge.largest:g} {edge.axis} {100 * edge.error:.1f} % "
        f"(worst {100 * edge.worst_error:+.1f} %)"
    )


def kernel_report_table(report: KernelReport) -> Table:
    """Table of a fit to kernels: its errors, also on rows that it was not shown."""
    from jaxserve.sim.fit.kernel_table import LABELS

    metadata = report.table.metadata
    caption = ["errors are shares of the time of the layer that has the kernel"]
    if report.iterations is not None:
        caption.append(
            f"{report.iterations.loads} whole iterations are {100 * report.iterations.error:.1f} % "
            f"off (worst {100 * report.iterations.worst_error:+.1f} %), of prompts and decodes "
            f"together {100 * report.iterations.mixed_error:.1f} %"
        )
    kept = [f"host time ({1e3 * metadata.cost_model.host_s:g} ms an iteration)"]
    kept += [LABELS[kind] for kind in report.kept]
    caption.append(f"as {metadata.hardware} has them: {', '.join(kept)}")
    if report.left_out:
        formats = ", ".join(f"{name} {count:,}" for name, count in sorted(report.left_out.items()))
        caption.append(
            f"{sum(report.left_out.values()):,} rows in other formats were left out ({formats}): "
            "INT8 and INT4 keep their times in proportion to FP16"
        )
    table = plain_table(title=f"fit to kernels of {metadata.model}", caption="; ".join(caption))
    table.add_column("kernels", no_wrap=True)
    for heading in ("rows", "error", "every third\nheld out"):
        table.add_column(heading, justify="right")
    table.add_column("the largest held out")
    for each in report.fits:
        errors = (f"{100 * error:.1f} %" for error in (each.error, each.held_out_error))
        beyond = "\n".join(map(_beyond, each.extrapolations)) or "not known"
        table.add_row(LABELS[each.kind], str(each.rows), *errors, beyond)
    return table


def training_table(result: TrainingResult, setup: TaskSetup) -> Table:
    """Table of a finished run: the reward of each seed's policy on validation episodes."""
    table = plain_table(title=f"ppo on {setup.spec.name}, {result.episodes} validation episodes")
    table.add_column("seed of the policy", justify="right")
    table.add_column("mean reward", justify="right")
    if setup.anchors is not None:
        table.add_column("score", justify="right")
    for seed, objective in zip(result.seeds, result.objectives, strict=True):
        cells = [str(seed), f"{objective:.4f}"]
        if setup.anchors is not None:
            cells.append(f"{anchors_score(setup.anchors, objective):.3f}")
        table.add_row(*cells)
    return table
