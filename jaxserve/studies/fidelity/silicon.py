"""The cost model against end-to-end measurements of a served model.

A closed loop keeps ``concurrency`` requests in flight. While a request decodes its ``output``
tokens, every other slot is refilled once. An iteration therefore prefills
(concurrency - 1) / output prompts on average:

    TPOT = t(decode of all slots) + (concurrency - 1) / output * t(prefill added by one prompt)
"""

import dataclasses
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import least_squares

from jaxserve.sim.fit.columns import read_columns
from jaxserve.sim.machine.cost_model import CostModel
from jaxserve.sim.machine.hardware import load_gpu
from jaxserve.sim.machine.models import load_model
from jaxserve.studies.fidelity.measurements import FidelityRow

BAR = 0.03
FOLDS = 3
FILE = "measured_h100_llama31_8b_trtllm.csv"

MEASURED_TOKEN_BUDGET = 8192
"""Tokens per iteration of the measured engine (TensorRT-LLM's default max_num_tokens)."""


def closed_loop_tpot_s(
    cost: CostModel,
    concurrency: ArrayLike,
    prompt_tokens: ArrayLike,
    output_tokens: ArrayLike,
) -> np.ndarray:
    """Mean seconds per output token in a closed loop without a KV limit; arguments broadcast."""
    concurrency = np.asarray(concurrency, np.float64)
    output_tokens = np.asarray(output_tokens, np.float64)
    context = np.asarray(prompt_tokens, np.float64) + output_tokens / 2
    prompts_per_iteration = (concurrency - 1) / output_tokens
    added_s = cost.prefill_added_s(concurrency, prompt_tokens, token_budget=MEASURED_TOKEN_BUDGET)
    return cost.decode_s(concurrency, context) + prompts_per_iteration * added_s


def fit_iteration(
    cost: CostModel,
    concurrency: np.ndarray,
    prompt_tokens: np.ndarray,
    output_tokens: np.ndarray,
    tpot_s: np.ndarray,
) -> CostModel:
    """``cost`` with its two constants that no kernel shows, host and elementwise, fitted to TPOT.

    Args:
      cost: iteration times to scale.
      concurrency, prompt_tokens, output_tokens: float64[n], measured loops.
      tpot_s: float64[n], their measured time per output token.
    """

    def build(scale: np.ndarray) -> CostModel:
        return dataclasses.replace(
            cost,
            host_s=cost.host_s * float(scale[0]),
            elementwise_s_per_token=cost.elementwise_s_per_token * float(scale[1]),
        )

    def residuals(scale: np.ndarray) -> np.ndarray:
        predicted_s = closed_loop_tpot_s(build(scale), concurrency, prompt_tokens, output_tokens)
        return np.log(predicted_s / tpot_s)

    return build(
        least_squares(residuals, np.ones(2), bounds=(0.1, 10.0), loss="soft_l1", f_scale=0.03).x
    )


def silicon_fidelity(directory: Path) -> list[FidelityRow]:
    """Row on closed-loop TPOT of Llama-3.1-8B on an H100; none if the file is absent.

    Only TPOT is compared: measured TTFT includes the wait for a slot of the load generator. Host
    and elementwise constants are fitted to the two thirds without the judged point.
    """
    path = directory / FILE
    if not path.is_file():
        return []
    columns = read_columns(path)
    concurrency, prompt, output = (columns[name] for name in ("batch_size", "isl", "osl"))
    tpot_s = columns["silicon_tpot_ms"] * 1e-3
    cost = CostModel.of(load_gpu("h100-sxm-80gb"), load_model("llama-3.1-8b"))
    shipped = closed_loop_tpot_s(cost, concurrency, prompt, output) / tpot_s - 1
    errors = np.empty(len(tpot_s))
    for fold in range(FOLDS):
        out = np.arange(len(tpot_s)) % FOLDS == fold
        fitted = fit_iteration(cost, concurrency[~out], prompt[~out], output[~out], tpot_s[~out])
        predicted_s = closed_loop_tpot_s(fitted, concurrency[out], prompt[out], output[out])
        errors[out] = predicted_s / tpot_s[out] - 1
    worst = int(np.abs(errors).argmax())
    detail = (
        f"{len(errors)} points held out by thirds; shipped constants "
        f"{100 * np.abs(shipped).mean():.1f} %, bias {100 * shipped.mean():+.1f} %; worst "
        f"{100 * errors[worst]:+.1f} % at concurrency {concurrency[worst]:.0f}, prompt "
        f"{prompt[worst]:.0f}, output {output[worst]:.0f}: another engine's attention "
        "kernels, and few slots refill less evenly than the mean"
    )
    mape = float(np.abs(errors).mean())
    return [
        FidelityRow.within(
            "cost model vs silicon: H100 TPOT", 100 * mape, 100 * BAR, "% (mean)", detail
        )
    ]
