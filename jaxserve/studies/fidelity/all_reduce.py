"""The all-reduce against measured kernels: 2, 4 and 8 H100, bf16, under CUDA graphs.

The file's ``message_size`` is in elements. Read as bytes, the largest messages would move at half
the rate of any library.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from jaxserve.sim.fit.columns import read_columns
from jaxserve.sim.machine.collectives import AllReduce
from jaxserve.sim.machine.stack import ServedGpu, Stack, serve
from jaxserve.studies.fidelity.measurements import FidelityRow

FILE = "kernels/h100_sxm_comm_vllm_0.14.0_custom_allreduce_perf.parquet"
BAR = 10.0
FOLDS = 3
ELEMENT_BYTES = 2
_FITTED = tuple(
    field.name for field in dataclasses.fields(AllReduce) if field.name != "largest_custom_bytes"
)


@dataclass(frozen=True)
class AllReduceRows:
    """Measured times."""

    gpus: np.ndarray
    """GPUs that share the message, int[n]."""
    message_bytes: np.ndarray
    """size of the message, float64[n]."""
    seconds: np.ndarray
    """time of one all-reduce, float64[n]."""

    def where(self, mask: np.ndarray) -> AllReduceRows:
        """Rows selected by a boolean mask."""
        return AllReduceRows(self.gpus[mask], self.message_bytes[mask], self.seconds[mask])

    def fold(self) -> np.ndarray:
        """Fold of each row, int[n]: neighbours in size fall into different folds."""
        order = np.lexsort((self.message_bytes, self.gpus))
        folds = np.empty(len(order), int)
        folds[order] = np.arange(len(order)) % FOLDS
        return folds


def all_reduce_rows(directory: Path) -> AllReduceRows:
    """Rows measured under CUDA graphs, in which engines run decode batches."""
    columns = read_columns(directory / FILE)
    keep = columns["kernel_source"] == "vLLM_custom_graph"
    return AllReduceRows(
        columns["num_gpus"][keep].astype(int),
        columns["message_size"][keep].astype(float) * ELEMENT_BYTES,
        columns["latency"][keep] * 1e-3,
    )


def shipped_all_reduce() -> AllReduce:
    """The constants in the H100's file."""
    gpu, _ = serve("h100-sxm-80gb", "llama-3.1-8b", Stack())
    if not isinstance(gpu, ServedGpu):
        raise TypeError("a stack always gives the served form")
    return gpu.all_reduce


def relative_errors(constants: AllReduce, rows: AllReduceRows) -> np.ndarray:
    """Predicted over measured time, less 1, float64[n]."""
    pairs = zip(rows.gpus.tolist(), rows.message_bytes.tolist(), strict=True)
    return np.array([constants.seconds(*pair) for pair in pairs]) / rows.seconds - 1


def fit(rows: AllReduceRows) -> AllReduce:
    """Constants by robust least squares of log(predicted / measured)."""
    start = shipped_all_reduce()

    def build(scale: np.ndarray) -> AllReduce:
        values = {
            name: getattr(start, name) * float(each)
            for name, each in zip(_FITTED, scale, strict=True)
        }
        return dataclasses.replace(start, **values)

    def residuals(scale: np.ndarray) -> np.ndarray:
        return np.log1p(relative_errors(build(scale), rows))

    ones = np.ones(len(_FITTED))
    return build(least_squares(residuals, ones, bounds=(0.2, 5.0), loss="soft_l1", f_scale=0.05).x)


def all_reduce_fidelity(directory: Path) -> list[FidelityRow]:
    """Row on the time of an all-reduce; none if the file is absent.

    Args:
      directory: directory of measurements, see ``measurements.shared_data``.
    """
    if not (directory / FILE).is_file():
        return []
    rows = all_reduce_rows(directory)
    folds, errors = rows.fold(), np.empty(len(rows.seconds))
    for fold in range(FOLDS):
        out = folds == fold
        errors[out] = relative_errors(fit(rows.where(~out)), rows.where(out))
    by_count = ", ".join(
        f"{count} GPUs {100 * np.abs(errors[rows.gpus == count]).mean():.1f} %"
        for count in np.unique(rows.gpus)
    )
    shipped = relative_errors(shipped_all_reduce(), rows)
    detail = (
        f"{len(errors)} sizes from {rows.message_bytes.min():.0f} B to "
        f"{rows.message_bytes.max() / 2**30:.0f} GiB, held out by thirds: {by_count}; shipped "
        f"constants {100 * np.abs(shipped).mean():.1f} %; rest: the step between algorithms"
    )
    return [
        FidelityRow.within(
            "cost model vs kernels: H100 all-reduce",
            100 * float(np.abs(errors).mean()),
            BAR,
            "% (mean)",
            detail,
        )
    ]
