"""Calls of the routes of episodes, for their tests."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np

from jaxserve.spaces import ACTION_BOUNDS


def random_actions(seed: int, count: int) -> list[dict[str, float]]:
    """Actions over the whole ranges, each held for ten windows."""
    generator = np.random.default_rng(seed)
    drawn = [
        {
            knob: generator.integers(int(bound.low), int(bound.high) + 1).item()
            if bound.integer
            else generator.uniform(bound.low, bound.high)
            for knob, bound in ACTION_BOUNDS.items()
        }
        for _ in range(-(-count // 10))
    ]
    return [action for action in drawn for _ in range(10)][:count]


def post(http: httpx.Client, path: str, **body: Any) -> Any:
    answer = http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()
