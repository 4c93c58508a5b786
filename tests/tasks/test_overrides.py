"""Overrides: what they change, and that they are checked like a task file."""

from __future__ import annotations

from typing import Any

import pytest

from jaxserve.errors import InputError
from jaxserve.tasks.overrides import override
from jaxserve.tasks.spec import TaskSpec, load_task


@pytest.fixture
def spec() -> TaskSpec:
    """The medium task: bursts and several regimes."""
    return load_task("bursty_workload")


def test_no_overrides_change_nothing(spec: TaskSpec) -> None:
    """An empty mapping is the task itself."""
    assert override(spec, {}, recorded=False) == spec


def test_every_override_acts_on_its_field_alone(spec: TaskSpec) -> None:
    """Fields that are not named keep the task's value, inside groups too."""
    new = override(
        spec,
        {
            "horizon": 50,
            "randomisation": 0.1,
            "knobs": ("batch_cap",),
            "deployment": {"num_gpus": 3},
            "objective": {"cost_weight": 0.5},
        },
        recorded=False,
    )
    assert (new.horizon, new.randomisation, new.knobs) == (50, 0.1, ("batch_cap",))
    assert new.deployment.num_gpus == 3
    assert new.deployment.restart_s == spec.deployment.restart_s
    assert new.objective.cost_weight == 0.5
    assert new.objective.memory_limit_gib == spec.objective.memory_limit_gib
    assert (new.streams, new.regimes, new.version) == (spec.streams, spec.regimes, spec.version)


def test_rate_and_burst_scales_multiply(spec: TaskSpec) -> None:
    """rate_scale moves the base rate, burst_scale only what bursts add to it."""
    new = override(spec, {"rate_scale": 2.0, "burst_scale": 0.5}, recorded=False)
    for before, after in zip(spec.regimes, new.regimes, strict=True):
        assert after.rate_rps == pytest.approx(2.0 * before.rate_rps)
        for old, scaled in zip(before.burst_multiplier, after.burst_multiplier, strict=True):
            assert scaled - 1.0 == pytest.approx(0.5 * (old - 1.0))
        assert after.mix == before.mix


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        ({"horizons": 10}, "horizons"),
        ({"horizon": 0}, "horizon"),
        ({"horizon": 1.5}, "horizon"),
        ({"horizon": "10"}, "horizon"),
        ({"randomisation": float("nan")}, "randomisation"),
        ({"knobs": "batch_cap"}, "knobs"),
        ({"knobs": []}, "knobs"),
        ({"knobs": ["batch"]}, "batch"),
        ({"deployment": 2}, "deployment"),
        ({"deployment": {"gpus": 2}}, "gpus"),
        ({"deployment": {"num_gpus": 1.5}}, "num_gpus"),
        ({"objective": {"memory_limit_gib": 0}}, "memory_limit_gib"),
        ({"objective": {"cost_weight": float("inf")}}, "cost_weight"),
        ({"rate_scale": 0}, "rate_scale"),
        ({"burst_scale": -1}, "burst_scale"),
        ([("horizon", 10)], "overrides"),
    ],
)
def test_a_wrong_override_is_named(spec: TaskSpec, overrides: Any, named: str) -> None:
    """One sentence that says where and what."""
    with pytest.raises(InputError, match=r"^overrides") as error:
        override(spec, overrides, recorded=False)
    assert named in str(error.value)


@pytest.mark.parametrize("name", ["rate_scale", "burst_scale"])
def test_a_recorded_trace_cannot_be_scaled(spec: TaskSpec, name: str) -> None:
    """An override that would have no effect is refused, not ignored."""
    with pytest.raises(InputError, match="recorded trace"):
        override(spec, {name: 2.0}, recorded=True)
