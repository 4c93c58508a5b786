"""A deployment whose time is dilated is the same one with a slower clock."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.agents.open_loop import StaticPolicy
from jaxserve.agents.reference_rollout import episode_traffic, reference_rollout
from jaxserve.agents.rollout import rollout
from jaxserve.env import ServeEnv
from jaxserve.errors import InputError
from jaxserve.live.figures import of_windows
from jaxserve.registry import make
from jaxserve.seeds import episode_key, episode_keys
from jaxserve.sim.machine.cost_model import CostModel
from jaxserve.sim.machine.hardware import load_gpu
from jaxserve.sim.machine.models import load_model
from jaxserve.sim.machine.stack import Stack, serve
from jaxserve.sim.table.build import build
from jaxserve.sim.table.file import write_table_file
from jaxserve.spaces import make_action
from jaxserve.studies.live.dilation import dilated_table, dilated_task
from jaxserve.studies.live.plan import load_study, study_path
from jaxserve.tasks.spec import parse_task

COST = CostModel.of(load_gpu("h100-sxm-80gb"), load_model("llama-3.1-8b"))
# With collectives, experts, and a least time of an iteration that has prompt tokens.
SERVED_COST = CostModel.of(
    *serve("h200-sxm-141gb", "deepseek-v3", Stack(formats=("fp8", "fp8", "fp8"))), 8
)
TASK: dict[str, Any] = dict(load_study(study_path()).servers[0].task) | {"horizon": 12}
# Powers of two, which multiply without rounding, so that random draws fall alike.
factors = st.sampled_from([2.0, 4.0, 16.0])
whole = st.integers(0, 4000)


@pytest.mark.parametrize("cost", [COST, SERVED_COST], ids=["one GPU", "a stack"])
@given(factors, st.integers(1, 256), whole, whole, st.integers(0, 4))
def test_an_iteration_is_longer_by_the_factor(
    cost: CostModel, factor: float, sequences: int, context: int, chunk: int, depth: int
) -> None:
    """Whatever is in it."""
    load: dict[str, Any] = dict(
        decode_seqs=sequences,
        kv_tokens=float(context * sequences),
        chunks=((chunk, context),) if chunk else (),
        speculation_depth=depth,
    )
    slow = cost.slower(factor)
    assert slow.iteration_s(**load) == pytest.approx(factor * cost.iteration_s(**load), rel=1e-9)


def test_a_table_of_a_stack_differs_in_its_times() -> None:
    """Those of what serves the model; its memory stays."""
    hardware, model = "h200-sxm-141gb", "qwen3-30b-a3b"
    plain, slow = build(hardware, model).columns, dilated_table(hardware, model, 1, 4.0).columns
    np.testing.assert_array_equal(slow["gpu_mem_gb"], plain["gpu_mem_gb"])
    for name in ("prefill_ms", "prefill_added_ms", "itl_ms"):
        np.testing.assert_allclose(slow[name], 4.0 * plain[name], rtol=1e-9)


@given(st.sampled_from([0.5, 2.0, 8.0]))
def test_a_task_is_dilated_back(factor: float) -> None:
    """By the reciprocal; then only defaults have been written down."""
    once = dilated_task(TASK, factor)
    assert dilated_task(dilated_task(once, 4.0), 0.25) == once
    back = dilated_task(once, 1 / factor)
    assert back == dilated_task(TASK, 1.0)
    assert {name: back[name] for name in TASK if name != "deployment"} == {
        name: value for name, value in TASK.items() if name != "deployment"
    }


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[ServeEnv, ServeEnv]:
    """The task in the GPU's time and four times as slow, each with its table."""
    folder = tmp_path_factory.mktemp("tables")
    # Stays in a regime are rounded to seconds, which is coarser in the GPU's time.
    task = TASK | {"regimes": [regime | {"dwell_s": [1000, 1000]} for regime in TASK["regimes"]]}
    found = []
    for factor in (1.0, 4.0):
        path = folder / f"{factor:g}.parquet"
        write_table_file(path, dilated_table("h100-sxm-80gb", "llama-3.1-8b", 1, factor))
        found.append(make(parse_task(dilated_task(task, factor), "slow"), table=path))
    return found[0], found[1]


def test_the_same_requests_come_more_slowly(both: tuple[ServeEnv, ServeEnv]) -> None:
    """Under the same key: as many, as long, in the same order."""
    plain, slow = (episode_traffic(env, episode_key(3, "test"), 12) for env in both)
    assert len(plain) == len(slow) > 30
    for first, second in zip(plain, slow, strict=True):
        assert (first.prompt_tokens, first.output_tokens, first.traffic_class) == (
            second.prompt_tokens,
            second.output_tokens,
            second.traffic_class,
        )
        assert 4 * first.arrival_s == pytest.approx(second.arrival_s, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("cap", [24, 64])
def test_both_simulators_serve_them_alike(both: tuple[ServeEnv, ServeEnv], cap: int) -> None:
    """The reference simulator the very same, later by the factor; the fast one within 5 %, since
    its histogram of TTFT is in seconds."""
    policy = StaticPolicy(make_action(batch_cap=cap))
    figures, logs = [], []
    for env, factor in zip(both, (1.0, 4.0), strict=True):
        played = rollout(env, policy, episode_keys(1, "test"))
        metrics = jax.tree.map(lambda leaf: np.asarray(leaf[0]), played.timesteps.metrics)
        figures.append(dataclasses.astuple(of_windows(env, metrics).in_gpu_time(factor)))
        cost = COST.slower(factor)
        logs.append(reference_rollout(env, policy, episode_key(0, "test"), cost).log)
    assert figures[0] == pytest.approx(figures[1], rel=0.05)
    for name in ("ttft_s", "tpot_s"):
        np.testing.assert_allclose(4 * logs[0][name], logs[1][name], rtol=1e-3)


def test_a_recording_cannot_be_dilated() -> None:
    """Its times are in a file of its own."""
    with pytest.raises(InputError, match=r"replays 'x.csv' cannot be dilated"):
        dilated_task(TASK | {"trace": "x.csv"}, 2.0)
