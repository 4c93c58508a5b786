"""``jaxserve.make``: from a name to an environment, and every wrong argument named."""

from __future__ import annotations

import dataclasses
import functools
import json
import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jaxserve
from jaxserve.datafiles import data_dir
from jaxserve.errors import InputError, InputWarning
from jaxserve.sim.table.build import build
from jaxserve.sim.table.file import read_table_file, write_table_file
from jaxserve.sim.table.lookup import latency_table
from jaxserve.sim.traffic.workload import draw_arrivals, init_workload
from jaxserve.tasks.spec import load_task, task_names

TASKS = task_names()


@pytest.mark.parametrize("task", TASKS)
def test_every_task_becomes_an_environment(task: str) -> None:
    """All leaves are finite arrays, and the traffic classes carry the task's streams."""
    env, spec = jaxserve.make(task), load_task(task)
    for path, leaf in jax.tree_util.tree_leaves_with_path(env):
        assert isinstance(leaf, jax.Array), path
        assert np.isfinite(np.asarray(leaf, np.float64)).all(), path
    assert int(env.horizon) == spec.horizon
    assert np.asarray(env.knob_active).sum() == len(spec.knobs)
    mix = np.asarray(env.workload.regimes.class_mix)
    np.testing.assert_allclose(mix.sum(axis=1), 1.0, rtol=1e-6)
    assert float(env.reward.expected_value) > 0.0


def test_classes_keep_the_mean_lengths_of_their_streams() -> None:
    """Cutting a stream into bins neither loses nor adds tokens."""
    env, spec = jaxserve.make("bursty_workload"), load_task("bursty_workload")
    mix = np.asarray(env.workload.regimes.class_mix)
    for row, regime in zip(mix, spec.regimes, strict=False):
        for tokens, name in (
            (env.workload.classes.prompt_tokens, "prompt"),
            (env.workload.classes.output_tokens, "output"),
        ):
            mean = sum(regime.mix.get(s.name, 0.0) * getattr(s, name).mean() for s in spec.streams)
            assert float(row @ np.asarray(tokens)) == pytest.approx(mean, rel=0.01)


@functools.partial(jax.jit, static_argnames="horizon")
@functools.partial(jax.vmap, in_axes=(None, 0, None))
def arrived(env: jaxserve.ServeEnv, key: jax.Array, horizon: int) -> jax.Array:
    """Requests of each class in an episode."""

    def step(state, window):
        state, arrivals = draw_arrivals(env.workload, state, window, env.ticks, env.window_s)
        return state, arrivals.counts.sum(axis=0)

    _, counts = jax.lax.scan(step, init_workload(env.workload, key), np.arange(horizon))
    return counts.sum(axis=0)


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS[:3])
def test_expected_traffic_is_the_mean_of_the_traffic(task: str) -> None:
    """The reward's denominator is what arrives: over many episodes the two agree."""
    env = jaxserve.make(task)
    horizon = int(env.horizon)
    counts = np.asarray(arrived(env, jax.random.split(jax.random.key(0), 512), horizon))
    per_episode = counts @ np.asarray(env.reward.value) / horizon
    # Dwell is cut at random at the start of an episode, so short episodes are not quite stationary.
    error = per_episode.std() / np.sqrt(len(per_episode)) / per_episode.mean()
    assert per_episode.mean() == pytest.approx(
        float(env.reward.expected_value), rel=0.02 + 4 * error
    )
    rate = counts.sum(axis=1).mean() / (horizon * env.window_s)
    assert rate == pytest.approx(float(env.reward.expected_requests_per_s), rel=0.02 + 4 * error)


def test_hardware_and_overrides_reach_the_deployment() -> None:
    """A faster GPU has its own table, price and memory; overrides change the settings."""
    slow = jaxserve.make("static_workload")
    fast = jaxserve.make(
        "static_workload", hardware="h100-sxm-80gb", overrides={"deployment": {"num_gpus": 2}}
    )
    assert float(fast.deployment.num_gpus) == 2.0
    assert float(fast.deployment.device_gib) > float(slow.deployment.device_gib)
    assert np.all(np.asarray(fast.table.seconds) < np.asarray(slow.table.seconds))


def test_the_memory_limit_goes_with_the_gpu() -> None:
    """It stays the same share of another GPU's memory, unless one is named."""
    own = jaxserve.make("trace_replay")
    larger = jaxserve.make("trace_replay", hardware="h100-sxm-80gb")
    shares = [
        float(env.reward.memory_limit_gib / env.deployment.device_gib) for env in (own, larger)
    ]
    assert shares[0] == pytest.approx(shares[1], rel=1e-6) and shares[0] > 0.8
    same = jaxserve.make("trace_replay", hardware="a100-sxm-40gb")
    assert float(same.reward.memory_limit_gib) == 36.0
    limit = {"objective": {"memory_limit_gib": 60}}
    named = jaxserve.make("trace_replay", hardware="h100-sxm-80gb", overrides=limit)
    assert float(named.reward.memory_limit_gib) == 60.0


def test_a_table_brings_its_token_budget(tmp_path: Path) -> None:
    """A table of one's own engine is played at that engine's budget, unless another is asked for.

    Prompts are cut by the budget in force, so a table is carried over to any other by its own
    cost model: both ways the times are those of a table built for that budget.
    """
    paths = {budget: tmp_path / f"{budget}.parquet" for budget in (512, 8192)}
    for budget, path in paths.items():
        write_table_file(path, build("a100-sxm-40gb", "llama-3.1-8b", token_budget=budget))
    packaged = jaxserve.make("static_workload")
    assert float(packaged.deployment.token_budget) == 2048
    for budget, path in paths.items():
        own = jaxserve.make("static_workload", table=path)
        assert float(own.deployment.token_budget) == budget
        for table in (None, *paths.values()):
            overrides = {"deployment": {"token_budget": budget}}
            env = jaxserve.make("static_workload", table=table, overrides=overrides)
            assert float(env.deployment.token_budget) == budget
            # Files keep times as float32, so a ratio of two has three roundings of 6e-8.
            np.testing.assert_allclose(env.table.seconds, own.table.seconds, rtol=5e-7)
        assert not np.allclose(own.table.seconds, packaged.table.seconds, rtol=1e-3)


def test_a_table_goes_by_its_path(tmp_path: Path) -> None:
    """A user's table takes the place of the packaged one."""
    packaged = data_dir() / "tables" / "llama-3.1-8b__a100-sxm-40gb.parquet"
    mine = tmp_path / "mine.parquet"
    mine.write_bytes(packaged.read_bytes())
    for table in (mine, str(mine)):
        env = jaxserve.make("static_workload", table=table)
        np.testing.assert_array_equal(
            env.table.seconds, jaxserve.make("static_workload").table.seconds
        )


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"task": "warp_workload"}, "warp_workload"),
        ({"hardware": "tpu-v5"}, "tpu-v5"),
        ({"table": "warp.parquet"}, "warp.parquet"),
        ({"table": "llama-3.1-8b__warp"}, "llama-3.1-8b__warp"),
        ({"table": "llama-3.1-8b__h100-sxm-80gb"}, "hardware 'h100-sxm-80gb'"),
        ({"hardware": "h100-sxm-80gb", "table": "qwen2.5-32b__h100-sxm-80gb"}, "model"),
        ({"hardware": ""}, "gpu is ''"),
        ({"hardware": []}, "gpu is []"),
        ({"table": 3.5}, "table is 3.5; it must be a name or a path"),
        ({"table": []}, "table is []; it must be a name or a path"),
        ({"trace": 3.5}, "trace is 3.5; it must be a name or a path"),
        ({"trace": "x" * 5000}, "cannot be read: File name too long"),
        ({"trace": "warp.csv"}, "warp.csv"),
        ({"task": "adversarial_multitenant", "trace": "synthetic_conversation.csv"}, "one stream"),
        ({"overrides": {"warp": 1}}, "warp"),
        ({"overrides": [1]}, "overrides"),
        ({"overrides": {"deployment": {"tensor_parallel": 2}}}, "tensor_parallel"),
        (
            {"trace": "synthetic_conversation.csv", "overrides": {"rate_scale": 2.0}},
            "recorded trace",
        ),
        (
            {"trace": "synthetic_conversation.csv", "overrides": {"horizon": 100_000}},
            "needs 100000 s",
        ),
    ],
)
def test_a_wrong_argument_is_named(arguments: dict[str, Any], named: str) -> None:
    """One sentence for whatever is unknown or does not fit."""
    with pytest.raises(InputError) as error:
        jaxserve.make(**{"task": "static_workload"} | arguments)
    assert named in str(error.value)


def test_a_model_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    """A task file may name any model, but it has to fit on its GPU."""
    data = json.loads((data_dir() / "tasks" / "static_workload.json").read_text())
    path = tmp_path / "huge.json"
    path.write_text(json.dumps({**data, "model": "llama-3.1-70b"}))
    with pytest.raises(InputError, match=r"llama-3\.1-70b"):
        jaxserve.make(str(path))


def test_a_model_of_the_users_own(tmp_path: Path) -> None:
    """It needs a table of its own, and brings its memory."""
    config = {"num_hidden_layers": 16, "hidden_size": 2048, "num_attention_heads": 32}
    config |= {"intermediate_size": 8192, "vocab_size": 128256, "num_key_value_heads": 8}
    config |= {"model_type": "llama"}
    model, table = str(tmp_path / "small.json"), tmp_path / "small.parquet"
    Path(model).write_text(json.dumps(config))
    own = functools.partial(jaxserve.make, "bursty_workload", model=model)
    with pytest.raises(InputError, match="there is no packaged table of small on"):
        own()
    write_table_file(table, build("a100-sxm-80gb", model))
    env, usual = own(table=table, hardware="a100-sxm-80gb"), jaxserve.make("bursty_workload")
    assert float(env.deployment.weights_gib[0]) < 0.3 * float(usual.deployment.weights_gib[0])
    with pytest.raises(InputError, match=r"has model 'small'; task bursty_workload needs"):
        jaxserve.make("bursty_workload", table=table, hardware="a100-sxm-80gb")


def test_environments_of_different_tasks_and_hardware_stack() -> None:
    """Domain randomisation is a stacked environment under vmap."""
    envs = [
        jaxserve.make("static_workload"),
        jaxserve.make("bursty_workload", hardware="h100-sxm-80gb"),
        jaxserve.make("adversarial_multitenant", hardware="l40s-48gb"),
    ]
    stacked = jaxserve.stack(envs)
    assert stacked.deployment.num_gpus.shape == (3,)
    for i, env in enumerate(envs):
        leaves = zip(jax.tree.leaves(stacked), jax.tree.leaves(env), strict=True)
        for mine, theirs in leaves:
            np.testing.assert_array_equal(mine[i], theirs)


def write_trace(path: Path, repeated: bool = True) -> Path:
    """Requests of 200 s with blocks of prompts, of which every second one was there before."""
    rows = (
        {
            "timestamp": 500 * i,
            "input_length": 600 + i,
            "output_length": 50,
            "hash_ids": [i // 2 if repeated else -1 - i, i],
        }
        for i in range(400)
    )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_prompts_that_begin_alike_are_not_dropped_without_a_word(tmp_path: Path) -> None:
    """Whoever replays them without prefix caching is warned; others are not."""
    trace = write_trace(tmp_path / "alike.jsonl")
    short = {"horizon": 50}
    share = r"\d\d% of the trace's prompt tokens are in blocks \(hash_ids\) that it had before"
    with pytest.warns(InputWarning, match=f"^{share}; they are prefilled again, because") as warned:
        jaxserve.make("trace_replay", trace=trace, overrides=short)
    assert len(warned) == 1
    unlike = write_trace(tmp_path / "unlike.jsonl", repeated=False)
    cached = short | {"deployment": {"prefix_caching": True}}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jaxserve.make("trace_replay", trace=trace, overrides=cached)
        jaxserve.make("trace_replay", trace=unlike, overrides=short)


@pytest.mark.parametrize(
    ("overrides", "difference"),
    [
        ({"output_ages": 16}, "output_ages is 1 and 16"),
        (
            {"deployment": {"prefix_caching": True}},
            "prefix caching is without effect and on 2 GPUs",
        ),
    ],
)
def test_what_keeps_environments_apart_is_named(
    tmp_path: Path, overrides: dict[str, Any], difference: str
) -> None:
    """That alone, of all that may."""
    trace = write_trace(tmp_path / "trace.jsonl")
    alike = {"horizon": 50, "output_ages": 1, "deployment": {"num_gpus": 2}}
    changed = alike | overrides
    changed["deployment"] = alike["deployment"] | overrides.get("deployment", {})
    with pytest.warns(InputWarning, match="prefix_caching is off"):  # of the first
        envs = [
            jaxserve.make("trace_replay", trace=trace, overrides=each) for each in (alike, changed)
        ]
    with pytest.raises(InputError) as refused:
        jaxserve.stack(envs)
    assert str(refused.value) == f"environments 0 and 1 cannot be stacked: {difference}"


def test_what_keeps_other_environments_apart_is_named() -> None:
    """Traffic and windows, both where both differ."""
    recorded, drawn = jaxserve.make("trace_replay"), jaxserve.make("static_workload")
    table = latency_table(read_table_file("llama-3.1-8b__a100-sxm-40gb"))
    long = dataclasses.replace(drawn, table=table)
    longer = dataclasses.replace(drawn, window_s=2.5, ticks=drawn.ticks + 1)
    for other, difference in (
        (recorded, "traffic is drawn and a recording of"),
        (longer, rf"window_s is 1 and 2.5; ticks is {drawn.ticks} and {longer.ticks}$"),
        (long, "the table's longest prompt is 8,192 tokens and 131,072 tokens$"),
    ):
        with pytest.raises(InputError, match=difference):
            jaxserve.stack([drawn, other])


def test_environments_that_cannot_stack_are_refused() -> None:
    """Recorded and random traffic have different shapes; no environment is no stack."""
    with pytest.raises(InputError, match="environments 0 and 1 cannot be stacked"):
        jaxserve.stack([jaxserve.make("static_workload"), jaxserve.make("trace_replay")])
    env = jaxserve.make("static_workload")
    with pytest.raises(InputError, match="their arrays have different shapes"):
        jaxserve.stack([env, jaxserve.stack([env, env])])
    with pytest.raises(InputError, match="0 environments"):
        jaxserve.stack([])
    with pytest.raises(InputError, match="stack got 'static_workload'; it takes environments"):
        jaxserve.stack(["static_workload"])  # type: ignore[list-item]
