"""A task for what a deployment offers, and whether the deployment does as it is told."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxserve
from jaxserve.datafiles import read_json
from jaxserve.errors import InputError
from jaxserve.live.live_task import check_objectives, derive, echo, unacknowledged
from jaxserve.live.readings import parse_engine_state, parse_knobs
from jaxserve.sim.table.file import Calibration
from jaxserve.spaces import ACTION_BOUNDS, KNOBS
from jaxserve.tasks.spec import load_task, parse_task, task_names, task_path
from tests.live.deployment import TASK, engines_answer, knobs_answer, locked, offered

OFFER = parse_knobs(knobs_answer())
ENGINES = parse_engine_state(engines_answer(), OFFER)
BASE = {key: value for key, value in TASK.items() if key not in ("limits", "locked")}


def test_what_is_offered_stays_free() -> None:
    """Inside the engine's limits; the rest is locked, and the memory term is off."""
    more = {"batch_cap": offered(48, 2, 48), "token_budget": offered(4096, 1, 4096)}
    knobs = parse_knobs(knobs_answer(**more))
    base = BASE | {"knobs": ["batch_cap", "kv_budget_fraction", "speculation_depth"]}
    task = derive(base, "mine", knobs, ENGINES)
    spec = parse_task(task, "mine")
    assert spec.knobs == ("batch_cap", "kv_budget_fraction")
    assert spec.limits == {"batch_cap": (2, 48), "kv_budget_fraction": (0.2, 1.0)}
    assert spec.locked["batch_cap"] == 48 and spec.objective.memory_weight == 0.0
    assert spec.deployment.token_budget == 4096 and spec.deployment.kv_pool_tokens == 50_000
    assert base["knobs"] == ["batch_cap", "kv_budget_fraction", "speculation_depth"]
    env = jaxserve.make(spec)
    acts = env.effective_action(jaxserve.make_action(batch_cap=256, speculation_depth=4))
    assert (int(acts.batch_cap), int(acts.speculation_depth)) == (48, 0)


@pytest.mark.parametrize("name", task_names())
def test_every_built_in_task_has_a_live_one(name: str) -> None:
    """Whatever it frees, if the deployment turns any of it; a fleet keeps its replicas."""
    base = read_json(task_path(name), name)
    two = {f"vllm-{i}": engines_answer()["vllm-0"] for i in range(2)}
    spec = parse_task(derive(base, "mine", OFFER, parse_engine_state(two, OFFER)), "mine")
    fleet = name.startswith("fleet_")
    turned = {"batch_cap", "kv_budget_fraction"} | ({"replicas"} if fleet else set())
    assert set(spec.knobs) <= turned and ("replicas" in spec.knobs) == fleet
    assert (spec.deployment.fleet is not None) == fleet and spec.alias is None
    assert spec.locked["replicas"] == 0 and "replicas" not in spec.limits
    assert [one.name for one in spec.streams] == [one.name for one in load_task(name).streams]


def test_a_fleet_that_others_scale() -> None:
    """A task that keeps its fleet and does not open replicas."""
    base = dict(read_json(task_path("fleet_mixed"), "fleet_mixed")) | {"knobs": ["batch_cap"]}
    spec = parse_task(derive(base, "mine", OFFER, ENGINES), "mine")
    assert spec.knobs == ("batch_cap",) and spec.deployment.fleet is not None


def test_nothing_that_is_turned() -> None:
    """Is no task, and the reasons are told."""
    knobs = parse_knobs(knobs_answer(batch_cap=locked(), kv_budget_fraction=locked()))
    with pytest.raises(InputError, match="turns none of the task's knobs: batch_cap: vllm-0: it"):
        derive(BASE, "mine", knobs, ENGINES)


def test_more_engines_than_a_task_has() -> None:
    """One sentence."""
    many = {f"vllm-{i}": engines_answer()["vllm-0"] for i in range(9)}
    with pytest.raises(InputError, match="there are 9 engines"):
        derive(BASE, "mine", OFFER, parse_engine_state(many, OFFER))


WITH_DRAFTS = BASE | {"knobs": ["batch_cap", "speculation_depth", "quantization_tier"]}


def of_tiers(**tier: Any) -> Any:
    """Pools of other tiers, and engines with drafts of up to four tokens."""
    tiers = offered(tier.get("static", 0), 0, 2) | {"how": "approximated", "allowed": [0, 2]}
    depth = offered(0, 0, 4)
    return parse_knobs(knobs_answer(speculation_depth=depth, quantization_tier=tiers))


@pytest.mark.parametrize(
    ("depths", "free", "limits"),
    [
        ((0, 1, 2), ("batch_cap", "speculation_depth"), (0, 2)),
        ((0,), ("batch_cap",), (0, 0)),
        ((0, 8), ("batch_cap", "speculation_depth"), (0, 4)),
    ],
)
def test_what_was_not_measured_is_locked(
    depths: tuple[int, ...], free: tuple[str, ...], limits: tuple[int, int]
) -> None:
    """Other tiers and depths than those of the table; the front end is as it was measured."""
    calibration = Calibration(tier=0, depths=depths, kv_pool_tokens=None, frontend_s=0.012)
    open_to_all = parse_task(derive(WITH_DRAFTS, "mine", of_tiers(), ENGINES), "mine")
    assert open_to_all.knobs == ("batch_cap", "speculation_depth", "quantization_tier")
    spec = parse_task(derive(WITH_DRAFTS, "mine", of_tiers(), ENGINES, calibration), "mine")
    assert spec.knobs == free and spec.limits["speculation_depth"] == limits
    assert spec.locked["quantization_tier"] == 0 and spec.locked["speculation_depth"] == 0
    assert (spec.deployment.frontend_s, spec.deployment.frontend_tail_s) == (0.012, 0.0)


def test_a_table_of_something_else() -> None:
    """What runs without a command was not measured, or nothing is left to turn."""
    calibration = Calibration(tier=0, depths=(0,), kv_pool_tokens=None, frontend_s=0.0)
    with pytest.raises(InputError, match="without a command quantization_tier is 2, and the table"):
        derive(WITH_DRAFTS, "mine", of_tiers(static=2), ENGINES, calibration)
    with pytest.raises(InputError, match="speculation_depth: the table was measured at one value"):
        derive(BASE | {"knobs": ["speculation_depth"]}, "mine", of_tiers(), ENGINES, calibration)


def test_engines_of_another_tier() -> None:
    """Where no knob says what they run at, it is what was measured."""
    calibration = Calibration(tier=2, depths=(0,), kv_pool_tokens=None, frontend_s=0.0)
    spec = parse_task(derive(BASE, "mine", OFFER, ENGINES, calibration), "mine")
    assert spec.locked["quantization_tier"] == 2


MANY = st.integers(1, 100_000)


@given(static=st.none() | MANY, most=MANY, least=st.integers(1, 4))
def test_ranges_wider_than_the_knobs(static: int | None, most: int, least: int) -> None:
    """A gateway's cap may lie far above: the task is one all the same."""
    cap = offered(64, min(least, most), most) | {"static": static, "how": "approximated"}
    task = derive(BASE, "mine", parse_knobs(knobs_answer(batch_cap=cap)), ENGINES)
    spec = parse_task(task, "mine")
    low, high = spec.limits["batch_cap"]
    assert low <= spec.locked["batch_cap"] <= high <= ACTION_BOUNDS["batch_cap"].high


def test_what_became_of_an_action() -> None:
    """Knob by knob."""
    found = echo(OFFER, {"batch_cap": 8})
    assert set(found) == set(KNOBS)
    assert found["batch_cap"] == {"how": "exact", "asked": 8, "now": 64}
    assert found["quantization_tier"] == {"how": "restart_required", "asked": None, "now": None}


@pytest.mark.parametrize(
    ("told", "now", "obeyed"),
    [
        ({"batch_cap": 8}, {"batch_cap": 8.0}, True),
        ({"batch_cap": 100}, {"batch_cap": 99.0}, False),
        ({"batch_cap": 8}, {"batch_cap": None}, False),
        ({"kv_budget_fraction": 0.5}, {"kv_budget_fraction": 0.4975}, True),
        ({"kv_budget_fraction": 0.5}, {"kv_budget_fraction": 0.45}, False),
    ],
)
def test_acknowledged(told: dict[str, float], now: dict[str, Any], obeyed: bool) -> None:
    """What is in force is what was told; shares may be rounded to blocks."""
    knobs = copy.deepcopy(OFFER)
    for name, value in now.items():
        knobs["knobs"][name]["now"] = value
    said = unacknowledged(knobs, told)
    assert (said is None) == obeyed
    (name,) = told
    assert said is None or said.startswith(f"{name} is {now[name]} after it was told")


def test_objectives() -> None:
    """The gateway's are the task's, or it is said how to start it."""
    spec = parse_task(BASE, "mine")
    check_objectives(spec, {"objectives": {"chat": {"ttft_s": 0.5, "tpot_s": 0.05}}})
    for given_ in ({}, {"chat": None}, {"chat": {"ttft_s": 0.5}}, {"chat": {"tpot_s": 0.05}}):
        with pytest.raises(InputError, match=r"--slo chat:ttft=0\.5,tpot=0\.05"):
            check_objectives(spec, {"objectives": given_})
