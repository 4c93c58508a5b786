"""A simulated trace, beside the log that it came from."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
from rich.table import Table

from jaxserve.show.outputs import write_output
from jaxserve.show.text_table import plain_table
from jaxserve.sim.reference.own_log import Quantity
from jaxserve.sim.traffic.request_logs import RequestLog


def quantities_table(
    log: RequestLog, simulated: np.ndarray, quantities: list[Quantity], kv_tokens: int
) -> Table:
    """Latencies and throughput with their errors.

    Args:
      simulated: ``LOG_DTYPE`` rows.
      kv_tokens: of one engine.
    """
    trace = log.trace
    table = plain_table(
        title=f"{len(trace)} requests in {trace.duration_s:.0f} s",
        caption=f"{int(simulated['preemptions'].sum())} preemptions, {kv_tokens} KV tokens",
    )
    table.add_column("", no_wrap=True)
    compared = log.ttft_s is not None
    for heading in ("simulated", *(("measured", "error") if compared else ())):
        table.add_column(heading, justify="right")
    for each in quantities:
        cells = [each.name, f"{each.simulated:.4g}"]
        if each.measured is not None:
            error = "" if each.error is None else f"{100 * each.error:+.1f} %"
            cells += [f"{each.measured:.4g}", error]
        table.add_row(*cells)
    return table


def requests_csv(path: Path, simulated: np.ndarray) -> None:
    """Writes ``LOG_DTYPE`` rows, one line each."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(simulated.dtype.names or ())
    writer.writerows(simulated.tolist())
    write_output(path, text.getvalue().encode(), "--csv")
