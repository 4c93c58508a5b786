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
from jaxserve.env import ServeEnv
from jaxserve.grading import grade_actions
from jaxserve.seeds import episode_key
from jaxserve.spaces import ACTION_BOUNDS, KNOBS, OBSERVATION_BOUNDS
from jaxserve.tasks.spec import task_names

HORIZON = 200
close = functools.partial(pytest.approx, rel=1e-3, abs=1e-5)


def random_actions(seed: int, count: int) -> list[dict[str, float]]:
    """Actions over the whole ranges, each held for ten windows."""
    generator = np.random.default_rng(seed)
    drawn = [
        {
            knob: generator.integers(int(bound.low), int(bound.high) + 1).item()
            if bound.integer
            else generator.uniform(bound.low, bound.high)
            for knob, bound in ACTION_BOUNDS.items()
        }
        for _ in range(-(-count // 10))
    ]
    return [action for action in drawn for _ in range(10)][:count]


def post(http: httpx.Client, path: str, **body: Any) -> Any:
    answer = http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("task", task_names())
def test_an_episode_over_http_is_the_episode_in_process(http: httpx.Client, task: str) -> None:
    """Rewards and observations, the grade, and the vmapped program.

    The server steps sessions in batches, which is another program: close, not equal bit by bit.
    """
    actions = random_actions(3, HORIZON)
    env = jaxserve.make(task)
    step = jax.jit(ServeEnv.step)
    state, first = env.reset(episode_key(7, "test"))
    begun = post(http, "/reset", task_id=task, seed=7, split="test")
    session_id = begun["session_id"]
    assert begun["observation"]["gpu_memory_used_gb"] == float(first.observation.gpu_memory_used_gb)
    rewards, horizon = [], int(env.horizon)
    for action in actions[:horizon]:
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
    assert f"episode of session {session_id!r} is over after 200 windows" in over.json()["error"]


def test_without_a_session_id_the_last_reset_is_meant(http: httpx.Client) -> None:
    """Reset and step with nothing else: what validators and short scripts do."""
    begun = http.post("/reset").json()
    stepped = post(http, "/step", action={"batch_cap": 8})
    assert stepped["session_id"] == begun["session_id"]
    assert http.get("/state").json()["step_count"] == 1


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


def test_a_repeated_step_is_refused(http: httpx.Client) -> None:
    """An action that says which window it is for is taken once."""
    session_id = post(http, "/reset", task_id=1, seed=1)["session_id"]
    body = {"session_id": session_id, "action": {"metadata": {"step": 0}}}
    assert http.post("/step", json=body).status_code == 200
    for path, repeated in (("/step", body), ("/step_many", {"steps": [body]})):
        again = http.post(path, json=repeated)
        assert again.status_code == 409
        assert again.json()["error"] == (
            f"metadata.step is 0; session {session_id!r} is at window 1"
        )


@pytest.mark.parametrize(
    ("path", "body", "status", "named"),
    [
        ("/reset", {"task_id": "warp"}, 422, "task_id is 'warp'"),
        ("/reset", {"task_id": 99}, 422, "task_id is 99"),
        ("/reset", {"task_id": True}, 422, "task_id is True; it must be the name or the number"),
        ("/reset", {"task_id": [1]}, 422, "task_id is [1]; it must be the name or the number"),
        ("/reset", {"task_id": 1, "task": 2}, 422, "task_id is 1 and task is 2; name one"),
        ("/reset", {"task_id": "data/tasks/static_workload.json"}, 422, "task_id"),
        ("/reset", {"seed": -1}, 422, "seed is -1; it must be at least 0"),
        ("/reset", {"seed": 1.5}, 422, "seed is 1.5"),
        ("/reset", {"split": "exam"}, 422, "split is 'exam'"),
        ("/reset", {"config": {"omega": 1}}, 422, "omega"),
        ("/reset", {"config": {"alpha": -1}}, 422, "alpha"),
        ("/reset", {"config": {"horizon": 100_000}}, 422, "horizon is 100000"),
        ("/reset", {"config": {"output_ages": 9}}, 422, "output_ages is 9; it must be left out"),
        ("/reset", {"index": 10**6}, 422, "index is 1000000; it must be a whole number from 0 to"),
        ("/reset", {"index": True}, 422, "index is True; it must be a whole number"),
        ("/reset", {"config": {"x" * 300: 1}}, 422, "it must be text of at most 255 characters"),
        ("/reset", {"boost": 1}, 422, "field 'boost' is unknown; allowed are task_id,"),
        ("/reset", {"session_id": "nobody"}, 404, "session 'nobody' does not exist"),
        (
            "/step",
            {"action": {"batch_cap": 0}},
            422,
            "batch_cap is 0; it must be a whole number from 1 to 512",
        ),
        ("/step", {"action": {"batch_cap": 1.5}}, 422, "batch_cap is 1.5"),
        ("/step", {"action": {"batch_cap": True}}, 422, "batch_cap is True; it must be"),
        ("/step", {"action": {"batch_cap": None}}, 422, "batch_cap is None; it must be"),
        ("/step", {"action": {"batch_cap": [1]}}, 422, "batch_cap is [1]; it must be"),
        ("/step", {"action": {"kv_budget": 0.05}}, 422, "kv_budget_fraction is 0.05"),
        ("/step", {"action": {"quant_tier": "INT2"}}, 422, "or FP16, INT8, INT4, BF16"),
        ("/step", {"action": {"batch_cap": 1, "batch_size": 2}}, 422, "batch_cap is given twice"),
        ("/step", {"action": {"boost": 1}}, 422, "field 'boost' is unknown; allowed are batch_cap"),
        ("/step", {"action": [1, 2]}, 422, "action is [1, 2]; it must be a JSON object"),
        ("/step", [1, 2], 422, "the request is [1, 2]; it must be a JSON object"),
        ("/step", {"action": {"metadata": {"step": "x"}}}, 422, "metadata.step"),
        ("/step", {}, 422, "action is missing"),
        ("/step", {"action": {}, "session_id": "nobody"}, 404, "session 'nobody' does not exist"),
        ("/step", {"action": {}, "session_id": "no body"}, 422, "session_id is 'no body'"),
        ("/step_many", {"steps": []}, 422, "steps is []; it must be a list of at least 1 entries"),
        ("/step_many", {"steps": [5]}, 422, "steps.0 is 5; it must be a JSON object"),
        ("/agent", {"windows": 201}, 422, "windows is 201; it must be at most 200"),
        ("/agent", {"agent": "wizard"}, 422, "agent is 'wizard'"),
        ("/agent", {"agent": "regime_oracle"}, 422, "agent is 'regime_oracle'; it must be one of"),
        ("/baseline", {"agent": "planner"}, 422, "agent is 'planner'; it must be one of random,"),
        ("/baseline", {"use_openai": 1}, 422, "use_openai is 1"),
        ("/grader", {"session_id": "nobody"}, 404, "session 'nobody' does not exist"),
    ],
)
def test_bad_input_gets_one_sentence(
    http: httpx.Client, path: str, body: Any, status: int, named: str
) -> None:
    """4xx, the field, its value, what is allowed; and the session is as it was."""
    session_id = post(http, "/reset", task_id=1, seed=1)["session_id"]
    answer = http.post(path, json=body)
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert named in error
    assert "\n" not in error
    assert http.get("/state", params={"session_id": session_id}).json()["step_count"] == 0


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_none_are_refused(http: httpx.Client, text: str) -> None:
    """Python's JSON reads them; the environment must not."""
    http.post("/reset")
    content = f'{{"action": {{"kv_budget_fraction": {text}}}}}'
    answer = http.post("/step", content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422
    assert answer.json()["error"].endswith("it must be a number from 0.1 to 1")


@pytest.mark.parametrize(
    ("content", "kind", "said"),
    [
        ("{", "application/json", "expecting property name"),
        ("[" * 100_000, "application/json", "it nests too deeply"),
        (b'{"action": {"\xff": 1}}', "application/json", "its text is not Unicode"),
        (f'{{"seed": {"9" * 5000}}}', "application/json", "thousands of digits"),
        ('{"action": {}}', "text/plain", "it needs Content-Type: application/json"),
        ("a=b", "application/x-www-form-urlencoded", "it needs Content-Type: application/json"),
    ],
    ids=["half", "deep", "bytes", "long number", "text", "form"],
)
def test_what_is_no_json_is_refused(
    http: httpx.Client, content: str | bytes, kind: str, said: str
) -> None:
    """With the reason."""
    answer = http.post("/step", content=content, headers={"Content-Type": kind})
    assert answer.status_code in (400, 422)
    assert said in answer.json()["error"]


@pytest.mark.parametrize(
    ("method", "path", "status", "said"),
    [
        ("GET", "/nowhere", 404, "'/nowhere' is no route of this server"),
        ("GET", "/step", 405, "GET is not allowed for '/step'; allowed is POST"),
        ("GET", "/baseline?agent=wizard", 422, "agent is 'wizard'; it must be one of random,"),
        ("GET", "/baseline?seed=-1", 422, "seed is '-1'; it must be at least 0"),
        ("GET", "/state?session_id=a%20b", 422, "session_id is 'a b'; it must be the id that"),
    ],
)
def test_wrong_addresses_get_one_sentence(
    http: httpx.Client, method: str, path: str, status: int, said: str
) -> None:
    """As wrong bodies do."""
    answer = http.request(method, path)
    assert answer.status_code == status
    assert answer.json()["error"].startswith(said)


def test_nan_in_a_config_is_named(http: httpx.Client) -> None:
    """By the field it is in."""
    headers = {"Content-Type": "application/json"}
    answer = http.post("/reset", content='{"config": {"alpha": NaN}}', headers=headers)
    assert answer.status_code == 422
    assert answer.json()["error"].startswith("config: alpha is nan; it must be")


def test_an_agent_plays_a_session_on(http: httpx.Client) -> None:
    """Each agent of the page, and it stops at the end of the episode."""
    for agent in ("default", "heuristic", "random"):
        session_id = post(http, "/reset", task_id=2, seed=1, config={"horizon": 7})["session_id"]
        results = post(http, "/agent", session_id=session_id, agent=agent, windows=4)["results"]
        results += post(http, "/agent", session_id=session_id, agent=agent, windows=9)["results"]
        assert [result["info"]["step"] for result in results] == [1, 2, 3, 4, 5, 6, 7]
        assert results[-1]["done"]


def test_the_log_of_a_session_is_graded_like_the_session(http: httpx.Client) -> None:
    """What is downloaded is what was played, whether stepped alone or together."""
    session_id = post(http, "/reset", task_id=3, seed=4, split="test")["session_id"]
    rewards = []
    for number, action in enumerate(random_actions(2, 20)):
        if number % 3:
            rewards.append(post(http, "/step", session_id=session_id, action=action)["reward"])
        else:
            steps = [{"session_id": session_id, "action": action}]
            rewards.append(post(http, "/step_many", steps=steps)["reward"][0])
    log = http.get("/episode_log", params={"session_id": session_id}).json()
    assert [entry["reward"] for entry in log["episode_log"][1:]] == rewards
    fields = {name: log[name] for name in ("task_id", "seed", "split", "episode_log")}
    by_log = post(http, "/grader", **fields)
    assert by_log == post(http, "/grader", session_id=session_id)
    assert by_log == post(http, "/grader", **log)
    for changed, said in (
        ({"task_version": 99}, "task_version is 99"),
        ({"config": {"horizon": 5}}, "config has horizon; only reward weights"),
    ):
        refused = http.post("/grader", json=log | changed)
        assert refused.status_code == 422
        assert said in refused.json()["error"]


def test_what_is_not_played_is_worth_nothing(http: httpx.Client) -> None:
    """A session without a window, and no actions at all."""
    session_id = post(http, "/reset", task_id=1, seed=4)["session_id"]
    for body in ({"session_id": session_id}, {"task_id": 1, "seed": 4, "actions": []}):
        grade = post(http, "/grader", **body)
        assert (grade["score"], grade["steps"]) == (0.0, 0)


def test_a_session_is_graded_as_what_it_is(http: httpx.Client) -> None:
    """A task, seed or split beside it must be its own."""
    session_id = post(http, "/reset", task_id=2, seed=4, split="test")["session_id"]
    own = {"task_id": 2, "seed": 4, "split": "test"}
    assert post(http, "/grader", session_id=session_id, **own)["task_id"] == "bursty_workload"
    for name, other in (("task_id", "azure_code"), ("seed", 5), ("split", "train")):
        refused = http.post("/grader", json={"session_id": session_id, name: other})
        assert refused.status_code == 422
        assert f"{name} is {other!r}, but the session's is" in refused.json()["error"]


@pytest.mark.slow
def test_a_baseline_plays_every_task_and_is_remembered(http: httpx.Client) -> None:
    """The same figures as an agent that drives a session of the same seed."""
    answer = http.get("/baseline", params={"agent": "default", "seed": 3}, timeout=600.0).json()
    assert list(answer["baseline"]) == list(task_names())
    session_id = post(http, "/reset", task_id=2, seed=3, split="test")["session_id"]
    post(http, "/agent", session_id=session_id, agent="default", windows=200)
    grade = post(http, "/grader", session_id=session_id)
    assert answer["baseline"]["bursty_workload"]["score"] == grade["score"]
    assert http.get("/baseline", params={"agent": "default", "seed": 3}).json() == answer
