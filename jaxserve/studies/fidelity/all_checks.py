"""All fidelity checks in one table, for ``jaxserve fidelity``."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.table import Table

from jaxserve.show.style import BLUE, RED
from jaxserve.studies.fidelity.all_reduce import all_reduce_fidelity
from jaxserve.studies.fidelity.coarse_clock import clock_fidelity
from jaxserve.studies.fidelity.demand_statistics import demand_fidelity
from jaxserve.studies.fidelity.disaggregated import disaggregated_fidelity
from jaxserve.studies.fidelity.fast_vs_reference import fast_vs_reference
from jaxserve.studies.fidelity.kernels import kernel_fidelity
from jaxserve.studies.fidelity.measurements import FidelityRow
from jaxserve.studies.fidelity.policies import policy_transfer
from jaxserve.studies.fidelity.prefix_reuse import prefix_fidelity
from jaxserve.studies.fidelity.prefix_runs import prefix_run_fidelity
from jaxserve.studies.fidelity.served import served_fidelity
from jaxserve.studies.fidelity.silicon import silicon_fidelity
from jaxserve.studies.fidelity.vidur import vidur_fidelity
from jaxserve.studies.fidelity.vllm_expert_run import vllm_expert_fidelity
from jaxserve.studies.fidelity.vllm_run import vllm_fidelity
from jaxserve.studies.fidelity.vllm_run_fast import vllm_fast_fidelity
from jaxserve.studies.fidelity.vllm_scheduler import scheduler_agreement
from jaxserve.studies.fidelity.wide_scenarios import wide_fidelity

MEASURED: dict[str, Callable[[Path], list[FidelityRow]]] = {
    "cost model against kernels": kernel_fidelity,
    "cost model against all-reduce": all_reduce_fidelity,
    "cost model against silicon": silicon_fidelity,
    "cost model against servers": served_fidelity,
    "cost model against servers apart": disaggregated_fidelity,
    "reference against Vidur": vidur_fidelity,
    "reference against vLLM": vllm_fidelity,
    "reference against vLLM with experts": vllm_expert_fidelity,
    "fast simulator against vLLM": vllm_fast_fidelity,
    "prefix reuse": prefix_fidelity,
    "reference against vLLM with shared prefixes": prefix_run_fidelity,
    "traces of a coarse clock": clock_fidelity,
    "demand of days": demand_fidelity,
}
"""Checks against measured data by name; the argument is the directory of the data."""


def run_checks(
    measurements: Path | None, progress: Callable[[str], None] | None = None
) -> tuple[list[FidelityRow], list[str]]:
    """Recomputes every check.

    Args:
      measurements: directory of measured data, None if there is none.
      progress: called with the name of each check as it starts.

    Returns:
      the rows, and the names of the checks skipped without data.
    """
    rows: list[FidelityRow] = []
    skipped: list[str] = []
    for name, check in MEASURED.items():
        if measurements is None:
            skipped.append(name)
            continue
        if progress:
            progress(name)
        rows += check(measurements)
    if progress:
        progress("reference against vLLM's scheduler")
    rows += scheduler_agreement()
    if progress:
        progress("fast simulator against reference")
    rows += fast_vs_reference() + wide_fidelity()
    if progress:
        progress("policies in both simulators")
    return rows + policy_transfer(), skipped


def fidelity_table(rows: Sequence[FidelityRow]) -> Table:
    """The rows for a terminal."""
    table = Table(title="Fidelity", show_lines=True)
    for column in ("check", "error", "bar", "", "detail"):
        table.add_column(column, justify="right" if column in ("error", "bar") else "left")
    for row in rows:
        table.add_row(
            row.check,
            f"{_rounded(row.measured)} {row.unit}",
            f"{row.bar:g} {row.unit}",
            "pass" if row.passed else "MISS",
            row.detail,
        )
    return table


def fidelity_markdown(rows: Sequence[FidelityRow]) -> str:
    """The rows as a Markdown page: a table of the comparisons, and one of all checks."""
    lines = [
        "# Fidelity results",
        "",
        "| comparison | passed | nearest to its bar, or furthest beyond it |",
        "|---|--:|---|",
    ]
    for comparison, group in itertools.groupby(rows, lambda row: row.check.partition(": ")[0]):
        checks = list(group)
        worst = max(checks, key=lambda row: row.measured / row.bar)
        lines.append(
            f"| {comparison} | {sum(row.passed for row in checks)} of {len(checks)} "
            f"| {worst.check.partition(': ')[2]}: {_rounded(worst.measured)} {worst.unit}, "
            f"bar {worst.bar:g} |"
        )
    lines += [
        "",
        "| check | error | bar | | detail |",
        "|---|--:|--:|---|---|",
    ]
    for row in rows:
        verdict = "pass" if row.passed else "**miss**"
        lines.append(
            f"| {row.check} | {_rounded(row.measured)} {row.unit} | {row.bar:g} {row.unit} "
            f"| {verdict} | {row.detail} |"
        )
    return "\n".join(lines) + "\n"


def fidelity_picture(rows: Sequence[FidelityRow]) -> bytes:
    """PNG of every error as a share of its bar."""
    import matplotlib.pyplot as plt

    shares = [row.measured / row.bar for row in rows]
    colours = [BLUE if row.passed else RED for row in rows]
    figure, axes = plt.subplots(figsize=(9, 0.36 * len(rows) + 1.2), layout="constrained")
    axes.barh(range(len(rows)), shares, color=colours)
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set_yticks(range(len(rows)), [row.check for row in rows], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("error as a share of its bar")
    picture = io.BytesIO()
    figure.savefig(picture, dpi=150)
    plt.close(figure)
    return picture.getvalue()


def _rounded(value: float) -> str:
    """Three significant digits below one, else one decimal."""
    return f"{value:.1f}" if value >= 1.0 else f"{value:#.3g}"
