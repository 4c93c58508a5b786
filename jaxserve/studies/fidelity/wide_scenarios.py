"""Scenarios beyond the built-in tasks.

Prompts reach 65,536 tokens, outputs are equal or heavy-tailed, some deployments have three GPUs.
There is no front end, whose delay would hide errors of short waits.

    python -m jaxserve.studies.fidelity.wide_scenarios
"""

from __future__ import annotations

import dataclasses
import functools
import itertools

import numpy as np

from jaxserve.sim.machine.deployment import DeploymentSettings
from jaxserve.sim.traffic import lengths
from jaxserve.sim.traffic.lengths import LengthDistribution
from jaxserve.studies.fidelity.fast_vs_reference import compare, comparison_table, fidelity_rows
from jaxserve.studies.fidelity.measurements import FidelityRow
from jaxserve.studies.fidelity.scenarios import LOADS, Scenario, Traffic
from jaxserve.tasks.replay import TRACE_AGES
from jaxserve.tasks.spec import Regime, TaskSpec, load_task

CHECK = "fast vs reference, long and uneven"
"""Name of the comparison."""
BARS = {
    "throughput": (3.0, "%"),
    "TPOT": (6.0, "%"),
    "ITL p50": (6.0, "%"),
    "SLO attainment": (3.0, "points"),
    "TTFT p50": (12.0, "%"),
    "TTFT p99": (18.0, "%"),
}
"""Largest error that passes, and its unit."""
_HARDWARE = "h100-sxm-80gb"
_SHORT = lengths.lognormal(6.5, 0.6, 64, 8192)
_LONG = lengths.lognormal(9.2, 0.9, 512, 65_536)


@functools.lru_cache
def heavy_outputs() -> LengthDistribution:
    """Mixture of exponential outputs: nine tenths with mean 100 tokens, one tenth with 1,200."""
    probability = (np.arange(20_000) + 0.5) / 20_000
    tokens = [-mean * np.log1p(-probability) for mean in (*[100.0] * 9, 1200.0)]
    return lengths.from_samples(1.0 + np.minimum(np.concatenate(tokens), 8000.0))


@functools.lru_cache
def wide_specs() -> dict[str, TaskSpec]:
    """Tasks by name of their traffic."""
    equal = lengths.uniform(400, 400)
    narrow = lengths.lognormal(5.8, 0.15, 16, 2000)
    chat = lengths.lognormal(5.5, 0.5, 16, 2000)
    return {
        "equal outputs": _spec("equal outputs", _SHORT, equal, 1, 4),
        "heavy-tailed outputs": _spec("heavy-tailed outputs", _SHORT, heavy_outputs(), 1, 4),
        "long prompts": _spec("long prompts", _LONG, chat, 1, 6),
        "long prompts on three": _spec("long prompts on three", _LONG, narrow, 3, 6),
        "equal outputs on three": _spec("equal outputs on three", _SHORT, equal, 3, 4),
    }


def wide_grid() -> list[Scenario]:
    """Traffics x batch caps x loads."""
    return [
        Scenario(Traffic(name, spec=spec), load, {"batch_cap": cap})
        for (name, spec), cap, load in itertools.product(wide_specs().items(), (64, 256), LOADS)
    ]


def wide_fidelity() -> list[FidelityRow]:
    """Rows of the whole grid."""
    return fidelity_rows(compare(wide_grid()), BARS, CHECK)


def _spec(
    name: str, prompt: LengthDistribution, output: LengthDistribution, gpus: int, bins: int
) -> TaskSpec:
    base = load_task("static_workload")
    stream = dataclasses.replace(
        base.streams[0], name="all", prompt=prompt, output=output, bins=bins
    )
    return dataclasses.replace(
        base,
        name=name,
        hardware=_HARDWARE,
        streams=(stream,),
        regimes=(Regime(name="steady", rate_rps=1.0, mix={"all": 1.0}),),
        deployment=DeploymentSettings(num_gpus=gpus, frontend_s=0.0, frontend_tail_s=0.0),
        output_ages=TRACE_AGES,
    )


if __name__ == "__main__":
    print(comparison_table(measured := compare(wide_grid())))
    for row in fidelity_rows(measured, BARS, CHECK):
        print(row)
