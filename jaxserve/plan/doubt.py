"""Doubt of predicted times: published errors of the cost model, and errors of load-test fits.

A doubt is the half width of a 95 % interval of a common factor on all times of an engine. Published
errors are means of absolute values; of normal errors 95 % lie within ``WIDTH`` times their mean.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from jaxserve.checks import JsonObject
from jaxserve.datafiles import load_json
from jaxserve.sim.machine.hardware import LlmModel

WIDTH = 1.96 * math.sqrt(math.pi / 2)
"""Half width of the 95 % interval of normal errors, in units of their mean absolute value."""
PUBLISHED = "plan_doubt.json"
"""Data file of the errors of docs/fidelity_results.md."""


@dataclass(frozen=True)
class Doubt:
    """Relative doubt of an engine's times."""

    error: float
    """mean absolute relative error that is expected."""
    source: str
    """comparison that the error is of."""
    measured: bool = False
    """whether the engine itself was measured by the user."""

    @property
    def slower(self) -> float:
        """Factor on all times at the slow end of the interval."""
        return 1.0 + WIDTH * self.error

    @property
    def faster(self) -> float:
        """Factor on all times at the fast end of the interval."""
        return 1.0 / self.slower

    def with_error(self, error: float, source: str) -> Doubt:
        """The doubt of independent errors together."""
        return Doubt(math.hypot(self.error, error), f"{self.source}; {source}", self.measured)


def published_doubt(
    model: LlmModel, weight_format: str, tensor_parallel: int, served: bool
) -> Doubt:
    """Error of the nearest row of the fidelity results, with whole runs held out.

    Args:
      served: whether servers on this kind of GPU were measured.
    """
    data = JsonObject(load_json(PUBLISHED), PUBLISHED)
    rows = data.inside("servers")
    if not served:
        name = "all"
    elif getattr(model, "experts", None) is not None:
        named = {"gpt-oss-120b", "qwen3-235b-a22b", "deepseek-v3"}
        name = model.name if model.name in named else "experts"
    elif weight_format in ("fp4", "mxfp4", "int4"):
        name = "fp4"
    else:
        wide = "tp8" if tensor_parallel >= 8 else "tp1-4"
        name = f"{'fp8' if weight_format in ('fp8', 'int8') else 'bf16'} {wide}"
    row = rows.inside(name)
    return Doubt(row.number("error", 0, 1), f"fidelity results, {row.text('row')}")


ROW_ERROR = 0.047
"""Median relative error of TPOT that choices reckon with: a little more than measured servers show,
held out by thirds (docs/fidelity_results.md, "TPOT of all rows but the impossible ones")."""
_NORMAL_MEDIAN = 0.6745  # median absolute value of a standard normal number


def most_expected(
    worth: NDArray[np.float64],
    predicted_s: NDArray[np.float64],
    bound_s: float,
    error: float = ROW_ERROR,
) -> int | None:
    """Index of the largest worth times the chance that its time is inside the bound.

    A setting that is well inside the bound gives up nothing for its doubt, and one at the bound
    gives way to the next where that is not worth much less.

    Args:
      worth: float64[n], worth of each setting inside the bound, such as output per GPU.
      predicted_s: float64[n], predicted time of each.
      bound_s: largest time allowed.
      error: median relative error of predictions.

    Returns:
      the index; None where every setting is more likely outside than inside.
    """
    inside = norm.cdf(np.log(bound_s / predicted_s) * _NORMAL_MEDIAN / error)
    if not len(inside) or inside.max() < 0.5:
        return None
    return int((worth * inside).argmax())
