"""``python -m benchmarks.plan_weeks``: time and memory to plan for two weeks of many requests.

The traffic is drawn from the clients of ServeGen's chat_large: every client has its rates of ten
minutes, the coefficient of variation of its times between requests, and its quantiles of lengths; a
share of the requests is kept. Each plan is a process of its own, whose seconds and greatest
resident memory the system reports. A plan for all requests needs ten gigabytes of disk and
thirteen of memory.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
from numpy.typing import NDArray

from benchmarks.page import page_parser, publish
from benchmarks.trace_size import EPOCH, measured
from jaxserve.errors import InputError
from jaxserve.studies.fidelity.demand_fit import SLOT_S, Clients, read_clients
from jaxserve.studies.fidelity.measurements import shared_data

WORKLOAD = "chat_large"
QUANTILES = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)
"""Probabilities of the lengths' quantiles; the first and last repeat their neighbours'."""
SHARES = (0.02, 0.1, 1.0)
_NETWORK_S = 0.1
"""Longest time between the client and the trace, s; Gamma gaps of a large coefficient of variation
are mostly below a microsecond, which no clock of a trace tells apart."""
_ROWS = 5_000_000
"""Rows that are written at once."""
_OPTIONS = [
    "--model", "llama-3.1-8b", "--hardware", "a100-sxm-80gb,h100-sxm-80gb,h200-sxm-141gb,l40s-48gb",
    "--ttft", "2", "--tpot", "0.1", "--max-gpus", "64",
]  # fmt: skip


def drawn(clients: Clients, share: float) -> list[NDArray[Any]]:
    """Times in s, float64[n], and lengths in tokens, int32[n] each, of all requests in order;
    always the same.

    The times of a client are a renewal process with Gamma gaps of the client's mean squared
    coefficient of variation, run through its cumulative rate. A share of them is kept at random:
    the number of gaps between two that are kept has a geometric distribution. Clients without
    lengths have the mean quantiles of the others.
    """
    rng = np.random.default_rng(2026)
    ends_s = SLOT_S * np.arange(clients.rate_rps.shape[1] + 1)
    lengths = [
        np.where(np.isfinite(q), q, np.nanmean(q, axis=0)) for q in (clients.prompt, clients.output)
    ]
    columns: list[list[NDArray[Any]]] = [[], [], []]
    for client, rate in enumerate(clients.rate_rps):
        expected = np.concatenate(([0.0], np.cumsum(rate * SLOT_S)))
        shape = rate.sum() / max(float(rate @ clients.squared_cv[client]), 1e-9)
        kept = share * expected[-1]
        count = int(kept + 6.0 * np.sqrt(kept * (1.0 + share / shape)) + 10.0)
        gaps = rng.geometric(share, count)
        after = np.cumsum(rng.gamma(shape * gaps, 1.0 / shape))
        times = np.interp(after[after < expected[-1]], expected, ends_s)
        columns[0].append(times + rng.uniform(0.0, _NETWORK_S, len(times)))
        for column, table in zip(columns[1:], lengths, strict=True):
            quantiles = table[client][[0, *range(table.shape[1]), -1]]
            tokens = np.interp(rng.random(len(times)), QUANTILES, quantiles)
            column.append(np.maximum(tokens, 1.0).round().astype(np.int32))
    found: list[NDArray[Any]] = []
    order = None
    for column in columns:
        joined = np.concatenate(column)
        column.clear()  # two weeks of all requests fill a third of the memory
        order = np.argsort(joined, kind="stable") if order is None else order
        found.append(joined[order])
    return found


def write_weeks(path: Path, clients: Clients, share: float) -> int:
    """Writes the traffic in the columns of the Azure traces.

    Returns:
      number of requests.
    """
    times, prompts, outputs = drawn(clients, share)
    names = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]
    schema = pa.schema(zip(names, (pa.timestamp("us"), pa.int32(), pa.int32()), strict=True))
    with pyarrow.csv.CSVWriter(path, schema) as file:
        for begin in range(0, len(times), _ROWS):
            rows = slice(begin, begin + _ROWS)
            stamps = pa.array(EPOCH + (1e6 * times[rows]).astype("timedelta64[us]"))
            tokens = [pa.array(column[rows]) for column in (prompts, outputs)]
            file.write_table(pa.table([stamps, *tokens], schema))
    return len(times)


def weeks_page(shares: list[float], folder: Path) -> str:
    """Plans for every share and prints each as it is known; Markdown.

    Raises:
      InputError: ServeGen's data are absent.
    """
    data = shared_data()
    if data is None or not (data / "servegen").is_dir():
        raise InputError("the measured data with ServeGen's clients are absent")
    clients = read_clients(data / "servegen", WORKLOAD)
    lines = [
        "# Plans for two weeks of requests",
        "",
        f"Printed by `python -m benchmarks.plan_weeks`: `jaxserve plan {' '.join(_OPTIONS)}` for "
        f"traffic like that of ServeGen's {WORKLOAD}, {os.cpu_count()} cores.",
        "",
        "| share | requests | time | greatest memory | deployment | SLO met, 95 % |",
        "|--:|--:|--:|--:|---|--:|",
    ]
    for share in shares:
        trace, out = folder / f"weeks_{share:g}.csv", folder / f"plan_{share:g}"
        requests = write_weeks(trace, clients, share)
        command = [sys.executable, "-m", "jaxserve.cli", "plan", "--trace", str(trace), *_OPTIONS]
        seconds, gigabytes, _ = measured([*command, "--out", str(out)])
        plan = json.loads((out / "plan.json").read_text())
        low, high = plan["interval_95"]["attainment"]
        lines.append(
            f"| {share:g} | {requests:,} | {seconds:.0f} s | {gigabytes:.2f} GB "
            f"| {plan['deployment']['name']} | {low:.1%} to {high:.1%} |"
        )
        print(lines[-1], flush=True)
    return "\n".join(lines) + "\n"


def main() -> int:
    """Plans and prints a page; exit code 2 after bad input."""
    parser = page_parser("benchmarks.plan_weeks", __doc__)
    parser.add_argument(
        "--share", type=float, nargs="+", default=SHARES, help="default %(default)s"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return publish(lambda: weeks_page(list(arguments.share), Path(folder)), arguments.markdown)


if __name__ == "__main__":
    sys.exit(main())
