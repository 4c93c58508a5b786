"""``python -m benchmarks.late_engine``: a mock engine that answers as late as a replica starts.

The process loads everything at once and listens when its start-up has passed on the engine's clock.
"""

from __future__ import annotations

import sys
import time

import psutil
import tyro

from jaxserve.mock_engine.machine import build_machine
from jaxserve.mock_engine.serve import run
from jaxserve.mock_engine.settings import MockEngineSettings


def main(settings: MockEngineSettings, start_s: float) -> None:
    """Starts late.

    Args:
        settings: Settings of the mock engine.
        start_s: Time from the start of the process until it listens.
    """
    build_machine(settings)
    ready_s = psutil.Process().create_time() + start_s / settings.speed
    if (late_s := time.time() - ready_s) > 0.0:
        print(f"late: {settings.speed * late_s:.0f} s after its start-up", file=sys.stderr)
    time.sleep(max(-late_s, 0.0))
    run(settings)


if __name__ == "__main__":
    tyro.cli(tyro.conf.OmitArgPrefixes[main])  # pyright: ignore[reportCallIssue, reportArgumentType]
