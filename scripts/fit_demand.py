"""Fits the demand of fleets to ServeGen: ``python scripts/fit_demand.py DIRECTORY``.

DIRECTORY has ``servegen_rates.parquet`` (rate and coefficient of variation of every client in every
ten minutes) and ``servegen_lengths.parquet`` (quantiles of their lengths in every six hours). The
files ``data/demand/*.json`` are written anew, which hold fitted parameters alone.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from jaxserve.datafiles import data_dir, write_atomic
from jaxserve.studies.fidelity.demand_fit import WORKLOADS, fit_demand, read_clients


def main() -> None:
    """Fits and writes all demands."""
    if len(sys.argv) != 2:
        sys.exit("name the directory of servegen_rates.parquet")
    directory = Path(sys.argv[1])
    for name, workload in WORKLOADS.items():
        fitted = fit_demand(read_clients(directory, workload))
        text = json.dumps(fitted, indent=2)
        path = data_dir() / "demand" / f"{name}.json"
        path.parent.mkdir(exist_ok=True)
        write_atomic(path, (text + "\n").encode())
        print(path, len(text))


if __name__ == "__main__":
    main()
