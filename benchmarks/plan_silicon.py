"""``python -m benchmarks.plan_silicon DIRECTORY``: what a choice by prediction costs on real GPUs.

Measured servers (aiconfigurator's rows, see docs/fidelity.md) are grouped by model, GPU, engine,
format and lengths. In every group of three or more configurations (GPUs and requests in flight),
and for every bound on TPOT, the configuration with the most output per GPU inside the bound is
chosen by prediction, and compared with the best that was measured inside the bound. A choice is
made as plans make it, by the output that is expected inside the bound, and without a margin.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.page import page_parser, publish
from jaxserve.plan.doubt import ROW_ERROR, most_expected
from jaxserve.studies.fidelity.served_fit import Prediction, fitted_constants
from jaxserve.studies.fidelity.served_rows import FILE, ServedRow, served_rows

BOUNDS_S = (0.02, 0.03, 0.05, 0.1)
"""Bounds on TPOT, s."""
_FEWEST = 3
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Regret:
    """Results of all choices."""

    choices: int
    """groups and bounds in which a measured configuration is inside the bound."""
    lost: Array
    """float64[n], share of the best output per GPU that a choice inside the bound gives up."""
    broken: float
    """share of the choices whose measured TPOT is beyond the bound."""

    def row(self, name: str) -> str:
        """A line of the page's table."""
        return (
            f"| {name} | {self.choices} | {100 * self.lost.mean():.1f} % "
            f"| {100 * np.percentile(self.lost, 90):.1f} % | {100 * self.broken:.1f} % |"
        )


def groups_of(rows: Sequence[ServedRow]) -> list[NDArray[np.int64]]:
    """Indices of the rows of each group with enough configurations."""
    groups: defaultdict[tuple[object, ...], list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        server = (row.model, row.gpu, row.stack.engine, row.stack.formats[0], row.drafts > 0)
        groups[(*server, row.prompt, row.output)].append(index)
    return [
        np.array(group)
        for group in groups.values()
        if len({(rows[index].gpus, rows[index].concurrency) for index in group}) >= _FEWEST
    ]


def regret(rows: Sequence[ServedRow], predicted_s: Array, error: float) -> Regret:
    """The choices by predicted TPOT float64[rows].

    Args:
      error: median relative error of predictions; near 0 for no margin.
    """
    measured_s = np.array([row.tpot_s for row in rows])
    load = np.array([row.concurrency / row.gpus for row in rows])
    lost, broken, choices = [], 0, 0
    for group in groups_of(rows):
        for bound_s in BOUNDS_S:
            inside = measured_s[group] <= bound_s
            if not inside.any():
                continue
            output = load[group] / measured_s[group]
            chosen = most_expected(
                load[group] / predicted_s[group], predicted_s[group], bound_s, error
            )
            if chosen is None:
                continue
            choices += 1
            if inside[chosen]:
                lost.append(1 - output[chosen] / output[inside].max())
            else:
                broken += 1
    return Regret(choices, np.array(lost), broken / choices)


def page_text(directory: Path) -> str:
    """The page."""
    rows, _, _ = served_rows(directory)
    prediction = Prediction(rows, fitted_constants(rows))
    predicted_s = prediction.tpot_s(prediction.start())
    lines = [
        "# What a choice by prediction costs",
        "",
        f"{len(rows):,} measured servers in {len(groups_of(rows))} groups, bounds on TPOT of "
        f"{', '.join(f'{1e3 * each:g}' for each in BOUNDS_S)} ms.",
        "",
        "| chosen by | choices | lost, mean | lost, p90 | bound broken |",
        "|---|--:|--:|--:|--:|",
        regret(rows, predicted_s, ROW_ERROR).row("expected output inside the bound (plans)"),
        regret(rows, predicted_s, 1e-9).row("predicted output inside the bound, no margin"),
        regret(rows, 1.05 * predicted_s, 1e-9).row("the same with a margin of 5 %"),
    ]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the page."""
    parser = page_parser("benchmarks.plan_silicon", __doc__)
    parser.add_argument("directory", type=Path, help=f"folder of the measured data with {FILE}")
    options = parser.parse_args(arguments)
    return publish(lambda: page_text(options.directory), options.markdown)


if __name__ == "__main__":
    sys.exit(main())
