"""Setups that were not trained in: they differ from the task in one way each, or say why not."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path

import numpy as np
import pytest

from jaxserve.agents.task_setup import TaskSetup, load_setup
from jaxserve.errors import InputError
from jaxserve.sim.traffic.traces import load_trace
from jaxserve.studies.compare.variants import RANDOMISATION, Variant, variants

OTHER = "a100-sxm-80gb"


@functools.cache
def setup(task: str) -> TaskSetup:
    """A task as it is."""
    return load_setup(task)


def by_name(task: str, hardware: str = OTHER, trace: Path | None = None) -> dict[str, Variant]:
    """All variants of a task."""
    recorded = None if trace is None else load_trace(trace)
    return {found.name: found for found in variants(setup(task), hardware, trace, recorded)}


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Traffic of 250 s in the Azure format."""
    path = tmp_path / "mine.csv"
    rows = [f"2023-11-16 18:{i // 120:02d}:{i / 2 % 60:09.6f},{100 + i},20" for i in range(500)]
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(rows) + "\n")
    return path


def test_bursts_are_scaled_above_the_base_rate() -> None:
    """A burst of 2.5 to 3.5 times the base rate becomes one of 1 + 1.5 * (1.5 to 2.5)."""
    found = by_name("bursty_workload")
    own = np.asarray(setup("bursty_workload").env.workload.regimes.burst_multiplier)
    for name, scale in (("bursts x0.7", 0.7), ("bursts x1.5", 1.5)):
        changed = found[name].setup
        assert changed is not None
        multiplier = np.asarray(changed.env.workload.regimes.burst_multiplier)
        np.testing.assert_allclose(multiplier, 1.0 + scale * (own - 1.0), rtol=1e-6)
        assert changed.anchors is None and changed.spec == setup("bursty_workload").spec


def test_the_other_gpu_is_slow_and_fast_by_episode() -> None:
    """Its table and memory, a limit in the same proportion, and randomised speed."""
    env = setup("bursty_workload").env
    changed = by_name("bursty_workload")[OTHER].setup
    assert changed is not None and changed.anchors is None
    assert float(changed.env.randomisation) == pytest.approx(RANDOMISATION)
    assert float(changed.env.deployment.device_gib) > 1.9 * float(env.deployment.device_gib)
    shares = [
        float(each.reward.memory_limit_gib / each.deployment.device_gib)
        for each in (env, changed.env)
    ]
    assert shares[0] == pytest.approx(shares[1], rel=1e-5)


def test_a_trace_takes_the_place_of_one_kind_of_request(trace: Path) -> None:
    """Streams that differ in lengths alone are one kind; several kinds cannot be told apart."""
    for task in ("azure_conversation", "static_workload", "trace_replay"):
        changed = by_name(task, trace=trace)["trace mine.csv"].setup
        assert changed is not None and changed.env.workload.replay_counts is not None
        assert float(np.sum(changed.env.workload.replay_counts)) == 500.0
    refused = by_name("bursty_workload", trace=trace)["trace mine.csv"]
    assert refused.setup is None
    assert refused.reason == "a trace does not say which of its 3 kinds a request is of"


@pytest.mark.parametrize(
    ("task", "hardware", "name", "reason"),
    [
        ("static_workload", OTHER, "bursts x1.5", "its traffic has no bursts"),
        ("trace_replay", OTHER, "bursts x0.7", "its traffic is a recording"),
        ("bursty_workload", OTHER, "recorded trace", "no trace was named with --trace"),
        ("bursty_workload", "a100-sxm-40gb", "a100-sxm-40gb", "it is the task's own GPU"),
    ],
)
def test_what_is_left_out_says_why(task: str, hardware: str, name: str, reason: str) -> None:
    """No column is silently missing."""
    found = by_name(task, hardware)[name]
    assert (found.setup, found.reason) == (None, reason)


def test_a_gpu_without_a_table_is_left_out() -> None:
    """The larger models have tables for some GPUs only."""
    other = setup("static_workload")
    spec = dataclasses.replace(other.spec, model="llama-3.1-70b")
    found = variants(dataclasses.replace(other, spec=spec), OTHER, None, None)[2]
    assert found.setup is None and f"llama-3.1-70b__{OTHER}" in found.reason


def test_mistakes_are_named() -> None:
    """An unknown GPU."""
    with pytest.raises(InputError, match="gpu is 'tpu'"):
        by_name("bursty_workload", hardware="tpu")


def test_setups_say_what_they_are_built_from(trace: Path) -> None:
    """Each has inputs of its own, and none passes for the task itself."""
    found = by_name("static_workload", trace=trace) | by_name("bursty_workload")
    inputs = [setup("static_workload").inputs, setup("bursty_workload").inputs]
    for variant in found.values():
        if variant.setup is not None:
            assert variant.setup.inputs not in inputs and variant.setup.changes
            inputs.append(variant.setup.inputs)
    assert len(inputs) == 2 + 4
