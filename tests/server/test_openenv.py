"""What OpenEnv asks for: its validators, its own client, its protocol and Task API."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest
from openenv.cli._validation import validate_multi_mode_deployment, validate_running_environment
from openenv.core.env_server.serialization import serialize_observation
from openenv.core.generic_client import GenericEnvClient
from openenv.validation.providers import ExecResult
from openenv.validation.runner import run_validation
from openenv.validation.types import CheckStatus, Level, ProviderCapability
from websockets.sync.client import connect

from jaxserve.tasks.spec import task_names
from server.local import LocalServer
from server.sessions.episodes import MAX_SERVED_HORIZON, parse_episode
from server.sessions.session import new_session
from server.wire import schemas

_ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the validators read of a checkout."""
    folder = tmp_path_factory.mktemp("package")
    for name in ("openenv.yaml", "pyproject.toml", "uv.lock", "Dockerfile", "README.md"):
        shutil.copy(_ROOT / name, folder)
    for name in ("server", "validation"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(_ROOT / name, folder / name, ignore=ignored)
    return folder


def test_validate_url_meets_every_criterion(server: LocalServer) -> None:
    """openenv validate --url: six of six."""
    report = validate_running_environment(server.url)
    assert report["passed"], report
    assert [criterion["passed"] for criterion in report["criteria"]] == [True] * 6


class StartedServer:
    """A server that runs already, as OpenEnv's validators see a container."""

    def __init__(self, url: str) -> None:
        self.base_url = url

    def inspect(self) -> dict[str, Any]:
        return {}

    def logs(self, max_bytes: int = 65536) -> str:
        return ""

    def exec(self, argv: list[str], timeout_s: float) -> ExecResult:
        return ExecResult(0, "", "", 0.0)

    def stop(self) -> None:
        pass


class RunningProvider:
    """Builds and starts nothing."""

    name = "running"
    capabilities = frozenset({ProviderCapability.IMAGE_BUILD})
    supported_network_modes = frozenset({"no-network"})

    def __init__(self, url: str) -> None:
        self._url = url

    def build(self, root: Path, execution: Any) -> str:
        return "sha256:" + "0" * 64

    def start(self, spec: Any) -> StartedServer:
        return StartedServer(self._url)


def test_validate_runs_its_graders_on_the_server(server: LocalServer, package: Path) -> None:
    """openenv validate: the manifest, and the runtime graders on a probe of four actions."""
    report = run_validation(package, max_level=Level.RUNTIME, provider=RunningProvider(server.url))
    found = {check.check_id: check for check in report.results}
    for name in (
        "static.manifest",
        "runtime.startup",
        "runtime.reward_well_formed",
        "runtime.observation_schema",
        "runtime.state_contract",
    ):
        assert found[name].status is CheckStatus.PASS, found[name]
    assert not [check for check in report.results if check.status is CheckStatus.FAIL]


def test_the_checkout_is_ready_for_every_deployment(package: Path) -> None:
    """pyproject, uv.lock, the entry point and a guarded main: what openenv-core looks at."""
    assert validate_multi_mode_deployment(package) == (True, [])


def test_openenvs_own_client_plays(server: LocalServer) -> None:
    """GenericEnvClient over the WebSocket."""
    with GenericEnvClient(base_url=server.url).sync() as env:
        begun = env.reset(task_id=2, seed=3, episode_id="generic")
        assert begun.observation["queue_depth"] == 0.0
        assert begun.done is False
        for number in range(1, 4):
            result = env.step({"batch_cap": 64})
            assert result.reward is not None
            assert result.observation["step_index"] == number
        state = env.state()
        assert (state["episode_id"], state["step_count"]) == ("generic", 3)
        assert state["cumulative_reward"] != 0.0
        said = r"batch_cap is 0; it must be a whole number from 1 to 512 \(code: VALIDATION_ERROR"
        with pytest.raises(RuntimeError, match=said):
            env.step({"batch_cap": 0})
        assert env.step({}).observation["step_index"] == 4


def test_sockets_have_sessions_of_their_own(server: LocalServer) -> None:
    """Two in turn; each may go on with the other's only by its id."""
    address = server.url.replace("http", "ws") + "/ws"

    def say(socket: Any, kind: str, **data: Any) -> Any:
        socket.send(json.dumps({"type": kind} | ({"data": data} if kind != "state" else {})))
        return json.loads(socket.recv())

    with connect(address) as one, connect(address) as two:
        assert say(one, "step")["data"]["message"] == (
            "no episode has been started; call reset first"
        )
        ids = [
            say(socket, "reset", task_id=3, seed=seed)["data"]["metadata"]["session_id"]
            for seed, socket in enumerate((one, two))
        ]
        assert ids[0] != ids[1]
        say(one, "step", batch_size=64)
        assert say(one, "state")["data"]["step_count"] == 1
        assert say(two, "state")["data"]["step_count"] == 0
        again = say(one, "reset", task_id=1, seed=9)["data"]["metadata"]
        assert (again["session_id"], again["step"]) == (ids[0], 0)
        taken_over = say(two, "reset", resume=ids[0])["data"]["metadata"]
        assert (taken_over["session_id"], taken_over["seed"]) == (ids[0], 9)
        for wrong, named in (
            ({"resume": "nobody"}, "does not exist"),
            ({"seed": "abc"}, "seed is 'abc'"),
            ({"seed": -1}, "seed is -1"),
            ({"task_id": "warp"}, "task_id is 'warp'"),
            ({"boost": 1}, "field 'boost' is unknown"),
            ({"self": 1}, "field 'self' is unknown"),
            ({"resume": ids[0], "task_id": 2}, "takes nothing else; task_id is given"),
        ):
            answer = say(two, "reset", **wrong)
            assert answer["type"] == "error"
            assert named in answer["data"]["message"]


def test_the_task_api_lists_what_reset_plays(http: httpx.Client) -> None:
    """Splits, entries of them, and an episode by split and index."""
    splits = http.get("/jaxserve/splits").json()
    assert [split["type"] for split in splits] == ["train", "validation", "test"]
    count = http.post("/jaxserve/num_tasks", json={"split": "test"}).json()["num_tasks"]
    listed = http.post("/jaxserve/tasks", json={"split": "test"}).json()["tasks"]
    assert len(listed) == count
    assert {entry["task_id"] for entry in listed} == set(task_names())
    one = http.post("/jaxserve/task", json={"split": "test", "index": 8}).json()["task"]
    some = http.post("/jaxserve/task_range", json={"split": "test", "start": 8, "stop": 10})
    assert some.json()["tasks"] == listed[8:10]
    assert one == listed[8]
    info = http.post("/reset", json={"split": "test", "index": 8}).json()["info"]
    assert (info["task_id"], info["seed"], info["split"]) == (one["task_id"], one["seed"], "test")
    for path, wrong, said in (
        (
            "task",
            {"index": count},
            f"index is {count}; it must be a whole number from 0 to {count - 1}",
        ),
        ("task", {"index": -1}, "index is -1; it must be a whole number from 0 to"),
        ("task_range", {"start": -3}, "start is -3; it must be a whole number from 0 on"),
        ("num_tasks", {"split": "exam"}, "split is 'exam'; it must be one of train,"),
    ):
        refused = http.post(f"/jaxserve/{path}", json={"split": "test"} | wrong)
        assert refused.status_code == 422
        assert refused.json()["error"].startswith(said)


def rpc(http: httpx.Client, method: str, **params: Any) -> Any:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return http.post("/mcp", json=body).json()


def call(http: httpx.Client, tool: str, **arguments: Any) -> Any:
    return rpc(http, "tools/call", name=tool, arguments=arguments)


def test_an_agent_with_tools_can_play(http: httpx.Client) -> None:
    """reset, step, observe, grade and list_tasks over MCP."""
    tools = {tool["name"] for tool in rpc(http, "tools/list")["result"]["tools"]}
    assert tools == {"reset", "step", "observe", "grade", "list_tasks"}
    known = call(http, "list_tasks")["result"]["tasks"]
    assert [task["task_id"] for task in known] == list(task_names())
    begun = call(http, "reset", task_id="bursty_workload", seed=3, split="test")["result"]
    session_id = begun["session_id"]
    stepped = call(http, "step", session_id=session_id, action={"batch_size": 64})["result"]
    assert stepped["info"]["step"] == 1
    seen = call(http, "observe", session_id=session_id)["result"]
    assert (seen["reward"], seen["state"]["step_count"]) == (stepped["reward"], 1)
    assert call(http, "grade", session_id=session_id)["result"]["steps"] == 1
    for tool, arguments, named in (
        ("step", {"session_id": session_id}, "action is missing; step takes session_id, action"),
        ("observe", {"session_id": session_id, "boost": 1}, "argument 'boost' is unknown"),
        ("reset", {"task_id": "warp"}, "task_id is 'warp'"),
    ):
        assert named in call(http, tool, **arguments)["error"]["message"]


def test_tools_are_steps_for_the_client_of_openenv_core(server: LocalServer) -> None:
    """MCPToolClient of openenv-core 0.3 lists and calls tools by actions of a step, before a reset
    too; what a tool plays is part of the connection's session."""
    with connect(server.url.replace("http", "ws") + "/ws") as socket:

        def step(**action: Any) -> Any:
            socket.send(json.dumps({"type": "step", "data": action}))
            answer = json.loads(socket.recv(timeout=300.0))
            assert set(answer["data"]) >= {"observation", "reward", "done"}, answer
            return answer["data"]

        def use(tool: str, **arguments: Any) -> Any:
            return step(type="call_tool", tool_name=tool, arguments=arguments)

        listed = step(type="list_tools")["observation"]["tools"]
        assert {tool["name"] for tool in listed} >= {"reset", "step", "grade"}
        assert all(tool["description"] and tool["input_schema"] for tool in listed)
        socket.send(json.dumps({"type": "reset", "data": {"task_id": 1, "seed": 3}}))
        own = json.loads(socket.recv(timeout=300.0))["data"]["metadata"]["session_id"]
        stepped = use("step", session_id=own, action={"batch_cap": 64})
        assert stepped["observation"]["result"]["info"]["step"] == 1
        assert stepped["reward"] == stepped["observation"]["result"]["reward"]
        assert stepped["observation"]["error"] is None and stepped["done"] is False
        socket.send(json.dumps({"type": "state"}))
        assert json.loads(socket.recv(timeout=300.0))["data"]["step_count"] == 1
        assert step(batch_cap=64)["observation"]["step_index"] == 2
        for tool, arguments, kind, said in (
            ("warp", {}, "tool_not_found", "tool_name is 'warp'; it must be one of "),
            ("observe", {"boost": 1}, "invalid_args", "argument 'boost' is unknown"),
            ("observe", {"session_id": "nobody"}, "execution_error", "session 'nobody' does"),
        ):
            error = use(tool, **arguments)["observation"]["error"]
            assert (error["error_type"], error["message"][: len(said)]) == (kind, said)


def test_a_step_is_answered_as_openenv_writes_it() -> None:
    """The server writes the answer itself, which takes a part of the time."""
    episode = parse_episode("bursty_workload", 5, "train", None)
    view = new_session(None, None, episode).view()
    assert schemas.socket_answer(view) == serialize_observation(schemas.observation(view))


def test_the_earlier_projects_routes_answer(http: httpx.Client) -> None:
    """/tasks, /info, /runtime, /metadata, and pages that lead to the page."""
    tasks = http.get("/tasks").json()
    assert [task["id"] for task in tasks["tasks"][:3]] == [1, 2, 3]
    assert tasks["tasks"][0]["active_knobs"] == ["batch_cap", "kv_budget_fraction"]
    assert "batch_cap" in tasks["action_schema"]["properties"]
    info = http.get("/info").json()
    assert set(info["reward_weights"]["static_workload"]) == {"alpha", "beta", "gamma", "delta"}
    schema = http.get("/schema").json()
    assert schema["observation"] == info["observation_schema"]
    runtime = http.get("/runtime").json()
    assert (runtime["backend"], runtime["max_windows"]) == ("cpu", MAX_SERVED_HORIZON)
    assert http.get("/metadata").json()["name"] == "jaxserve"
    for path in ("/", "/demo"):
        answer = http.get(path)
        assert (answer.status_code, answer.headers["location"]) == (307, "web")
    page = http.get("/web", follow_redirects=True)
    assert page.url.path == "/dashboard/"
    assert "<title>jaxserve</title>" in page.text


@pytest.mark.slow
def test_openenvs_own_interface_has_the_page_as_a_tab(start_server: Any) -> None:
    """ENABLE_WEB_INTERFACE=true: gradio at /web, everything else as ever."""
    server = start_server(ENABLE_WEB_INTERFACE="true")
    with httpx.Client(base_url=server.url, timeout=300.0, follow_redirects=True) as http:
        assert "gradio" in http.get("/web").text
        config = http.get("/web/config").text
        assert "/dashboard/" in config
        assert "<title>jaxserve</title>" in http.get("/dashboard/").text
        http.post("/reset", json={"task_id": 1, "seed": 1})
        assert http.post("/step", json={"action": {}}).json()["info"]["step"] == 1
        begun = http.post("/web/reset", json={}).json()
        assert begun["done"] is False
        stepped = http.post("/web/step", json={"action": {"batch_cap": 8}}).json()
        assert stepped["observation"]["step_index"] == 1.0
        refused = http.post("/web/step", json={"action": {"batch_cap": 0}})
        assert refused.status_code == 422
        assert refused.json()["error"].startswith("batch_cap is 0; it must be")
