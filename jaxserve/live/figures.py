"""Figures of an episode, by one rule for real engines and both simulators.

A request counts as good if it ends within its objectives and before the episode ends. Requests that
are within their objectives at the end of the episode are undecided and enter no share. TTFT is the
mean over first tokens inside the episode; ITL is the mean over tokens of requests that ended in it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jaxserve.env import ServeEnv
from jaxserve.live.player import RequestOutcome
from jaxserve.sim.fast.latency import TTFT_EDGES_S
from jaxserve.types import WindowMetrics

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Figures:
    """Figures of an episode; NaN where nothing was served."""

    goodput_rps: float
    """requests per second that ended within their objectives."""
    slo_attainment: float
    """share of the decided requests that ended within their objectives."""
    ttft_mean_s: float
    """mean time to first token, s."""
    itl_mean_s: float
    """mean inter-token latency over tokens, s."""

    def in_gpu_time(self, time_dilation: float) -> Figures:
        """Figures in the GPU's time, of an episode played ``time_dilation`` times as slowly."""
        return dataclasses.replace(
            self,
            goodput_rps=self.goodput_rps * time_dilation,
            ttft_mean_s=self.ttft_mean_s / time_dilation,
            itl_mean_s=self.itl_mean_s / time_dilation,
        )


@dataclass(frozen=True)
class Summary:
    """Summary of the requests of a client; figures as in ``Figures``."""

    requests: int
    goodput_rps: float
    slo_attainment: float
    ttft_mean_s: float
    ttft_p50_s: float
    ttft_p99_s: float
    itl_mean_s: float
    errors: int
    late_p99_s: float
    """99th percentile of the load generator's delay in sending a request."""


NAMES = tuple(field.name for field in dataclasses.fields(Figures))


def of_outcomes(outcomes: Sequence[RequestOutcome], seconds: float) -> Figures:
    """Figures of requests on a real server.

    Args:
      outcomes: outcome of every request.
      seconds: length of the episode.
    """
    sent_s, ttft_s = _first_tokens(outcomes)
    # Requests of a single token have no TPOT.
    tpot_s = np.array([each.tpot_s or 0.0 for each in outcomes])
    tokens = np.array([each.itl_tokens for each in outcomes], np.float64)
    good = np.array([each.good for each in outcomes], bool)
    return _figures(sent_s, ttft_s, tpot_s, tokens, good, 0.0, seconds)


def summarise(outcomes: Sequence[RequestOutcome], seconds: float) -> Summary:
    """Figures with quantiles, errors and the delay of the client.

    Args:
      outcomes: outcome of every request.
      seconds: length of the episode.
    """
    ttft_s = _in_time(*_first_tokens(outcomes), seconds)

    def quantile(values: Array, share: float) -> float:
        return float(np.quantile(values, share)) if len(values) else float("nan")

    return Summary(
        requests=len(outcomes),
        ttft_p50_s=quantile(ttft_s, 0.5),
        ttft_p99_s=quantile(ttft_s, 0.99),
        errors=sum(each.error is not None for each in outcomes),
        late_p99_s=quantile(np.array([each.late_s for each in outcomes]), 0.99),
        **vars(of_outcomes(outcomes, seconds)),
    )


def of_reference(
    log: np.ndarray, good: NDArray[np.bool_], undecided: float, seconds: float
) -> Figures:
    """Figures of the reference simulator's log.

    Args:
      log: ``LOG_DTYPE`` rows.
      good: bool[n], see ``ReferenceEpisode.meets_slo``.
      undecided: requests that had not ended, see ``undecided_at_end``.
      seconds: length of the episode.
    """
    tokens = log["output_tokens"] - 1.0
    tpot_s = np.where(tokens > 0, log["tpot_s"], 0.0)
    return _figures(log["arrival_s"], log["ttft_s"], tpot_s, tokens, good, undecided, seconds)


def undecided_at_end(metrics: WindowMetrics) -> float:
    """Number of requests that wait or run after the last window without a missed objective.

    Args:
      metrics: leaves [T, ...].
    """
    inside = np.asarray(metrics.waiting + metrics.running - metrics.overdue, np.float64)
    return float(np.maximum(inside[-1], 0.0).sum())


def of_windows(env: ServeEnv, metrics: WindowMetrics) -> Figures:
    """Figures of the fast simulator's windows, leaves [T, ...]."""
    good, arrivals, first = (
        float(np.sum(np.asarray(getattr(metrics, name), np.float64)))
        for name in ("good", "arrivals", "first_tokens")
    )
    itl_s, tokens = (np.asarray(each, np.float64) for each in (metrics.itl_s, metrics.tokens))
    exceeded = np.asarray(metrics.ttft_exceeded, np.float64).sum(axis=0)
    return Figures(
        goodput_rps=good / (len(itl_s) * float(env.window_s)),
        slo_attainment=good / max(arrivals - undecided_at_end(metrics), 1.0),
        ttft_mean_s=_mean_of_tail(exceeded / first) if first else float("nan"),
        itl_mean_s=float((itl_s * tokens).sum() / tokens.sum()) if tokens.sum() else float("nan"),
    )


def _first_tokens(outcomes: Sequence[RequestOutcome]) -> tuple[Array, Array]:
    """Times of sending and TTFT, float64[n] each; TTFT is NaN without a first token."""
    sent_s = np.array([each.arrival_s + each.late_s for each in outcomes])
    return sent_s, np.array([each.ttft_s for each in outcomes], np.float64)


def _in_time(sent_s: Array, ttft_s: Array, seconds: float) -> Array:
    """TTFT of first tokens inside the episode."""
    return ttft_s[sent_s + ttft_s <= seconds]


def _figures(
    sent_s: Array,
    ttft_s: Array,
    tpot_s: Array,
    tokens: Array,
    good: NDArray[np.bool_],
    undecided: float,
    seconds: float,
) -> Figures:
    """Figures from float64[n] columns; NaN marks events that did not happen.

    Args:
      undecided: requests without a known end, besides good requests that end after the episode.
    """
    first_s = _in_time(sent_s, ttft_s, seconds)
    ended = sent_s + ttft_s + tpot_s * tokens <= seconds
    count = int((good & ended).sum())
    decided = len(sent_s) - int((good & ~ended).sum()) - undecided
    tokens_s, ended_tokens = (tpot_s * tokens)[ended].sum(), tokens[ended].sum()
    return Figures(
        goodput_rps=count / seconds,
        slo_attainment=count / max(decided, 1.0),
        ttft_mean_s=float(first_s.mean()) if len(first_s) else float("nan"),
        itl_mean_s=float(tokens_s / ended_tokens) if ended_tokens else float("nan"),
    )


def _mean_of_tail(later: Array) -> float:
    """Mean of a histogram.

    Between two edges the share falls in proportion to the logarithm of time. No first token is
    later than an octave beyond the last edge.

    Args:
      later: float64[edges], share that is later than each edge.
    """
    edges = np.concatenate([TTFT_EDGES_S.astype(np.float64), 2.0 * TTFT_EDGES_S[-1:]])
    shares = np.concatenate([later, [0.0]])
    low, high = edges[:-1], edges[1:]
    # The mean of log-uniform times between two edges.
    centre = (high - low) / np.log(high / low)
    return float((1.0 - later[0]) * edges[0] / 2 + ((shares[:-1] - shares[1:]) * centre).sum())
