"""A log as ``jaxserve operate`` writes it, made up: what happened in it is known."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from jaxserve.spaces import DEFAULT_ACTION, OBSERVATION_BOUNDS

WINDOWS = 60
UNIX_S = 1_700_000_000.0
"""The clock before the first window."""
BURST = (21, 26)
AWAY = (31, 33)
TURNED = {11: {"batch_cap": 64}, 29: {"batch_cap": 64, "quantization_tier": 1}}
"""The knobs that hold from these windows on, where they are not at their default."""


def write_log(path: Path, windows: int = WINDOWS) -> Path:
    """A steady stream with one burst, one GPU that was away for a while, and knobs turned twice;
    of a task that no server knows."""
    lines: list[dict[str, Any]] = [{"kind": "header", "spec_version": 1, "task": "mine"}]
    action = dict(DEFAULT_ACTION)
    for number in range(1, windows + 1):
        action = DEFAULT_ACTION | TURNED[number] if number in TURNED else action
        notes = {"kind": "window", "window": number, "seconds": 1.0, "reason": None}
        notes["unix_s"] = UNIX_S + number
        lines.append(notes | {"observation": _observation(number), "action": action})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def _observation(number: int) -> dict[str, Any]:
    load = 4.0 if BURST[0] <= number <= BURST[1] else 1.0
    wave = 1 + 0.1 * math.sin(number)
    seen = {
        "queue_depth": 30 * (load - 1),
        "active_requests": 20 * load * wave,
        "p50_ttft_ms": 60 * load * wave,
        "p99_ttft_ms": 150 * load**2 * wave,
        "p50_itl_ms": 11 * wave,
        "mean_itl_ms": 13 * wave,
        "throughput_tps": 1200 * load * wave,
        "slo_compliance_rate": 1 - 0.2 * (load - 1) / 3,
        "gpu_memory_used_gb": 61.0,
        "estimated_cost_per_1k": 0.0005,
        "request_arrival_rate": 10 * load,
        "cost_so_far": 0.001 * number,
        "reconfiguring": 0.25 if AWAY[0] <= number <= AWAY[1] else 0.0,
    }
    return dict.fromkeys(OBSERVATION_BOUNDS, 0.0) | seen
