"""Latency tables from a file of measured steps, such as a profiler's, without an engine."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from jaxserve import checks
from jaxserve.errors import InputError
from jaxserve.live.calibration.fit import FEWEST_POINTS, Fit, fit, of_loads
from jaxserve.live.calibration.plan import MAX_ERROR
from jaxserve.live.calibration.steps import Steps
from jaxserve.sim.fit.columns import numbers, read_columns
from jaxserve.sim.fit.plausible import check_unit
from jaxserve.sim.machine.architecture import LargeModel
from jaxserve.sim.machine.cost_model import CostModel
from jaxserve.sim.machine.hardware import Gpu, LlmModel
from jaxserve.sim.table.build import fill_measured
from jaxserve.sim.table.file import TableFile

REQUIRED = ("seconds", "decode_seqs", "kv_tokens", "prompt_tokens")
OPTIONAL = ("prefix_tokens", "pairs", "decode_tokens", "depth")
MAX_ROWS = 1_000_000


def read_steps(path: Path) -> Steps:
    """Reads steps from a .csv or .parquet file, one row each.

    Columns are those of ``Steps``. Without ``pairs`` a step's prompt tokens are one chunk after
    ``prefix_tokens`` computed tokens (0 without that column). ``decode_tokens`` defaults to
    ``decode_seqs``, and ``depth`` to 0.

    Raises:
      InputError: the file cannot be read, a column is missing or unknown, or a number is out of
        range.
    """
    where = f"step file {path}"
    checks.ending("step file", path, ".csv", ".parquet")
    read = read_columns(path)
    unknown = sorted({*read} - {*REQUIRED, *OPTIONAL})
    missing = [name for name in REQUIRED if name not in read]
    if unknown or missing:
        named = f"column {(unknown or missing)[0]!r} is {'unknown' if unknown else 'missing'}"
        raise InputError(f"{where}: {named}; it has {', '.join((*REQUIRED, *OPTIONAL))}")
    columns = {name: numbers(read, name, where) for name in read}
    seconds, prompt = columns["seconds"], columns["prompt_tokens"]
    if not FEWEST_POINTS <= len(seconds) <= MAX_ROWS:
        checks.refuse(
            f"number of rows of {where}", len(seconds), f"from {FEWEST_POINTS} to {MAX_ROWS}"
        )
    least = seconds.argmin()
    checks.positive(f"{where}: row {least + 1}, column seconds", seconds[least])
    zeros = np.zeros(len(seconds))
    return Steps(
        seconds=seconds,
        decode_seqs=columns["decode_seqs"],
        decode_tokens=columns.get("decode_tokens", columns["decode_seqs"]),
        kv_tokens=columns["kv_tokens"],
        prompt_tokens=prompt,
        pairs=columns.get("pairs", prompt * (columns.get("prefix_tokens", zeros) + prompt / 2)),
        depth=columns.get("depth", zeros),
    )


def table_of_steps(
    steps: Steps, gpu: Gpu, model: LlmModel, tensor_parallel: int, token_budget: int, source: str
) -> tuple[Fit, TableFile]:
    """Fits steps, and fills a table from the fit.

    Args:
      token_budget: most tokens of an iteration, by which prompts are chunked.
      source: origin of the steps, for the table's metadata.

    Raises:
      InputError: there are too few steps, their times are implausible for the model on the GPU, or
        the error of the fit exceeds ``MAX_ERROR``.
    """
    typical = steps.typical()
    # A profile has every load once; the trace of a running engine repeats common loads.
    used = typical if len(typical) >= FEWEST_POINTS else steps
    # The cost model of a large model needs its serving constants, so no check is possible.
    if not isinstance(model, LargeModel):
        _check_seconds(used, CostModel.of(gpu, model, tensor_parallel))
    found = fit(of_loads(used))
    if not found.held_out_error <= MAX_ERROR:
        raise InputError(
            f"the fit is {found.held_out_error:.0%} off on {found.held_out} of {found.points} "
            f"kinds of steps that it was not shown, beyond {MAX_ERROR:.0%}, so no table was written"
        )
    table = fill_measured(
        found.cost_model(gpu.name, model.name, tensor_parallel),
        gpu,
        model,
        source=f"fitted to {len(steps)} steps of {source}; tiers and depths are copies of one",
        fit_error=max(found.held_out_error, found.largest_error),
        token_budget=token_budget,
    )
    return found, table


def _check_seconds(steps: Steps, prior: CostModel) -> None:
    """Raises InputError if times are in another unit than seconds."""
    expected_s = np.array(
        [
            prior.iteration_s(
                decode_seqs=int(seqs),
                kv_tokens=kv,
                # The cost depends on sums of tokens and pairs: one chunk stands for all.
                chunks=((int(prompt), int(pairs / prompt - prompt / 2)),) if prompt else (),
                speculation_depth=int(depth),
            )
            for seqs, kv, prompt, pairs, depth in zip(
                steps.decode_seqs,
                steps.kv_tokens,
                steps.prompt_tokens,
                steps.pairs,
                steps.depth,
                strict=True,
            )
        ]
    )
    works = expected_s > 0
    if works.any():
        check_unit(
            "column seconds",
            steps.seconds[works] / expected_s[works],
            "times must be in seconds, for the model and the GPU that are named (a GPU file of "
            "yours may be slower)",
        )
