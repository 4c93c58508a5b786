"""Episodes over HTTP: the same as in-process, by every name and way to say which session."""

from __future__ import annotations

import functools
from typing import Any

import httpx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxserve
from jaxserve.client import ServeClient
from jaxserve.env import ServeEnv
from jaxserve.grading import grade_actions
from jaxserve.seeds import episode_key
from jaxserve.spaces import KNOBS, OBSERVATION_BOUNDS
from jaxserve.tasks.spec import task_names
from server.local import LocalServer
from tests.server.routes.episode_calls import post, random_actions
from tests.sizes import each_task

close = functools.partial(pytest.approx, rel=1e-3, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "task", each_task(deep=("bursty_workload", "fleet_mixed", "static_workload"))
)
def test_an_episode_over_http_is_the_episode_in_process(http: httpx.Client, task: str) -> None:
    """Rewards and observations, the grade, and the vmapped program.

    The server steps sessions in batches, which is another program: close, not equal bit by bit.
    """
    env = jaxserve.make(task)
    horizon = int(env.horizon)
    actions = random_actions(3, horizon)
    step = jax.jit(ServeEnv.step)
    state, first = env.reset(episode_key(7, "test"))
    begun = post(http, "/reset", task_id=task, seed=7, split="test")
    session_id = begun["session_id"]
    assert begun["observation"]["gpu_memory_used_gb"] == float(first.observation.gpu_memory_used_gb)
    rewards = []
    for action in actions:
        state, timestep = step(env, state, jaxserve.validate_action(action))
        answer = post(http, "/step", action=action, session_id=session_id)
        assert answer["reward"] == close(float(timestep.reward))
        assert answer["done"] == bool(timestep.truncated)
        for name in OBSERVATION_BOUNDS:
            true = np.asarray(getattr(timestep.observation, name)).tolist()
            assert answer["observation"][name] == close(true), name
        rewards.append(answer["reward"])
    assert answer["done"]
    knobs = {knob: np.array([action[knob] for action in actions]) for knob in KNOBS}
    stacked = jaxserve.validate_action(knobs)
    key = jnp.stack([episode_key(7, "test")] * 2)
    states, _ = jax.vmap(env.reset)(key)

    def window(states: Any, action: Any) -> Any:
        return jax.vmap(env.step, (0, None))(states, action)

    _, timesteps = jax.jit(lambda s: jax.lax.scan(window, s, stacked))(states)
    np.testing.assert_allclose(np.asarray(timesteps.reward)[:, 0], rewards, atol=1e-4)
    graded = http.post("/grader", json={"session_id": session_id})
    try:
        mine = grade_actions(task, 7, stacked, "test")
    except jaxserve.InputError as error:
        assert (graded.status_code, graded.json()["error"]) == (422, str(error))
    else:
        assert graded.json()["score"] == close(mine.score)
        assert graded.json()["breakdown"] == close(mine.breakdown)
        assert graded.json()["verified"] is True
    over = http.post("/step", json={"action": {}, "session_id": session_id})
    assert over.status_code == 409
    assert (
        f"episode of session {session_id!r} is over after {horizon} windows" in over.json()["error"]
    )


def test_without_a_session_id_the_last_reset_is_meant(http: httpx.Client) -> None:
    """Reset and step with nothing else: what validators and short scripts do."""
    begun = http.post("/reset").json()
    stepped = post(http, "/step", action={"batch_cap": 8})
    assert stepped["session_id"] == begun["session_id"]
    assert http.get("/state").json()["step_count"] == 1
    assert post(http, "/grader")["steps"] == 1


def test_nobody_plays_another_clients_default_session(
    http: httpx.Client, server: LocalServer
) -> None:
    """It is of the address that began it over HTTP; sessions of WebSockets, of MCP and of
    ServeClient are nobody's."""
    mine = post(http, "/reset", task_id=1, seed=1)["session_id"]
    elsewhere = httpx.HTTPTransport(local_address="127.0.0.2")
    call = {"name": "reset", "arguments": {"task_id": 2}}
    with (
        ServeClient(server.url) as socket,
        httpx.Client(base_url=server.url, transport=elsewhere, timeout=600.0) as other,
    ):
        socket.reset(task_id=2, seed=1)
        rpc = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
        assert "session_id" in post(http, "/mcp", **rpc)["result"]
        apart = http.post("/reset", headers={"X-Default-Session": "no"}).json()["session_id"]
        assert other.post("/step", json={"action": {}}).status_code == 404
        theirs = post(other, "/reset", task_id=3, seed=1)["session_id"]
        assert post(other, "/step", action={})["session_id"] == theirs
        assert post(http, "/step", action={"batch_cap": 1})["session_id"] == mine
        assert socket.step({}).info["step"] == 1
    assert http.get("/state", params={"session_id": apart}).json()["step_count"] == 0


def test_two_names_of_a_session_that_differ_are_refused(http: httpx.Client) -> None:
    """Wherever they stand, and neither session changes."""
    one, other = (post(http, "/reset", task_id=1, seed=1)["session_id"] for _ in range(2))
    twice = [("X-Session-Id", one), ("X-Session-Id", other)]
    for body, query, headers in (
        ({"session_id": one}, {"session_id": other}, []),
        ({"session_id": one}, {}, twice[1:]),
        ({}, {"session_id": one}, twice[1:]),
        ({}, {}, twice),
    ):
        step = {"action": {}} | body
        answer = http.post("/step", json=step, params=query, headers=headers)
        assert answer.status_code == 422 and "name one session" in answer.json()["error"]
    answer = http.get(f"/state?session_id={one}&session_id={other}")
    assert answer.json()["error"] == "query 'session_id' is given twice; name it once"
    graded = http.post("/grader", json={"task_id": 1, "seed": 1, "actions": []}, headers=twice[:1])
    assert "a session is named beside actions" in graded.json()["error"]
    for name in (one, other):
        assert http.get("/state", params={"session_id": name}).json()["step_count"] == 0
    same = {"session_id": one, "action": {}}
    assert http.post("/step", json=same, headers=twice[:1]).status_code == 200


def test_a_session_can_be_named_in_body_query_and_header(http: httpx.Client) -> None:
    """Three ways, one session, and others beside it untouched."""
    mine = post(http, "/reset", task_id=2, seed=1)["session_id"]
    other = post(http, "/reset", task_id=1, seed=1)["session_id"]
    post(http, "/step", action={}, session_id=mine)
    http.post("/step", json={"action": {}}, params={"session_id": mine})
    http.post("/step", json={"action": {}}, headers={"X-Session-Id": mine})
    assert http.get("/state", params={"session_id": mine}).json()["step_count"] == 3
    assert http.get("/state", headers={"X-Session-Id": other}).json()["step_count"] == 0
    assert http.get("/state").json()["session_id"] == other


@pytest.mark.parametrize(
    ("asked", "task"),
    [(1, "static_workload"), ("2", "bursty_workload"), (3, "adversarial_multitenant")]
    + [(name, name) for name in task_names()],
)
def test_tasks_have_numbers_and_names(http: httpx.Client, asked: Any, task: str) -> None:
    """Both earlier ways to ask for a task."""
    for field in ("task_id", "task"):
        begun = post(http, "/reset", **{field: asked}, seed=42)
        assert (begun["info"]["task_id"], begun["info"]["seed"]) == (task, 42)


def test_earlier_names_of_knobs_mean_the_same(http: httpx.Client) -> None:
    """batch_size, kv_budget, quant_tier and so on; tiers by name; actions beside the session id."""
    own = {
        "batch_cap": 48,
        "kv_budget_fraction": 0.8,
        "speculation_depth": 3,
        "quantization_tier": 1,
        "prefill_decode_split": 1,
        "priority_routing": 1,
    }
    earlier = {
        "batch_size": 48,
        "kv_budget": 0.8,
        "spec_length": 3,
        "quant_tier": 1,
        "prefill_disagg": True,
        "priority_routing": True,
    }
    bodies = [
        {"action": own},
        {"action": earlier},
        {"action": own | {"quantization_tier": "INT8"}},
        earlier,
    ]
    rewards = set()
    for body in bodies:
        session_id = post(http, "/reset", task_id=3, seed=5)["session_id"]
        for _ in range(5):
            reward = post(http, "/step", **body, session_id=session_id)["reward"]
        rewards.add(reward)
    assert len(rewards) == 1


def test_the_first_twelve_fields_are_plain_numbers(http: httpx.Client) -> None:
    """What both earlier projects read."""
    observation = post(http, "/reset", task_id=1)["observation"]
    assert all(type(value) is float for value in list(observation.values())[:12])


def test_config_changes_weights_and_traffic(http: httpx.Client) -> None:
    """alpha..delta weigh the reward's parts; overrides change the task."""
    plain, heavy, busy = (
        post(http, "/reset", task_id=2, seed=3, config=config)["session_id"]
        for config in ({}, {"delta": 10.0}, {"rate_scale": 3.0, "horizon": 2})
    )
    parts = {}
    for name, session_id in (("plain", plain), ("heavy", heavy), ("busy", busy)):
        parts[name] = post(http, "/step", action={}, session_id=session_id)
    cost = {name: answer["info"]["reward_parts"]["cost"] for name, answer in parts.items()}
    objective = jaxserve.load_task(2).objective
    assert cost["heavy"] == pytest.approx(cost["plain"] * 10.0 / objective.cost_weight)
    rates = {name: a["observation"]["request_arrival_rate"] for name, a in parts.items()}
    assert rates["busy"] > 1.5 * rates["plain"] == 1.5 * rates["heavy"]
    assert post(http, "/step", action={}, session_id=busy)["done"]
    refused = http.post("/grader", json={"session_id": busy})
    assert refused.status_code == 409
    assert "only the task as it is has a score" in refused.json()["error"]
    assert http.post("/grader", json={"session_id": heavy}).status_code == 200


def test_state_adds_up(http: httpx.Client) -> None:
    """Totals are those of the answers."""
    begun = post(http, "/reset", task_id=3, seed=2, episode_id="mine")
    session_id = begun["session_id"]
    answers = [post(http, "/step", action={}, session_id=session_id) for _ in range(4)]
    state = http.get("/state", params={"session_id": session_id}).json()
    assert state["episode_id"] == "mine"
    assert state["step_count"] == 4
    assert state["elapsed_simulated_time_s"] == 4.0
    assert state["cumulative_reward"] == sum(answer["reward"] for answer in answers)
    served = sum(answer["info"]["requests_completed"] for answer in answers)
    assert state["total_requests_served"] == pytest.approx(served)
    assert state["total_slo_violations"] > 0.0
    assert (state["task_id"], state["done"]) == ("adversarial_multitenant", False)
    assert state["workload_phase"] in ("quiet", "normal", "busy")
    again = http.get("/observation", params={"session_id": session_id}).json()
    assert again == answers[-1]


def test_a_session_can_begin_another_episode(http: httpx.Client) -> None:
    """Reset with a session id keeps the id and starts from nothing."""
    session_id = post(http, "/reset", task_id=1, seed=1)["session_id"]
    post(http, "/step", action={}, session_id=session_id)
    again = post(http, "/reset", task_id=2, seed=1, session_id=session_id)
    assert again["session_id"] == session_id
    state = http.get("/state", params={"session_id": session_id}).json()
    assert (state["task_id"], state["step_count"]) == ("bursty_workload", 0)


def test_many_sessions_step_in_one_request(http: httpx.Client) -> None:
    """Each gets what it would have got alone, within rounding; all of them or none."""
    actions = random_actions(1, 12)
    together = [post(http, "/reset", task_id=1 + i % 3, seed=i)["session_id"] for i in range(12)]
    alone = [post(http, "/reset", task_id=1 + i % 3, seed=i)["session_id"] for i in range(12)]
    for _ in range(3):
        steps = [
            {"session_id": session_id, "action": action}
            for session_id, action in zip(together, actions, strict=True)
        ]
        answer = post(http, "/step_many", steps=steps)
        assert answer["session_id"] == together
        assert set(answer) == {"session_id", "step", "observation", "reward", "done"}
        for place, (session_id, action) in enumerate(zip(alone, actions, strict=True)):
            single = post(http, "/step", session_id=session_id, action=action)
            assert answer["reward"][place] == pytest.approx(single["reward"], abs=1e-4)
            assert answer["step"][place] == single["info"]["step"]
            assert answer["done"][place] is single["done"]
            del single["observation"]["metadata"], single["observation"]["task_id"]
            assert set(answer["observation"]) == set(single["observation"])
            for name, value in single["observation"].items():
                seen = answer["observation"][name][place]
                assert seen == pytest.approx(value, rel=1e-4, abs=1e-6)
    twice = http.post("/step_many", json={"steps": [steps[0], steps[1], steps[0]]})
    assert twice.status_code == 409
    assert f"session {together[0]!r} comes twice" in twice.json()["error"]
    unknown = http.post(
        "/step_many", json={"steps": [steps[0], {"session_id": "nobody", "action": {}}]}
    )
    assert unknown.status_code == 404
    counts = [http.get("/state", params={"session_id": s}).json()["step_count"] for s in together]
    assert counts == [3] * 12


def test_an_agent_plays_a_session_on(http: httpx.Client) -> None:
    """Each agent of the page, and it stops at the end of the episode."""
    for agent in ("default", "heuristic", "random"):
        session_id = post(http, "/reset", task_id=2, seed=1, config={"horizon": 7})["session_id"]
        results = post(http, "/agent", session_id=session_id, agent=agent, windows=4)["results"]
        results += post(http, "/agent", session_id=session_id, agent=agent, windows=9)["results"]
        assert [result["info"]["step"] for result in results] == [1, 2, 3, 4, 5, 6, 7]
        assert results[-1]["done"]
