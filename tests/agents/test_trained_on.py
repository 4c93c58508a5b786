"""Weights that play something else than they were trained on say so, in one sentence."""

from __future__ import annotations

import dataclasses
import json
import warnings
from pathlib import Path
from typing import Any

import pytest

from jaxserve.agents.panel import build_agent
from jaxserve.agents.task_setup import TaskSetup, load_setup, packaged_weights
from jaxserve.agents.trained_on import facts, trained_elsewhere
from jaxserve.errors import InputError, InputWarning
from jaxserve.learning.ppo_config import PPOConfig
from jaxserve.learning.run_options import provenance
from jaxserve.sim.table.file import read_table_file, write_table_file
from jaxserve.tasks.spec import task_names, task_path

SETUP = load_setup("bursty_workload")
WORSE = "on which they may do worse than a constant setting"


def weights_of(setup: TaskSetup, folder: Path, **inputs: Any) -> Path:
    """Folder with the description of weights from a run on ``setup``, with other ``inputs``."""
    made = provenance(setup, PPOConfig(), (0,), 0, 0.5, 4)
    about = {"provenance": made | {"inputs": made["inputs"] | inputs}}
    (folder / "weights.json").write_text(json.dumps(about))
    return folder


def test_facts() -> None:
    """They are plain data: where a task runs, what it promises, how much comes."""
    found = facts(load_setup("adversarial_multitenant"))
    assert json.loads(json.dumps(found)) == found
    assert found["gpu"] == "a100-sxm-40gb" and found["model"] == "llama-3.1-8b"
    assert (found["num_gpus"], found["tensor_parallel"]) == (4, 1)
    assert found["ttft_slo_s"] == [0.2, 12.0] and found["tpot_slo_s"] == [0.007, 0.1]
    assert 20.0 < found["arrival_rate_rps"] < 30.0


@pytest.mark.parametrize("task", task_names())
def test_packaged_weights_are_at_home(task: str) -> None:
    """Nothing is said of a task's own weights, although later versions know more of its GPU."""
    assert trained_elsewhere(packaged_weights(task), load_setup(task)) is None


def test_another_task() -> None:
    """Weights of conversations, asked to serve code, say it once; they lose 0.03 a window there."""
    setup = load_setup("azure_code", weights=packaged_weights("azure_conversation"))
    sentence = (
        "these weights were trained on azure_conversation (a100-sxm-40gb, 5.53 requests/s); they "
        f"play azure_code (a100-sxm-40gb, 2.607 requests/s) here, {WORSE}"
    )
    with pytest.warns(InputWarning) as said:
        build_agent("ppo", setup)
    assert [str(one.message) for one in said] == [sentence]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build_agent("default", setup)
        build_agent("ppo", load_setup("azure_code"))


def test_another_gpu(tmp_path: Path) -> None:
    """Packaged weights on other hardware name both."""
    setup = load_setup("azure_code", hardware="h100-sxm-80gb")
    found = trained_elsewhere(setup.weights, setup)
    assert found is not None and "(a100-sxm-40gb); they play azure_code (h100-sxm-80gb)" in found
    own = weights_of(setup, tmp_path)
    assert trained_elsewhere(own, setup) is None
    assert trained_elsewhere(own, load_setup("azure_code")) is not None


def test_facts_that_differ_are_said(tmp_path: Path) -> None:
    """New weights also tell the sizes, objectives and rates that differ, and no others."""
    weights = weights_of(load_setup("adversarial_multitenant"), tmp_path)
    found = trained_elsewhere(weights, SETUP)
    assert found == (
        "these weights were trained on adversarial_multitenant (a100-sxm-40gb, num_gpus 4, TTFT "
        "objectives 0.2 to 12.0 s, TPOT objectives 0.007 to 0.1 s, 24.793 requests/s); they play "
        "bursty_workload (a100-sxm-40gb, num_gpus 2, TTFT objectives 0.5 s, TPOT objectives 0.0095 "
        f"to 0.05 s, 15.364 requests/s) here, {WORSE}"
    )


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"table": "0" * 16}, "bursty_workload (a100-sxm-40gb, another latency table);"),
        ({"trace": "0" * 16}, "bursty_workload (a100-sxm-40gb, another trace);"),
        ({"task_digest": "0" * 16}, "another version of bursty_workload (a100-sxm-40gb);"),
        ({"model": "mine 0"}, "bursty_workload (a100-sxm-40gb);"),
        ({"hardware": "mine 0"}, "bursty_workload (mine);"),
    ],
)
def test_every_input_counts(inputs: dict[str, str], words: str, tmp_path: Path) -> None:
    """A table, trace or task of the same name and other contents is another one."""
    weights = weights_of(SETUP, tmp_path, **inputs)
    about = json.loads((weights / "weights.json").read_text())
    del about["provenance"]["trained_on"]  # as of versions that did not write it
    (weights / "weights.json").write_text(json.dumps(about))
    found = trained_elsewhere(weights, SETUP)
    assert found is not None
    if "model" in inputs:
        words = "bursty_workload (a100-sxm-40gb, mine);"
    assert f"were trained on {words}" in found and found.endswith(WORSE)


def test_a_table_of_the_same_name(tmp_path: Path) -> None:
    """A deployment that was calibrated again, to a table with other numbers, is another one."""
    (tmp_path / "mine.json").write_bytes(task_path("static_workload").read_bytes())
    task, path = str(tmp_path / "mine.json"), tmp_path / "mine.parquet"
    table = read_table_file("llama-3.1-8b__a100-sxm-40gb")
    write_table_file(path, table)
    setup = load_setup(task, table=str(path))
    weights = weights_of(setup, tmp_path)
    assert trained_elsewhere(weights, setup) is None
    slower = table.columns | {"itl_ms": 1.1 * table.columns["itl_ms"]}
    write_table_file(path, dataclasses.replace(table, columns=slower))
    found = trained_elsewhere(weights, load_setup(task, table=str(path)))
    assert found is not None and "mine (a100-sxm-40gb, another latency table); they" in found


def test_a_gpu_of_ones_own_is_its_constants(tmp_path: Path) -> None:
    """Its name alone says little; neither does a task's, whose copy is the same task."""
    path, task, table = (tmp_path / name for name in ("mine.json", "task.json", "mine.parquet"))
    file = read_table_file("llama-3.1-8b__a100-sxm-40gb")
    own = dataclasses.replace(file.metadata, hardware="mine")
    write_table_file(table, dataclasses.replace(file, metadata=own))
    setups = []
    for price in (1.0, 2.0):
        gpu = {"base": "a100-sxm-40gb", "price": {"price_usd_per_hour": price}}
        path.write_text(json.dumps(gpu))
        setups.append(load_setup("static_workload", hardware=str(path), table=str(table)))
    found = trained_elsewhere(weights_of(setups[0], tmp_path), setups[1])
    assert found is not None and "static_workload (mine, other constants of the GPU); they" in found
    task.write_bytes(task_path("static_workload").read_bytes())
    weights = packaged_weights("static_workload")
    assert trained_elsewhere(weights, load_setup(str(task))) is None


@pytest.mark.parametrize("about", [[], {}, {"provenance": 3}, {"provenance": {"inputs": {}}}])
def test_weights_that_do_not_say(about: Any, tmp_path: Path) -> None:
    """Nothing is known of them, and nothing is said; a file that is no JSON is named."""
    (tmp_path / "weights.json").write_text(json.dumps(about))
    assert trained_elsewhere(tmp_path, SETUP) is None
    assert trained_elsewhere(tmp_path / "none", SETUP) is None
    (tmp_path / "weights.json").write_text("{")
    with pytest.raises(InputError, match=r"weights\.json"):
        trained_elsewhere(tmp_path, SETUP)


def test_objectives_and_knobs_of_ones_own(tmp_path: Path) -> None:
    """Weights for one objective say it where they play for another, and not where for the same."""
    loose, tight = (
        load_setup("trace_replay", ttft_s=ttft_s, knobs=("batch_cap",)) for ttft_s in (2.0, 0.2)
    )
    weights = weights_of(loose, tmp_path)
    assert trained_elsewhere(weights, loose) is None
    found = trained_elsewhere(weights, tight)
    assert found is not None and "TTFT objectives 2.0 s, other objectives, knobs" in found
    assert trained_elsewhere(weights, load_setup("trace_replay")) is not None
