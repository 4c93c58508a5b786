"""The reading of a rule, from a gateway's window and the metrics of its engines."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxserve.scaling.history import Fleetwide, Reading
from jaxserve.scaling.readings import TPOT_BUCKETS_S, TTFT_BUCKETS_S, histogram_quantile

_LATENCIES_S = 60.0
"""Time over which quantiles of latencies are taken, s."""


class LiveReadings:
    """Readings of one gateway, window after window."""

    def __init__(self, fleet: Fleetwide) -> None:
        """Args: constants of the fleet."""
        windows = fleet.windows(_LATENCIES_S)
        self._ttft_s: deque[Sequence[float]] = deque(maxlen=windows)
        self._tpot_s: deque[Sequence[float]] = deque(maxlen=windows)
        self._mean_prompt = 0.0

    def read(
        self,
        window: Mapping[str, Any],
        engines: Sequence[Mapping[str, Any]],
        waiting: int,
        starting: int,
    ) -> Reading:
        """The reading at the end of a window.

        A gateway tells every TTFT and the mean TPOT of a window: TPOTs count as that mean.

        Args:
          window: answer of ``/control/window`` with the TTFTs of each class.
          engines: metrics of the engines that answer and serve.
          waiting: requests in the gateway's queue.
          starting: replicas that start.
        """
        seconds = window["until_s"] - window["since_s"]
        classes = window["classes"].values()
        self._ttft_s.append([ttft_s for one in classes for ttft_s in one["ttft_s"]])
        mean_s = window["tpot_mean_s"]
        self._tpot_s.append([] if mean_s is None else [mean_s] * window["completed"])
        if window["completed"]:
            self._mean_prompt = window["prompt_tokens"] / window["completed"]
        waits = waiting + sum(one["waiting"] for one in engines)
        kv_use = [one["kv_use"] for one in engines if one["kv_use"] is not None]
        return Reading(
            waiting=jnp.float32(waits),
            running=jnp.float32(sum(one["running"] for one in engines)),
            kv_usage=jnp.float32(np.mean(kv_use) if kv_use else 0.0),
            waiting_tokens=jnp.float32(waits * self._mean_prompt),
            arrivals_rps=jnp.float32(window["arrivals"] / seconds),
            ttft_p90_s=_as_a_histogram_tells(self._ttft_s, TTFT_BUCKETS_S),
            tpot_p90_s=_as_a_histogram_tells(self._tpot_s, TPOT_BUCKETS_S),
            coming_wait_s=jnp.float32(waits * seconds / max(window["first_tokens"], 1)),
            serving=jnp.float32(len(engines)),
            starting=jnp.float32(starting),
        )


def _as_a_histogram_tells(
    windows: Iterable[Sequence[float]], buckets: Sequence[float]
) -> jax.Array:
    """90th percentile of latencies, s; 0 without any."""
    seconds = np.array([each for window in windows for each in window])
    if not len(seconds):
        return jnp.float32(0.0)
    above = (seconds[None, :] > np.array(buckets)[:, None]).mean(axis=1)
    return histogram_quantile(buckets, jnp.asarray(above, jnp.float32))
