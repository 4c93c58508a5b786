"""Sessions, tokens and rewards over time, for charts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxserve.rollouts.service.state.lifecycle import SessionSpan

_SHORTEST_S = 1.0
"""Shortest span of all points together, s."""


def history(spans: Sequence[SessionSpan], points: int, now_s: float) -> dict[str, Any]:
    """Figures of sessions at ``points`` times of equal distance.

    Args:
      spans: sessions, in any order.
      points: number of times, 1 or more.
      now_s: end of agents that run, s since 1970.

    Returns:
      ``start_unix_s``; ``width_s``, the distance of two points; and lists of ``points`` entries:
      ``running``, mean number of running agents; ``tokens_per_s``, where the sampled tokens of an
      ended session are spread evenly over the run of its agent; ``ended``, number of sessions that
      ended; ``reward``, mean over those with a reward, None where there is none.
    """
    began = np.array([np.nan if one.began is None else one.began for one in spans], float)
    left = np.array([now_s if one.left is None else one.left for one in spans], float)
    since = np.array([one.since for one in spans], float)
    first = float(np.fmin.reduce(np.concatenate([began, since]), initial=now_s))
    is_open = any(not one.ended for one in spans)
    last = now_s if is_open or not spans else float(since.max())
    width_s = max(last - first, _SHORTEST_S) / points
    edges = first + width_s * np.arange(points + 1)
    # [S, P]: seconds of each point in which the agent of each session ran.
    late = np.minimum(left[:, None], edges[None, 1:])
    shares_s = np.nan_to_num(np.maximum(late - np.maximum(began[:, None], edges[None, :-1]), 0.0))
    tokens = np.array([one.tokens for one in spans], float)
    rates = tokens / np.maximum(np.nan_to_num(left - began), 1e-3)
    ended = np.array([one.ended for one in spans], bool)
    graded = np.array([one.reward is not None for one in spans], bool) & ended
    rewards = np.array([one.reward or 0.0 for one in spans], float)
    places = np.clip(((since - first) / width_s).astype(int), 0, points - 1)
    count = np.bincount(places[graded], minlength=points)
    total = np.bincount(places[graded], rewards[graded], minlength=points)
    return {
        "start_unix_s": first,
        "width_s": width_s,
        "running": (shares_s.sum(axis=0) / width_s).tolist(),
        "tokens_per_s": (rates @ shares_s / width_s).tolist(),
        "ended": np.bincount(places[ended], minlength=points).tolist(),
        "reward": [
            float(mean) / int(number) if number else None
            for mean, number in zip(total, count, strict=True)
        ],
    }
