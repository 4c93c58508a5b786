"""Tasks of plans."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from jaxserve.agents.task_setup import load_setup
from jaxserve.plan.inputs import PlanInputs, PlanObjective, steady_traffic
from jaxserve.plan.options import engine_options
from jaxserve.plan.plan import Plan, make_plan
from jaxserve.plan.play import Player
from jaxserve.plan.task import write_task
from jaxserve.sim.table.file import read_table_file


def _plan(gpu: str, weight_format: str) -> Plan:
    inputs = PlanInputs(
        "llama-3.1-8b", *steady_traffic(2, 500, 20), PlanObjective(1.0, 0.05),
        {gpu: 2.0}, max_gpus=1, formats=(weight_format,), kv_formats=("bf16",),
    )  # fmt: skip
    trace = inputs.trace.chosen(inputs.trace.arrival_s < 20)
    inputs = dataclasses.replace(inputs, trace=trace)
    options, excluded = engine_options(inputs)
    options = [dataclasses.replace(each, cost=each.cost.slower(1.3)) for each in options]
    return make_plan(inputs, options, excluded, Player(inputs))


@pytest.mark.parametrize(
    ("gpu", "weight_format"), [("h100-sxm-80gb", "fp8"), ("a100-sxm-80gb", "int8")]
)
def test_a_task_has_the_times_of_the_plan(gpu: str, weight_format: str, tmp_path: Path) -> None:
    """Its table is of the named engine, with the times of the plan, whatever the format."""
    plan = _plan(gpu, weight_format)
    assert write_task(tmp_path, plan) == ["task.json", "table.parquet"]
    setup = load_setup(str(tmp_path / "task.json"), table=str(tmp_path / "table.parquet"))
    by = plan.best.deployment
    assert setup.spec.deployment.num_gpus == by.replicas
    assert setup.spec.streams[0].ttft_slo_s == plan.inputs.objective.ttft_s
    assert setup.spec.regimes[0].rate_rps == pytest.approx(2, rel=0.3)
    metadata = read_table_file(str(tmp_path / "table.parquet")).metadata
    assert metadata.cost_model == by.option.cost and metadata.token_budget == by.token_budget


def test_what_no_task_can_hold(tmp_path: Path) -> None:
    """More replicas than a task may have: no file."""
    plan = _plan("h100-sxm-80gb", "bf16")
    best = dataclasses.replace(
        plan.best, deployment=dataclasses.replace(plan.best.deployment, replicas=20)
    )
    assert write_task(tmp_path, dataclasses.replace(plan, best=best)) == []
    assert not list(tmp_path.iterdir())
