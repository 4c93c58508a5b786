"""A latency table in words: its metadata, and rows picked by the values of its axes."""

from collections.abc import Mapping

import numpy as np
from rich import box
from rich.table import Table

from jaxserve import checks
from jaxserve.sim.table.file import LOAD_TEST_COLUMNS, PRIMITIVE_COLUMNS, TableFile
from jaxserve.sim.table.grid import AXES, PROMPT_LENGTHS, axis_columns, grid_axes

_LISTED = (*AXES, *LOAD_TEST_COLUMNS, *PRIMITIVE_COLUMNS)
_HEADINGS = {
    "batch_size": "batch",
    "kv_budget": "kv",
    "spec_length": "spec",
    "quant_tier": "tier",
    "prompt_len_bucket": "in",
    "ttft_p50_ms": "TTFT\np50 ms",
    "ttft_p99_ms": "\np99 ms",
    "tpot_ms": "TPOT\nms",
    "tps": "tok\n/s",
    "gpu_mem_gb": "GiB",
    "cost_per_1k": "USD\n/1M",
    "prefill_ms": "alone\nms",
    "itl_ms": "ITL\nms",
}


def pick_rows(file: TableFile, filters: Mapping[str, float]) -> list[dict[str, float]]:
    """Rows of the table whose axes have the given values, in the order of the grid.

    Args:
      file: the table.
      filters: axis column -> value. ``prompt_len``, in tokens, stands for its bucket.

    Raises:
      InputError: not an axis, or a value that is not on the grid.
    """
    axes, allowed = axis_columns(file.buckets), grid_axes(file.buckets)
    lengths = PROMPT_LENGTHS[: file.buckets]
    picked = np.ones(len(axes["batch_size"]), bool)
    for name, value in filters.items():
        if name == "prompt_len":
            _check_on_axis(name, value, lengths)
            name, value = "prompt_len_bucket", lengths.index(int(value))
        if name not in AXES:
            checks.refuse("filter", name, f"one of {', '.join(AXES)}, prompt_len")
        _check_on_axis(name, value, allowed[name])
        picked &= np.isclose(axes[name], value)
    columns = axes | {name: values.ravel() for name, values in file.columns.items()}
    return [{name: float(columns[name][row]) for name in _LISTED} for row in picked.nonzero()[0]]


def render_rows(file: TableFile, rows: list[dict[str, float]]) -> Table:
    """The rows as a table for the terminal, 80 characters wide, with the metadata around it.

    Prompts are given in tokens and prices for a million tokens.
    """
    metadata = file.metadata
    error = metadata.fit_error
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=0,
        title=f"{metadata.model} on {metadata.tensor_parallel} x {metadata.hardware}",
        caption=(
            f"{metadata.source}; held-out error "
            f"{'not measured' if error is None else f'{100 * error:.1f} %'}; "
            f"{metadata.engine}, {metadata.token_budget} tokens per iteration"
        ),
    )
    for heading in _HEADINGS.values():
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        shown = row | {
            "prompt_len_bucket": PROMPT_LENGTHS[int(row["prompt_len_bucket"])],
            "cost_per_1k": 1e3 * row["cost_per_1k"],
        }
        numbers = [shown[name] for name in _HEADINGS]
        table.add_row(*(f"{x:.0f}" if x >= 1000 else f"{x:.3g}" for x in numbers))
    return table


def _check_on_axis(name: str, value: float, allowed: tuple[float, ...]) -> None:
    if not np.isclose(value, allowed).any():
        listed = ", ".join(f"{point:g}" for point in allowed)
        checks.refuse(f"filter {name}", value, f"one of {listed}")
