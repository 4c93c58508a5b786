"""``python -m benchmarks.trace_size``: time and memory to read a trace of tens of millions of rows.

The file is made here: a week of Poisson arrivals in the columns of the Azure LLM inference traces
of 2024, with a rate that follows the hour. Each command is a process of its own, whose seconds and
greatest resident memory the system reports.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv

from benchmarks.page import page_parser, publish

REQUESTS = 30_000_000
WEEK_S = 7 * 86_400.0
PROMPTS, OUTPUTS = (1155.0, 1.2, 8_000), (211.0, 0.9, 1_500)
"""Mean, sigma of a log-normal distribution and longest, tokens; means as in the 2023 trace."""
EPOCH = np.datetime64("2000-01-01T00:00:00", "us")
_UNDERSTOOD = """
import sys
from jaxserve.sim.traffic.traces import load_trace
print(load_trace(sys.argv[1]).summary)
"""
_JAXSERVE = [sys.executable, "-m", "jaxserve.cli"]
_PART = ["--from", "3d", "--for", "2h"]
COMMANDS = {
    "the whole file, understood": [sys.executable, "-c", _UNDERSTOOD, "FILE"],
    "`evaluate --from 3d --for 2h`": [
        *_JAXSERVE, "evaluate", "--trace", "FILE", *_PART, "--agent", "default", "--episodes", "2",
    ],
    "`simulate --from 3d --for 2h --sample 0.01`": [
        *_JAXSERVE, "simulate", "FILE", *_PART, "--sample", "0.01",
        "--hardware", "h100-sxm-80gb", "--model", "llama-3.1-8b",
    ],
}  # fmt: skip
"""Measured commands by name; FILE stands for the trace."""


def write_week(path: Path, requests: int) -> None:
    """Writes a week of ``requests`` requests; always the same."""
    rng = np.random.default_rng(2024)
    hours = np.arange(7 * 24)
    weight = 1.0 + 0.6 * np.sin(2.0 * np.pi * hours / 24.0)
    counts = rng.multinomial(requests, weight / weight.sum())
    with path.open("wb") as file:
        file.write(b"TIMESTAMP,ContextTokens,GeneratedTokens\n")
        for hour, count in zip(hours.tolist(), counts.tolist(), strict=True):
            after_us = np.sort(rng.integers(0, 3_600_000_000, count)) + 3_600_000_000 * hour
            stamps = np.datetime_as_string(EPOCH + after_us.astype("timedelta64[us]"))
            lengths = [
                np.clip(rng.lognormal(np.log(mean) - sigma**2 / 2, sigma, count), 1, longest)
                for mean, sigma, longest in (PROMPTS, OUTPUTS)
            ]
            times = [f"{stamp}+00:00" for stamp in stamps.tolist()]
            columns = [pa.array(times), *(pa.array(each.astype(int)) for each in lengths)]
            pyarrow.csv.write_csv(
                pa.table(columns, names=["time", "prompt", "output"]),
                file,
                pyarrow.csv.WriteOptions(include_header=False, quoting_style="none"),
            )


def measured(command: list[str]) -> tuple[float, float, str]:
    """Seconds, greatest resident memory in GB, and the line on what was understood.

    Raises:
      RuntimeError: the command failed.
    """
    start = time.perf_counter()
    with tempfile.TemporaryFile("w+") as printed:
        process = subprocess.Popen(command, stdout=printed, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        printed.seek(0)
        text = printed.read()
    if status:
        raise RuntimeError(f"{' '.join(command)} failed: {text}")
    line = next(line for line in text.splitlines() if " requests in " in line)
    return seconds, usage.ru_maxrss * 1024 / 1e9, line.split(": ")[-1]


def size_page(requests: int, folder: Path) -> str:
    """Writes the file, runs every command on it and prints each as it is known; Markdown."""
    file = folder / "week.csv"
    write_week(file, requests)
    lines = [
        "# Large traces",
        "",
        f"Printed by `python -m benchmarks.trace_size`: a CSV of {requests:,} rows and "
        f"{file.stat().st_size / 1e9:.2f} GB, {os.cpu_count()} cores.",
        "",
        "| command | seconds | greatest memory | understood |",
        "|---|---|---|---|",
    ]
    for name, command in COMMANDS.items():
        words = [str(file) if word == "FILE" else word for word in command]
        seconds, gigabytes, understood = measured(words)
        lines.append(f"| {name} | {seconds:.1f} s | {gigabytes:.2f} GB | {understood} |")
        print(lines[-1], flush=True)
    return "\n".join(lines) + "\n"


def main() -> int:
    """Measures and prints a page; exit code 2 after bad input."""
    parser = page_parser("benchmarks.trace_size", __doc__)
    parser.add_argument("--requests", type=int, default=REQUESTS, help="default %(default)s")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return publish(lambda: size_page(arguments.requests, Path(folder)), arguments.markdown)


if __name__ == "__main__":
    sys.exit(main())
