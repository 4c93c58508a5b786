"""The search, the runs of the reference simulator, and the plan around them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from jaxserve.errors import InputError
from jaxserve.plan.answer import certainty, measurement, plan_json, scaling, unknown
from jaxserve.plan.folder import write_plan
from jaxserve.plan.inputs import PlanInputs, PlanObjective, inputs_digest
from jaxserve.plan.options import engine_options
from jaxserve.plan.plan import Plan, make_plan
from jaxserve.plan.play import PlannedDeployment, Play, Player
from jaxserve.plan.search import search
from jaxserve.sim.traffic.prompt_blocks import PromptBlocks
from jaxserve.sim.traffic.traces import Trace

PRICES = {"h100-sxm-80gb": 3.5, "l40s-48gb": 1.1}


def _trace(rate: float, seconds: float = 40.0) -> Trace:
    rng = np.random.default_rng(0)
    count = int(rate * seconds)
    arrival_s = np.sort(rng.uniform(0, seconds, count))
    prompt = rng.integers(100, 2000, count).astype(np.int32)
    return Trace(arrival_s - arrival_s[0], prompt, rng.integers(20, 80, count).astype(np.int32))


def _inputs(rate: float, objective: PlanObjective, **changes: object) -> PlanInputs:
    fields: dict[str, object] = {"prices": PRICES, "max_gpus": 3, "formats": ("bf16",)}
    fields |= {"kv_formats": ("bf16",)} | changes
    return PlanInputs("llama-3.1-8b", _trace(rate), "a wave", objective, **fields)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def plan() -> Plan:
    """A plan whose traffic needs more than one of the cheapest GPUs."""
    inputs = _inputs(8, PlanObjective(1.0, 0.06))
    options, excluded = engine_options(inputs)
    return make_plan(inputs, options, excluded, Player(inputs))


def test_kept_runs_of_other_prefixes_are_others() -> None:
    """Two traces with the same lengths, whose prompts share other blocks, have their own runs."""
    inputs = _inputs(8, PlanObjective(1.0, 0.06))
    count = len(inputs.trace)

    def digest(names: np.ndarray) -> str:
        blocks = PromptBlocks(512, names, np.arange(count + 1))
        trace = dataclasses.replace(inputs.trace, blocks=blocks)
        return inputs_digest(dataclasses.replace(inputs, trace=trace))

    alone, shared = np.arange(count), np.zeros(count, np.int64)
    assert len({inputs_digest(inputs), digest(alone), digest(shared)}) == 3
    assert digest(alone) == digest(alone.copy())


def test_nothing_cheaper_meets_the_objectives(plan: Plan) -> None:
    """Every deployment of these limits that costs less misses on the whole traffic."""
    best = plan.best.deployment
    assert plan.best.whole and plan.best.result.attainment >= 0.99
    player = Player(plan.inputs)
    for option in engine_options(plan.inputs)[0]:
        most = plan.inputs.max_gpus // option.tensor_parallel
        for replicas in range(1, most + 1):
            at = PlannedDeployment(option, replicas, best.batch_cap, best.token_budget)
            if at.usd_per_hour < best.usd_per_hour - 1e-9:
                assert player.play([Play(at)])[0].attainment < 0.99


def test_the_interval_surrounds_the_answer(plan: Plan) -> None:
    """Slower times serve fewer requests inside the objectives; replicas go the other way."""
    low, high = plan.attainment
    assert low <= plan.best.result.attainment <= high
    fewest, most = plan.replicas
    assert fewest <= plan.best.deployment.replicas <= (most or plan.inputs.max_gpus)
    assert plan.sure == (not plan.uncertain_options)
    assert any("95 %" in each for each in certainty(plan))


def test_a_plan_says_what_scaling_would_take(plan: Plan) -> None:
    """Where demand varies, and only there, the plan points to autoscaling."""
    gpus = plan.best.deployment.gpus
    varying = dataclasses.replace(plan, least_gpus=np.array([1] * 9 + [gpus]))
    steady = dataclasses.replace(plan, least_gpus=np.full(10, gpus))
    assert gpus >= 2
    assert [
        f"{varying.least_gpus.mean():.2f} of these {gpus} GPUs" in said for said in scaling(varying)
    ] == [True]
    assert scaling(steady) == []


def test_what_is_missed_has_a_constraint(plan: Plan) -> None:
    """Neighbours that miss name what binds them, others name nothing."""
    assert plan.neighbours
    for each in plan.neighbours:
        assert (each.binds is None) == each.meets
        assert each.meets == (each.tried.result.attainment >= 0.99)


def test_the_front_rises(plan: Plan) -> None:
    """A higher price buys a higher attainment, up to that of the named deployment or beyond."""
    prices = [each.deployment.usd_per_hour for each in plan.front]
    shares = [each.result.attainment for each in plan.front]
    assert prices == sorted(prices) and shares == sorted(shares)
    assert shares[-1] >= plan.best.result.attainment


def test_the_fewest_gpus_are_no_more_than_the_named(plan: Plan) -> None:
    """A fleet without delay needs no more than the fixed one, on average."""
    assert plan.least_gpus.mean() <= plan.best.deployment.gpus
    assert plan.least_gpus.min() >= 1


def test_the_json_has_numbers_only(plan: Plan) -> None:
    """No NaN, no infinity; load tests name the model and the lengths."""
    text = json.dumps(plan_json(plan), allow_nan=False)
    assert json.loads(text)["deployment"]["name"] == plan.best.deployment.name
    commands = measurement(plan, plan.best.deployment.option)
    assert len(commands) >= 8
    assert all("--model meta-llama/Llama-3.1-8B-Instruct" in each for each in commands)


def test_objectives_that_nothing_meets_name_the_nearest() -> None:
    """The error has the nearest deployment, its attainment and what binds it."""
    inputs = _inputs(20, PlanObjective(0.2, 0.012), prices={"l40s-48gb": 1.1}, max_gpus=2)
    with pytest.raises(InputError, match=r"the nearest is .* l40s-48gb .* bound by \w+"):
        search(inputs, engine_options(inputs)[0], Player(inputs))


@pytest.mark.slow
def test_drafts_save_what_they_are_named_for() -> None:
    """Tokens faster than a GPU makes them alone need drafts; the answer has their depths, and the
    same deployment without them misses."""
    objective, prices = PlanObjective(1.0, 0.0063), {"h100-sxm-80gb": 3.5}
    inputs = _inputs(4, objective, prices=prices, max_gpus=1, draft="sharegpt/eagle")
    plan = make_plan(inputs, *engine_options(inputs), Player(inputs))
    best = plan.best.deployment
    assert best.drafts is not None and len(best.drafts.depths) == best.batch_cap
    found = json.loads(json.dumps(plan_json(plan)))
    assert found["deployment"]["depths"] == [list(each) for each in best.drafts.ranges]
    assert best.name in found["answer"] and "speculation depth" in best.name
    assert any("sharegpt/eagle" in each for each in found["unknown"])
    (without,) = [each for each in plan.neighbours if each.difference == "no drafts"]
    assert not without.meets and without.tried.deployment.option.draft is None
    assert all(each.draft is None for each in plan.uncertain_options)
    with pytest.raises(InputError, match="the nearest is"):
        plain = dataclasses.replace(inputs, draft=None)
        search(plain, engine_options(plain)[0], Player(plain))


def test_at_one_price_no_drafts_are_named() -> None:
    """Where both suffice the simpler deployment is the answer."""
    objective, prices = PlanObjective(1.0, 0.06), {"h100-sxm-80gb": 3.5}
    inputs = _inputs(4, objective, prices=prices, max_gpus=1, draft="sharegpt/eagle")
    plan = make_plan(inputs, *engine_options(inputs), Player(inputs))
    assert plan.best.deployment.drafts is None
    assert "sharegpt/eagle drafts" in [each.difference for each in plan.neighbours]


def test_a_split_saves_a_gpu(tmp_path: Path) -> None:
    """Long prompts delay tokens on GPUs that do both; the folder has what starts each role."""
    rng = np.random.default_rng(0)
    arrival_s, ones = np.sort(rng.uniform(0, 20, 120)), np.ones(120, np.int32)
    inputs = dataclasses.replace(
        _inputs(1, PlanObjective(1.0, 0.010), prices={"h100-sxm-80gb": 3.5}, split=True),
        trace=Trace(arrival_s - arrival_s[0], 4000 * ones, 150 * ones),
    )
    options = [each for each in engine_options(inputs)[0] if each.tensor_parallel == 1]
    plan = make_plan(inputs, options, [], Player(inputs))
    best = plan.best.deployment
    assert best.prefill == 1
    (without,) = [each for each in plan.neighbours if "no split" in each.difference]
    assert not without.meets and without.tried.deployment.prefill == 0
    assert plan_json(plan)["deployment"]["prefill_replicas"] == 1
    assert any("first token from the replica that decodes" in each for each in unknown(plan))
    names = set(write_plan(tmp_path / "out", plan))
    assert {"vllm_prefill.sh", "vllm_decode.sh", "plan.json", "report.html"} < names
    assert {"compose.yaml", "kubernetes.yaml"} < names and "gateway.sh" not in names
    fewer = dataclasses.replace(inputs, split=False, max_gpus=best.replicas)
    with pytest.raises(InputError, match="the nearest is"):
        search(fewer, options, Player(inputs))


def test_a_search_that_was_cut_off_goes_on(tmp_path: Path) -> None:
    """Results are read from the file of the run before, a broken last line left out; other traffic
    computes its own."""
    inputs = _inputs(4, PlanObjective(1.0, 0.06), prices={"h100-sxm-80gb": 3.5}, max_gpus=1)
    options = engine_options(inputs)[0]
    kept = tmp_path / "runs.jsonl"
    first = Player(inputs, kept)
    found = search(inputs, options, first)
    kept.write_text(kept.read_text(encoding="utf-8") + '{"key": "ab', encoding="utf-8")
    second = Player(inputs, kept)
    assert search(inputs, options, second).best.result == found.best.result
    assert first.computed > 0 and second.computed == 0
    other = dataclasses.replace(inputs, objective=PlanObjective(0.9, 0.06))
    third = Player(other, kept)
    search(other, options, third)
    assert third.computed == first.computed


def test_processes_play_the_same() -> None:
    """The result does not depend on where it was computed."""
    inputs = _inputs(4, PlanObjective(1.0, 0.06), prices={"h100-sxm-80gb": 3.5}, max_gpus=1)
    (option,) = engine_options(inputs)[0]
    plays = [Play(PlannedDeployment(option, 1, 64, budget)) for budget in (1024, 2048)]
    assert Player(inputs, lanes=2).play(plays) == Player(inputs).play(plays)
