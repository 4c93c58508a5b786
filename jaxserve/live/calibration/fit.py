"""Fits the seconds of an iteration to measurements of an engine.

    seconds = a + b sqrt(k^2 + tokens^2) + m tokens + s sequences + K context + P pairs

with tokens of the iteration, decoding sequences, KV tokens that these sequences read, and pairs of
query and key in the attention of prompts. All factors are 0 or more. k may be absent; below k
tokens come nearly free, as on a GPU that waits for its memory. The fit assumes nothing of the
hardware: it minimises absolute relative errors, which a few pauses of the host hardly move, and k
comes from a grid search. Every term is one of ``CostModel``, so the fit is a cost model.

Loads alone decide on the held-out rows: the tenth with the largest loads, which the fit must reach
by extrapolation, and every fourth of the others.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from jaxserve.errors import InputError
from jaxserve.live.calibration.steps import Steps
from jaxserve.sim.fit.sweep import Sweep
from jaxserve.sim.machine.cost_model import CostModel
from jaxserve.sim.table.closed_loop import ClosedLoop, closed_loop

Array = NDArray[np.float64]

TERMS: dict[str, str] = {
    "iteration": "host_s",
    "token": "elementwise_s_per_token",
    "decoding sequence": "attention_s_per_sequence",
    "context token": "kv_read_s_per_token",
    "pair": "prefill_s_per_pair",
}
"""Names of the linear terms, with their fields of ``CostModel``."""

ROOFLINE = "token beyond free ones"

FEWEST_POINTS = 12
"""Least number of measurements that can be fitted and checked."""

_POWER = 2.0
_KNEE_PAYS = 0.95  # required share of the error without a knee: noise alone favours any knee
_ROUNDING = 1e-6
_REWEIGHTINGS = 12
_SMALL_ERROR = 0.01
_KNEES = tuple(float(knee) for knee in 2 ** np.arange(3, 11.5, 0.5))
_LARGEST_SHARE = 10
_HELD_OUT_STRIDE = 4


@dataclass(frozen=True)
class Measurements:
    """Times, and their dependence on the factors of the terms; n rows."""

    seconds: Array
    """float64[n]."""
    load: Array
    """float64[n], key of the order from which rows are held out."""
    columns: Callable[[float | None], Array]
    """maps the knee k, in tokens, or None, to float64[n, terms]: seconds at factor 1. Terms of
    ``TERMS`` come first, then that of the knee if any, then terms outside an iteration."""
    judged: NDArray[np.bool_]
    """bool[n], rows whose errors count; other rows only support the fit."""


@dataclass(frozen=True)
class Fit:
    """Fitted factors, and their errors."""

    factors: dict[str, float]
    """seconds per unit of every term."""
    knee_tokens: float | None
    """k; None without a knee."""
    rest: tuple[float, ...]
    """factors of the terms outside an iteration."""
    points: int
    """number of judged rows."""
    held_out: int
    """number of held-out judged rows."""
    held_out_error: float
    """mean relative error on the held-out rows of a fit to the others."""
    largest_error: float
    """mean relative error of that fit on the tenth with the largest loads."""
    worst_error: float
    """largest relative error on the held-out rows, with its sign."""
    error: float
    """mean relative error of the fit to all rows."""

    def cost_model(self, gpu: str, model: str, tensor_parallel: int) -> CostModel:
        """The fit as a cost model, with the same times in all tiers.

        Raises:
          InputError: the times do not depend on the number of tokens.
        """
        known = [self.factors.get(name, 0.0) for name in ("token", ROOFLINE)]
        if not any(known):
            raise InputError(
                "the fit finds that tokens take no time, so no table was written: the engine sends "
                "them in bursts, or longer --prompt-tokens are needed"
            )
        return _cost_model(self.factors, self.knee_tokens, gpu, model, tensor_parallel)


def fit(measured: Measurements) -> Fit:
    """Fits the factors twice: without the held-out rows, for their errors, and to all rows.

    Raises:
      InputError: there are fewer than ``FEWEST_POINTS`` judged rows.
    """
    judged = measured.judged
    if judged.sum() < FEWEST_POINTS:
        raise InputError(
            f"{int(judged.sum())} different loads were measured; at least {FEWEST_POINTS} are "
            "needed, so the grid or --minutes must be larger"
        )
    out, largest = held_out(measured.load)
    errors = _errors(measured, _solve(measured, ~out))
    every = _solve(measured, np.ones_like(out))
    knee, found = every
    names = [*TERMS, *([ROOFLINE] if knee is not None else [])]
    checked = errors[out & judged]
    return Fit(
        factors=dict(zip(names, map(float, found), strict=False)),
        knee_tokens=knee,
        rest=tuple(map(float, found[len(names) :])),
        points=int(judged.sum()),
        held_out=len(checked),
        held_out_error=float(np.abs(checked).mean()),
        largest_error=float(np.abs(errors[largest & judged]).mean()),
        worst_error=float(checked[np.abs(checked).argmax()]),
        error=float(np.abs(_errors(measured, every)[judged]).mean()),
    )


def held_out(load: Array) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Masks of the held-out rows, and of the held-out rows with the largest loads."""
    order = np.argsort(-load, kind="stable")
    count = -(-len(load) // _LARGEST_SHARE)
    out, largest = np.zeros(len(load), bool), np.zeros(len(load), bool)
    largest[order[:count]] = out[order[:count]] = True
    out[order[count::_HELD_OUT_STRIDE]] = True
    return out, largest


def of_steps(steps: Steps) -> Measurements:
    """Measurements of an engine's steps; one of similar steps counts."""
    return of_loads(steps.typical())


def of_loads(steps: Steps) -> Measurements:
    """Measurements of steps; each counts."""
    parts = (steps.tokens, steps.kv_tokens, steps.pairs)
    linear = (
        np.ones(len(steps)), steps.tokens, steps.decode_seqs, steps.kv_tokens, steps.pairs
    )  # fmt: skip

    def columns(knee: float | None) -> Array:
        beyond = [] if knee is None else [np.hypot(knee, steps.tokens)]
        return np.stack([*linear, *beyond], axis=1)

    return Measurements(
        seconds=steps.seconds,
        load=np.sum([part / max(part.max(initial=0.0), 1.0) for part in parts], axis=0),
        columns=columns,
        judged=np.ones(len(steps), bool),
    )


def of_load_test(sweep: Sweep, kv_tokens: float, token_budget: int) -> Measurements:
    """Measurements of a load test: TPOT of every row, and TTFT of rows with one request at a time.

    TTFT tells prefill from decoding; the front end's delay is a term of its own in it. TPOT is
    linear in the factors: lengths and limits alone set the number of prompts in an iteration.
    """
    alone = sweep.concurrency == 1
    ttft_s = np.zeros(0) if sweep.ttft_s is None else sweep.ttft_s[alone]
    lone = np.flatnonzero(alone)[: len(ttft_s)]

    def times(factors: dict[str, float], knee: float | None) -> Array:
        cost = _cost_model(factors, knee, "any", "any", 1)
        tpot_s = predict(cost, sweep, kv_tokens, token_budget).tpot_s
        prefill_s = cost.prefill_alone_s(sweep.prompt_tokens[lone], 0, token_budget)
        return np.concatenate([tpot_s, prefill_s])

    def columns(knee: float | None) -> Array:
        base = times({"iteration": 1.0}, None)
        names = [*list(TERMS)[1:], *([ROOFLINE] if knee is not None else [])]
        others = [times({"iteration": 1.0, name: 1.0}, knee) - base for name in names]
        frontend = np.repeat([0.0, 1.0], [len(sweep), len(lone)])
        return np.stack([base, *others, frontend], axis=1)

    tokens = sweep.concurrency * (sweep.prompt_tokens + sweep.output_tokens / 2)
    return Measurements(
        seconds=np.concatenate([sweep.tpot_s, ttft_s]),
        load=np.concatenate([tokens, tokens[lone]]),
        columns=columns,
        judged=np.repeat([True, False], [len(sweep), len(lone)]),
    )


def predict(cost: CostModel, sweep: Sweep, kv_tokens: float, token_budget: int) -> ClosedLoop:
    """The closed-loop prediction of every row of a load test."""
    return closed_loop(
        cost,
        sweep.concurrency,
        sweep.prompt_tokens,
        sweep.output_tokens,
        kv_tokens=kv_tokens,
        token_budget=token_budget,
    )


def _solve(measured: Measurements, rows: NDArray[np.bool_]) -> tuple[float | None, Array]:
    """The knee and the factors with the least absolute relative errors on some rows."""

    def with_knee(knee: float | None) -> tuple[float, float | None, Array]:
        found, error = _least_absolute(measured.columns(knee)[rows] / measured.seconds[rows, None])
        return error, knee, found

    plain = with_knee(None)
    bent = min(map(with_knee, _KNEES), key=lambda each: each[0])
    needed = _KNEE_PAYS * plain[0] - _ROUNDING
    return bent[1:] if bent[0] < needed else plain[1:]


def _least_absolute(relative: Array) -> tuple[Array, float]:
    """Factors of 0 or more with ``relative @ factors`` close to 1, and the mean absolute error.

    Iteratively reweighted least squares: rows weigh 1 / |error|, which minimises absolute errors.
    """
    weights = np.ones(len(relative))
    found, errors = np.zeros(relative.shape[1]), weights
    for _ in range(_REWEIGHTINGS):
        root = np.sqrt(weights)
        weighted = relative * root[:, None]
        scale = np.linalg.norm(weighted, axis=0)
        scale[scale == 0] = 1.0
        found = nnls(weighted / scale, root)[0] / scale
        errors = np.abs(relative @ found - 1)
        weights = 1 / np.maximum(errors, _SMALL_ERROR)
    return found, float(errors.mean())


def _errors(measured: Measurements, solution: tuple[float | None, Array]) -> Array:
    """Relative error of every row."""
    knee, found = solution
    return measured.columns(knee) @ found / measured.seconds - 1


def _cost_model(
    factors: dict[str, float], knee: float | None, gpu: str, model: str, tensor_parallel: int
) -> CostModel:
    """A cost model of the terms alone: one layer, and no roofline but that of the tokens."""
    zeros = {
        name.name: (0.0, 0.0, 0.0) if "tuple" in str(name.type) else 0.0
        for name in dataclasses.fields(CostModel)
        if name.default is dataclasses.MISSING
    }
    beyond = factors.get(ROOFLINE, 0.0)
    given = {field: factors.get(term, 0.0) for term, field in TERMS.items()}
    return CostModel(
        **zeros  # pyright: ignore[reportArgumentType]
        | given
        | {
            "gpu": gpu,
            "model": model,
            "tensor_parallel": tensor_parallel,
            "layers": 1,
            "linear_s_per_token": (beyond,) * 3,
            "weight_read_s": (beyond * (knee or 0.0),) * 3,
            "linear_p": (_POWER,) * 3,
            "attention_q": 1.0,
            "draft_flat_depth": 1.0,
        }
    )
