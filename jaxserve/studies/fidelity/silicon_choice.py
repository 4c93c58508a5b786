"""Choices among measured servers by prediction, beside the best that was measured.

Measured servers (``served_rows``) are grouped by model, GPU, engine, format and lengths. In every
group of three or more configurations (GPUs and requests in flight), and for every bound on TPOT,
the configuration with the most output per GPU expected inside the bound is chosen by prediction, as
plans choose batch caps, and compared with the best that was measured inside the bound.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jaxserve.plan.doubt import ROW_ERROR, most_expected
from jaxserve.studies.fidelity.measurements import FidelityRow
from jaxserve.studies.fidelity.served_rows import ServedRow

BOUNDS_S = (0.02, 0.03, 0.05, 0.1)
"""Bounds on TPOT, s."""
PLANNED_ENGINE = "vllm"
"""Engine whose deployments plans name."""
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
    """choices whose measured TPOT is beyond the bound, %."""

    def __str__(self) -> str:
        """The three figures."""
        return (
            f"{self.mean:.1f} % lost on average, {self.tail:.1f} % at the 90th percentile, the "
            f"bound broken in {self.broken:.1f} %"
        )

    @property
    def mean(self) -> float:
        """Mean loss, %; 0 where no choice is inside its bound."""
        return 100 * float(self.lost.mean()) if len(self.lost) else 0.0

    @property
    def tail(self) -> float:
        """90th percentile of the loss, %; 0 likewise."""
        return 100 * float(np.percentile(self.lost, 90)) if len(self.lost) else 0.0


def choice_rows(
    rows: Sequence[ServedRow], held_out_s: Array, as_shipped_s: Array, closed_form_s: Array
) -> list[FidelityRow]:
    """Rows of the fidelity page; none where no group has configurations to choose from.

    Args:
      held_out_s: float64[rows], TPOT under constants that were not fitted to the row.
      as_shipped_s: float64[rows], TPOT under the shipped constants.
      closed_form_s: float64[rows], the same by the closed form that ranks deployments of a plan.
    """
    found = regret(rows, held_out_s, ROW_ERROR)
    if not found.choices:
        return []
    planned = np.array([row.stack.engine == PLANNED_ENGINE for row in rows])
    served = [row for row, here in zip(rows, planned, strict=True) if here]
    own = regret(served, closed_form_s[planned], ROW_ERROR)
    about = (
        f"{found.choices} choices in {len(groups_of(rows))} groups, TPOT at most "
        f"{', '.join(f'{1e3 * each:g}' for each in BOUNDS_S)} ms; without a margin "
        f"{regret(rows, held_out_s, 1e-9)}; shipped constants: "
        f"{regret(rows, as_shipped_s, ROW_ERROR)}; by the closed form of plans, rows of "
        f"{PLANNED_ENGINE}: {own.choices} choices, {own}"
    )
    name = "choice among servers by prediction"
    return [
        FidelityRow.within(f"{name}: output per GPU lost", found.mean, 2.5, "% (mean)", about),
        FidelityRow.within(f"{name}: output per GPU lost", found.tail, 8.0, "% (p90)", "as above"),
        FidelityRow.within(
            f"{name}: bound on TPOT broken", found.broken, 3.0, "% of choices", "as above"
        ),
    ]


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
    return Regret(choices, np.array(lost), 100 * broken / max(choices, 1))
