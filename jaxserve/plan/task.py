"""The task of a plan: its deployment and traffic as an environment, to train a controller in."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxserve.fields import MAX_GPUS
from jaxserve.plan.answer import headline
from jaxserve.plan.plan import Plan
from jaxserve.sim.machine.hardware import GIB
from jaxserve.sim.table.build import build, fill_grid
from jaxserve.sim.table.file import TableFile, write_table_file
from jaxserve.sim.traffic.lengths import length_quantiles

TASK, TABLE = "task.json", "table.parquet"
_QUANTILES = np.linspace(0.0, 1.0, 33)


def write_task(folder: Path, plan: Plan) -> list[str]:
    """Writes the task and its latency table, which has the plan's times.

    Returns:
      the names of the files; none where the deployment is split or has more replicas than a task
      may have, or a part of a trace was planned for, which no task file can name.
    """
    by, whole = plan.best.deployment, plan.inputs.trace.whole is None
    if by.replicas > MAX_GPUS or by.prefill or not whole:
        return []
    (folder / TASK).write_text(json.dumps(_task(plan), indent=1) + "\n", encoding="utf-8")
    write_table_file(folder / TABLE, _table(plan))
    return [TASK, TABLE]


def _task(plan: Plan) -> dict[str, Any]:
    inputs, by = plan.inputs, plan.best.deployment
    trace, option = inputs.trace, by.option
    own = {} if inputs.trace_file is None else {"trace": str(inputs.trace_file.resolve())}
    return own | {
        "spec_version": 1,
        "title": "Traffic of a plan",
        "difficulty": "own",
        "description": f"{headline(plan)}. Planned for {inputs.traffic}.",
        "hardware": _name(option.kind),
        "model": _name(inputs.model),
        "deployment": {
            "num_gpus": by.replicas,
            "tensor_parallel": option.tensor_parallel,
            "token_budget": by.token_budget,
            "prefix_caching": trace.blocks is not None,
        },
        "knobs": ["batch_cap", *(("speculation_depth",) if option.draft else ())],
        "locked": {"quantization_tier": option.tier} if option.tier else {},
        "streams": [
            {
                "name": "requests",
                "prompt": _lengths(trace.prompt_tokens),
                "output": _lengths(trace.output_tokens),
                "acceptance": option.draft or "sharegpt/eagle",
                "ttft_slo_s": inputs.objective.ttft_s,
                "tpot_slo_s": inputs.objective.tpot_s,
            }
        ],
        "regimes": [
            {
                "name": "mean",
                "rate_rps": len(trace) / max(trace.duration_s, 1e-9),
                "mix": {"requests": 1.0},
            }
        ],
        "objective": {"memory_limit_gib": option.machine[0].memory_bytes / GIB},
    }


def _name(name: str) -> str:
    """A name as it is, and a file with its whole path."""
    return str(Path(name).resolve()) if Path(name).is_file() else name


def _lengths(tokens: NDArray[np.int32]) -> dict[str, Any]:
    """Distribution of the lengths, as task files write it."""
    low, high = int(tokens.min()), int(tokens.max())
    if low == high:
        return {"kind": "uniform", "low": low, "high": high}
    return {"kind": "quantiles", "values": length_quantiles(tokens, _QUANTILES).round().tolist()}


def _table(plan: Plan) -> TableFile:
    """Latency table of the engine, with the times that the plan was made with."""
    by = plan.best.deployment
    option = by.option
    known = build(
        option.kind,
        plan.inputs.model,
        tensor_parallel=option.tensor_parallel,
        token_budget=by.token_budget,
        stack=option.stack,
    ).metadata
    source = f"{known.source}; {option.doubt.source}"
    return fill_grid(replace(known, cost_model=option.cost, source=source), *option.machine)
