"""A rule as the autoscaler of a running fleet."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxserve.live.fleet import LiveFleet
from jaxserve.scaling.history import Fleetwide, Reading
from jaxserve.scaling.readings import TPOT_BUCKETS_S, TTFT_BUCKETS_S, histogram_quantile
from jaxserve.scaling.rule_form import RuleMemory, first_memory
from jaxserve.scaling.setting import KINDS, RuleSetting, wanted_by

_LATENCIES_S = 60.0
"""Time over which quantiles of latencies are taken, s."""


class RuleAutoscaler:
    """One rule with its numbers; see ``jaxserve.live.replicas.scaler.Autoscaler``."""

    slices = 1

    def __init__(self, setting: RuleSetting, fleet: Fleetwide) -> None:
        """Args: rule and its numbers, and the constants of the fleet."""
        self.window_s, self.most = fleet.window_s, fleet.most
        self._rule = (jnp.int32(KINDS.index(setting.kind)), jnp.asarray(setting.numbers))
        self._fleet = fleet
        self._memory: RuleMemory | None = None
        windows = fleet.windows(_LATENCIES_S)
        self._ttft_s: deque[Sequence[float]] = deque(maxlen=windows)
        self._tpot_s: deque[Sequence[float]] = deque(maxlen=windows)
        self._mean_prompt = 0.0

    def wanted(self, state: LiveFleet) -> int:
        """The rule's number of replicas."""
        if self._memory is None:
            self._memory = first_memory(self._fleet, max(state.size, self._fleet.least))
        wanted, self._memory = _ask(self._fleet, *self._rule, self._memory, self.read(state))
        return round(float(wanted))

    def read(self, state: LiveFleet) -> Reading:
        """The reading at the end of a window.

        A gateway tells every TTFT and the mean TPOT of a window: TPOTs count as that mean.
        """
        window, engines = state.window, state.serving.values()
        classes = window["classes"].values()
        self._ttft_s.append([ttft_s for one in classes for ttft_s in one["ttft_s"]])
        mean_s = window["tpot_mean_s"]
        self._tpot_s.append([] if mean_s is None else [mean_s] * window["completed"])
        if window["completed"]:
            self._mean_prompt = window["prompt_tokens"] / window["completed"]
        kv_use = [one["kv_use"] for one in engines if one["kv_use"] is not None]
        wait_s = state.waiting * state.seconds / max(window["first_tokens"], 1)
        return Reading(
            waiting=jnp.float32(state.waiting),
            running=jnp.float32(state.running),
            kv_usage=jnp.float32(np.mean(kv_use) if kv_use else 0.0),
            waiting_tokens=jnp.float32(state.waiting * self._mean_prompt),
            arrivals_rps=jnp.float32(window["arrivals"] / state.seconds),
            ttft_p90_s=_as_a_histogram_tells(self._ttft_s, TTFT_BUCKETS_S),
            tpot_p90_s=_as_a_histogram_tells(self._tpot_s, TPOT_BUCKETS_S),
            coming_wait_s=jnp.float32(wait_s),
            serving=jnp.float32(len(engines)),
            starting=jnp.float32(state.starting),
        )


@jax.jit
def _ask(
    fleet: Fleetwide, kind: jax.Array, values: jax.Array, memory: RuleMemory, reading: Reading
) -> tuple[jax.Array, RuleMemory]:
    return wanted_by(fleet, kind, values, memory, reading)


def _as_a_histogram_tells(
    windows: Iterable[Sequence[float]], buckets: Sequence[float]
) -> jax.Array:
    """90th percentile of latencies, s; 0 without any."""
    seconds = np.array([each for window in windows for each in window])
    if not len(seconds):
        return jnp.float32(0.0)
    above = (seconds[None, :] > np.array(buckets)[:, None]).mean(axis=1)
    return histogram_quantile(buckets, jnp.asarray(above, jnp.float32))
