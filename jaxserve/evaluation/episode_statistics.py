"""Statistics of episodes: sums that add up, the figures made of them, and their intervals.

A figure of a run is over its requests, tokens or dollars, not a mean over episodes: a ratio of sums
over all episodes, or a quantile of the requests of all of them. A figure of an episode is the same
of that episode alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from scipy import stats

from jaxserve.agents.rollout import Rollout
from jaxserve.env import ServeEnv
from jaxserve.sim.fast.latency import ttft_quantile

CONFIDENCE = 0.95
HOURS_PER_MONTH = 730.0
_HOUR_S = 3600.0
_RESAMPLES = 2000
_BOOTSTRAP_SEED = 0
_BATCH = 200_000  # episodes that are drawn at a time, which bounds memory

Column = NDArray[np.float64]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class EpisodeSums:
    """Sums over each of E episodes, float64[E] where no other shape is given. Sums of several
    episodes add up."""

    episodes: Column
    """number of episodes, 1 each."""
    windows: Column
    seconds: Column
    reward: Column
    """reward summed over windows."""
    arrivals: Column
    """[E, F], requests that arrived, by traffic class."""
    decided: Column
    """[E, F], requests whose fate is known: finished, rejected, lost, or inside at the end and
    beyond an objective already."""
    good: Column
    """[E, F], requests that met all their SLOs."""
    rejected: Column
    """arrivals turned away."""
    first_tokens: Column
    """requests that got their first token."""
    ttft_exceeded: Column
    """[E, S], first tokens later than each of ``jaxserve.sim.fast.latency.TTFT_EDGES_S``."""
    tokens: Column
    """output tokens."""
    token_s: Column
    """inter-token latency, added up over output tokens, s."""
    good_tokens: Column
    """output tokens of good requests."""
    cost_usd: Column
    """GPU time and energy, US dollars."""
    preemptions: Column
    """sequences whose KV was evicted."""
    peak_memory_gib: Column
    """largest memory of a GPU, GiB; a sum over episodes serves for their mean."""
    oom_restarts: Column
    """out-of-memory restarts."""
    switches: Column
    """windows with another tier or split in force than in the window before."""
    changes: Column
    """knobs that acted with another value than in the window before."""

    def column(self, name: str) -> Column:
        """float64[E], of all classes together; ``undecided`` is what arrivals have more than
        decided."""
        if name == "undecided":
            return self.column("arrivals") - self.column("decided")
        values = getattr(self, name)
        return values.sum(axis=1) if name in ("arrivals", "decided", "good") else values

    def select(self, episodes: Any) -> EpisodeSums:
        """Some of the episodes, by index or mask."""
        return jax.tree.map(lambda column: column[episodes], self)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class EpisodeStatistics:
    """Figures of each of E episodes by itself, float64[E]."""

    objective: Column
    """mean reward per window, the objective of the task."""
    goodput_rps: Column
    """requests per second that met all their SLOs."""
    slo_attainment: Column
    """good requests over all requests whose fate is known, 0..1; NaN where there are none."""
    undecided_share: Column
    """arrivals that waited or ran at the end and had missed no objective yet, 0..1."""
    ttft_p50_s: Column
    """median time to first token, s; NaN when no request got one."""
    ttft_p99_s: Column
    """99th percentile of the same, s."""
    itl_s: Column
    """inter-token latency averaged over output tokens, s; NaN when there were none."""
    cost_usd: Column
    """GPU time and energy of an episode, US dollars."""
    usd_per_hour: Column
    """cost of an hour, US dollars."""
    usd_per_month: Column
    """cost of ``HOURS_PER_MONTH``, US dollars."""
    usd_per_1k_good_tokens: Column
    """US dollars per 1,000 output tokens of good requests; NaN where there is not one token."""
    rejected_share: Column
    """arrivals turned away, 0..1."""
    preemptions: Column
    """sequences whose KV was evicted, of an episode."""
    peak_memory_gib: Column
    """largest memory of a GPU in an episode, GiB."""
    oom_restarts: Column
    """out-of-memory restarts of an episode."""
    switches: Column
    """changes of tier or split that took effect, of an episode."""
    changes_per_minute: Column
    """knobs that were turned from one window to the next, as they acted, per minute of traffic."""
    sums: EpisodeSums
    """sums of which all figures are made."""


STATISTICS = tuple(
    field.name for field in dataclasses.fields(EpisodeStatistics) if field.name != "sums"
)

_RATIOS: Mapping[str, tuple[str, str, float]] = {
    "objective": ("reward", "windows", 1.0),
    "goodput_rps": ("good", "seconds", 1.0),
    "slo_attainment": ("good", "decided", 1.0),
    "undecided_share": ("undecided", "arrivals", 1.0),
    "itl_s": ("token_s", "tokens", 1.0),
    "cost_usd": ("cost_usd", "episodes", 1.0),
    "usd_per_hour": ("cost_usd", "seconds", _HOUR_S),
    "usd_per_month": ("cost_usd", "seconds", _HOUR_S * HOURS_PER_MONTH),
    "rejected_share": ("rejected", "arrivals", 1.0),
    "preemptions": ("preemptions", "episodes", 1.0),
    "peak_memory_gib": ("peak_memory_gib", "episodes", 1.0),
    "oom_restarts": ("oom_restarts", "episodes", 1.0),
    "switches": ("switches", "episodes", 1.0),
    "changes_per_minute": ("changes", "seconds", 60.0),
}
"""Numerator, denominator and factor of each figure that is a ratio of sums."""
_QUANTILES = {"ttft_p50_s": 0.5, "ttft_p99_s": 0.99}
_MIN_COUNTS = {"good_tokens": 1.0}
"""Least sum that is not taken for none; the fast simulator has fractions of requests."""


@dataclass(frozen=True)
class Interval:
    """A figure with its 95 % interval; all NaN when no episode has a value."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class WorstHour:
    """The worst of each figure that any hour of traffic had."""

    span: str
    """``hour``, or ``episode`` where there are not two hours of traffic."""
    ttft_p99_s: float
    """the highest; NaN when no request got a first token."""
    slo_attainment: float
    """the lowest, 0..1; NaN when no fate is known."""


def episode_statistics(env: ServeEnv, played: Rollout) -> EpisodeStatistics:
    """Statistics of episodes that ``jaxserve.agents.rollout`` played."""
    columns = _columns(env, played)
    return statistics_of(
        EpisodeSums(**{name: np.asarray(value, np.float64) for name, value in columns.items()})
    )


def statistics_of(sums: EpisodeSums) -> EpisodeStatistics:
    """Every episode's figures from its sums."""
    ratios = {
        name: factor * ratio(sums.column(above), sums.column(below), below)
        for name, (above, below, factor) in _RATIOS.items()
    }
    quantiles = {
        name: ttft_quantiles(sums.first_tokens, sums.ttft_exceeded, probability)
        for name, probability in _QUANTILES.items()
    }
    usd = 1000.0 * ratio(sums.cost_usd, sums.good_tokens, "good_tokens")
    return EpisodeStatistics(**ratios, **quantiles, usd_per_1k_good_tokens=usd, sums=sums)


def ratio(above: Any, below: Any, name: str = "") -> Column:
    """Quotients of sums; NaN where there is nothing to divide by.

    Args:
      name: of the denominator, which may be too little to count.
    """
    above, below = np.asarray(above, np.float64), np.asarray(below, np.float64)
    known = (below > 0.0) & (below >= _MIN_COUNTS.get(name, 0.0))
    return np.where(known, above / np.where(known, below, 1.0), np.nan)


def ttft_quantiles(first_tokens: Any, exceeded: Any, probability: float) -> Column:
    """Quantiles of the times to first token, s; NaN where there was none.

    Args:
      first_tokens: [...].
      exceeded: [..., S], as ``EpisodeSums.ttft_exceeded``.
    """
    count = np.asarray(first_tokens, np.float32)
    later = np.moveaxis(np.asarray(exceeded, np.float32), -1, 0)
    found = np.asarray(_ttft_quantile(later, count, probability), np.float64)
    return np.where(count > 0.0, found, np.nan)


def interval(values: NDArray[np.float64]) -> Interval:
    """Mean and 95 % interval by the BCa bootstrap, the same at every call; NaNs are left out.

    One episode, or episodes that are all equal, give an interval of no width: there is nothing to
    resample.
    """
    return _bootstrap([values, np.ones_like(values)], np.divide, values)


def ratio_interval(above: Column, below: Column) -> Interval:
    """Quotient of two sums and its interval as ``interval``'s; parts where ``below`` is 0 do not
    count.

    Args:
      above: float64[E], parts of the numerator.
      below: float64[E], parts of the denominator.
    """
    return _bootstrap([above, below], np.divide, ratio(above, below))


def intervals(statistics: EpisodeStatistics) -> dict[str, Interval]:
    """Every statistic of all episodes together, by name, with the interval as ``interval``'s.

    An episode without a value of its own, such as one without a first token, does not count.
    """
    return {name: _pooled(name, statistics) for name in STATISTICS}


def worst_hour(sums: EpisodeSums) -> WorstHour:
    """The highest p99 of the TTFT and the lowest SLO attainment of an hour.

    Episodes are put together in their order, as many as make about an hour of traffic. Where all of
    them make less than two hours, the worst episode stands for the worst hour.
    """
    total_s, count = sums.seconds.sum(), len(sums.seconds)
    hours = total_s >= 2.0 * _HOUR_S
    size = max(1, round(_HOUR_S * count / total_s)) if hours else 1
    groups = np.array_split(np.arange(count), max(1, round(count / size)))
    found = [jax.tree.map(lambda column: column.sum(axis=0), sums.select(g)) for g in groups]
    first_tokens, exceeded, good, decided = (
        np.stack([getattr(each, name) for each in found])
        for name in ("first_tokens", "ttft_exceeded", "good", "decided")
    )
    p99_s = ttft_quantiles(first_tokens, exceeded, _QUANTILES["ttft_p99_s"])
    attained = ratio(good.sum(axis=1), decided.sum(axis=1))
    return WorstHour(
        span="hour" if hours else "episode",
        ttft_p99_s=_extreme(max, p99_s),
        slo_attainment=_extreme(min, attained),
    )


def worst_class(sums: EpisodeSums, classes: Mapping[str, slice]) -> tuple[str, float] | None:
    """Name and SLO attainment, 0..1, of the kind of requests that fares worst over all episodes.

    Args:
      classes: places of each kind's traffic classes, see ``jaxserve.tasks.traffic.stream_classes``.

    Returns:
      None where no request's fate is known.
    """
    good, decided = sums.good.sum(axis=0), sums.decided.sum(axis=0)
    found = {name: float(ratio(good[at].sum(), decided[at].sum())) for name, at in classes.items()}
    known = {name: share for name, share in found.items() if not np.isnan(share)}
    return min(known.items(), key=lambda item: item[1]) if known else None


def _pooled(name: str, statistics: EpisodeStatistics) -> Interval:
    sums, each = statistics.sums, getattr(statistics, name)
    if name == "usd_per_1k_good_tokens":
        return _usd_per_1k_good_tokens(sums)
    if name in _QUANTILES:

        def quantile(count: Column, *later: Column) -> Column:
            return ttft_quantiles(count, np.stack(later, axis=-1), _QUANTILES[name])

        return _bootstrap([sums.first_tokens, *sums.ttft_exceeded.T], quantile, each)
    above, below, factor = _RATIOS[name]
    columns = [factor * sums.column(above), sums.column(below)]
    return _bootstrap(columns, np.divide, each)


def _usd_per_1k_good_tokens(sums: EpisodeSums) -> Interval:
    """The inverse of tokens per dollar, of which a resample without good tokens has a finite
    number: 0."""
    if sums.good_tokens.sum() < _MIN_COUNTS["good_tokens"]:
        return Interval(np.nan, np.nan, np.nan)
    columns = [sums.good_tokens, 1000.0 * sums.cost_usd]
    found = _bootstrap(columns, np.divide, ratio(columns[0], columns[1]))
    low, high = (1.0 / end if end > 0.0 else np.inf for end in (found.high, found.low))
    return Interval(1.0 / found.mean, low, high)


def _bootstrap(columns: Sequence[Column], figure: Callable[..., Column], each: Column) -> Interval:
    """A figure of sums over episodes, and its interval by the BCa bootstrap.

    Args:
      columns: float64[E] each; an episode is drawn with all of its entries.
      figure: takes the sum of every column, float64[...].
      each: float64[E], the figure of each episode; those where it is NaN are left out.
    """
    known = ~np.isnan(each)
    columns, each = [column[known] for column in columns], each[known]
    if not each.size:
        return Interval(np.nan, np.nan, np.nan)

    def statistic(*drawn: Column, axis: int) -> Column:
        return figure(*(column.sum(axis=axis) for column in drawn))

    value = float(statistic(*columns, axis=0))
    if np.ptp(each) <= 1e-9 * max(abs(value), 1e-9):
        return Interval(value, value, value)
    found = stats.bootstrap(
        columns,
        statistic,
        paired=True,
        vectorized=True,
        confidence_level=CONFIDENCE,
        n_resamples=_RESAMPLES,
        batch=min(max(_BATCH // each.size, 1), _RESAMPLES),
        rng=np.random.default_rng(_BOOTSTRAP_SEED),
    ).confidence_interval
    return Interval(value, float(found.low), float(found.high))


def _extreme(choose: Callable[[list[float]], float], values: Column) -> float:
    known = values[~np.isnan(values)].tolist()
    return choose(known) if known else np.nan


_ttft_quantile = jax.jit(ttft_quantile, static_argnums=2)


@jax.jit
def _columns(env: ServeEnv, played: Rollout) -> dict[str, jax.Array]:
    timesteps, metrics = played.timesteps, played.timesteps.metrics
    episodes, windows = timesteps.reward.shape

    def total(by_window: jax.Array) -> jax.Array:
        return jnp.sum(by_window, axis=1)

    def changed(values: jax.Array) -> jax.Array:
        return values[:, 1:] != values[:, :-1]

    inside = (metrics.waiting + metrics.running - metrics.overdue)[:, -1]
    arrivals, good = total(metrics.arrivals), total(metrics.good)
    in_force = changed(metrics.tier) | changed(metrics.prefill_gpus)
    knobs = sum(changed(knob).astype(jnp.int32) for knob in jax.tree.leaves(played.actions))
    return {
        "episodes": jnp.ones(episodes),
        "windows": jnp.full(episodes, windows),
        "seconds": jnp.full(episodes, windows * env.window_s),
        "reward": total(timesteps.reward),
        "arrivals": arrivals,
        # Good requests are decided, however sums over windows round.
        "decided": jnp.clip(arrivals - jnp.maximum(inside, 0.0), good, arrivals),
        "good": good,
        "rejected": jnp.sum(metrics.rejected, axis=(1, 2)),
        "first_tokens": jnp.sum(metrics.first_tokens, axis=(1, 2)),
        "ttft_exceeded": total(metrics.ttft_exceeded),
        "tokens": total(metrics.tokens),
        "token_s": total(metrics.itl_s * metrics.tokens),
        "good_tokens": jnp.sum(metrics.good * env.workload.classes.output_tokens, axis=(1, 2)),
        "cost_usd": total(metrics.cost_usd),
        "preemptions": total(metrics.preemptions),
        "peak_memory_gib": jnp.max(metrics.memory_gib, axis=1),
        "oom_restarts": total(metrics.oom),
        "switches": total(in_force),
        "changes": total(jnp.asarray(knobs)),
    }
