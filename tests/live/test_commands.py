"""What the commands for real deployments refuse: one sentence, exit code 2, and no file."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

from jaxserve import cli
from jaxserve.agents.network import NetworkPolicy, Normaliser, network_for
from jaxserve.agents.open_loop import StaticPolicy
from jaxserve.agents.task_setup import TaskSetup, load_setup
from jaxserve.agents.weights import save_weights
from jaxserve.datafiles import data_dir
from jaxserve.gateway.settings import CONTROL_TOKEN_VARIABLE, AccessTokens
from jaxserve.learning.ppo_config import PPOConfig
from jaxserve.learning.run_options import provenance
from jaxserve.spaces import make_action
from server.local import free_port
from tests.gateway.gateway_thread import RunningGateway
from tests.gateway.knob_engines import PluginEngine
from tests.live.deployment import TASK


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A task file in an empty folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.json").write_text(json.dumps(TASK))
    return "mine.json"


@pytest.fixture
def engine() -> Iterator[PluginEngine]:
    """An engine with knobs. To be named before ``capsys``: uvicorn closes the handlers of logging,
    of which one may have what pytest reads."""
    with PluginEngine() as running:
        yield running


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one sentence of a command that fails."""
    assert cli.main(arguments) == 2
    error = capsys.readouterr().err.splitlines()
    assert not any("Traceback" in line for line in error)
    return error[-1].removeprefix("jaxserve: ")


def test_live_task(engine: PluginEngine, task: str, capsys: pytest.CaptureFixture[str]) -> None:
    """From a gateway that is there, into a file that is none yet."""
    nobody = f"http://127.0.0.1:{free_port()}"
    made = ["live-task", "--task", task, "--out", "live.json", "--gateway"]
    assert "the gateway cannot be reached" in refused(capsys, *made, nobody)
    assert "--gateway is 'localhost'" in refused(capsys, *made, "localhost")
    made[4] = "live.txt"
    assert "--out is 'live.txt'" in refused(capsys, *made, nobody)
    made[4] = "live.json"
    with RunningGateway([engine]) as gateway:
        engine.metrics = b"garbage"
        assert "no engine shows its metrics" in refused(capsys, *made, gateway.control_url)
        assert not Path("live.json").exists()
        other = str(data_dir() / "tables" / "llama-3.1-8b__h100-sxm-80gb.parquet")
        said = refused(capsys, *made, gateway.control_url, "--table", other)
        assert "does not say what was measured" in said


def test_live_task_says_why_a_knob_is_not_offered(
    engine: PluginEngine, task: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A token that the engine refused would otherwise look like an engine with fewer knobs."""
    engine.says = (401, b'{"error": "the token is wrong"}')
    with RunningGateway([engine]) as gateway:
        made = ["live-task", "--task", task, "--out", "live.json"]
        assert cli.main([*made, "--gateway", gateway.control_url]) == 0
    said = capsys.readouterr().out
    assert "batch_cap: approximated" in said
    assert "engine vllm-0 offers no other knob: engine vllm-0 refused: the token is wrong" in said


def test_operate_and_send(task: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Agents that nobody can be, and nobody to talk to."""
    nobody = f"http://127.0.0.1:{free_port()}"
    operate = ["operate", "--task", task, "--log", "x.jsonl", "--gateway", nobody]
    for option, value, sentence in (
        ("--agent", "planner", "--agent is planner, which is shown the simulator's state"),
        ("--windows", "0", "--windows is 0"),
        ("--answer-s", "0", "--answer-s is 0"),
        ("--answer-s", "0.6", "--answer-s is 0.6; it must be a number from 0.001 to 0.5"),
        ("--metrics-port", "70000", "--metrics-port is 70000"),
        ("--most-changes", "cap=2", "a knob of --most-changes is 'cap'; it must be one of batch_c"),
        ("--most-changes", "batch_cap=few", "batch_cap of --most-changes is 'few'"),
    ):
        assert sentence in refused(capsys, *operate, option, value)
    seen = ["--metrics-port", "0", "--metrics-host", "0.0.0.0"]
    assert "--metrics-host is 0.0.0.0, which other" in refused(capsys, *operate, *seen)
    assert "cannot be reached" in refused(capsys, "send", "--task", task, "--url", nobody)
    assert "--seed is -1" in refused(capsys, "send", "--task", task, "--seed", "-1")
    assert "the gateway cannot be reached" in refused(capsys, "switch", "off", "--gateway", nobody)
    assert not Path("x.jsonl").exists()


def trained(folder: Path, setup: TaskSetup) -> str:
    """Weights of a network that says it was trained on ``setup``."""
    network = network_for(setup.env, width=8)
    params = network.initial_params(jax.random.key(0))
    policy = NetworkPolicy(params, Normaliser.create(), network)
    made = provenance(setup, PPOConfig(), (0,), 0, 0.5, 4)
    save_weights(folder, policy, setup.spec, made)
    return str(folder)


@pytest.mark.slow
def test_weights_from_elsewhere_ask_first(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They turn no knob unless the operator says that they may; shadow says it and goes on. The
    trace that they were trained on does not count, because the traffic is real."""
    static = StaticPolicy(make_action())
    monkeypatch.setattr("jaxserve.agents.panel.best_static_policy", lambda *_: static)
    (tmp_path / "other.json").write_text(json.dumps(TASK | {"horizon": 100}))
    elsewhere = trained(tmp_path / "elsewhere", load_setup("other.json"))
    own = load_setup(task)
    recorded = dataclasses.replace(own, inputs={**own.inputs, "trace": "0" * 16})
    here = trained(tmp_path / "here", recorded)
    nobody = f"http://127.0.0.1:{free_port()}"
    operate = ["operate", "--task", task, "--log", "x.jsonl", "--gateway", nobody, "--weights"]
    sentence = "were trained on other (h100-sxm-80gb); they play mine (h100-sxm-80gb) here"
    assert "there are no weights for mine" in refused(capsys, *operate[:-1], "--mode", "guarded")
    for mode in ("guarded", "free"):
        steered = [*operate, elsewhere, "--mode", mode]
        found = refused(capsys, *steered)
        assert sentence in found
        assert found.endswith(f"--mode {mode} turns knobs by them with --trained-elsewhere")
        assert not Path("x.jsonl").exists()
        for arguments in ([*steered, "--trained-elsewhere"], [*operate, here, "--mode", mode]):
            assert "the gateway cannot be reached" in refused(capsys, *arguments)
            Path("x.jsonl").unlink()
    for weights, warned in ((elsewhere, True), (here, False)):
        assert cli.main([*operate, weights]) == 2
        error = capsys.readouterr().err
        assert (sentence in error) is warned and "the gateway cannot be reached" in error


def test_live_log(task: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Files that are no logs."""
    log = ["live-log", "x.jsonl", "--task", task]
    assert "cannot be read: No such file" in refused(capsys, *log)
    Path("x.jsonl").write_text('{"kind": "header", "spec_version": 1, "task": "mine"}\n')
    assert "has no window" in refused(capsys, *log)


def test_the_switch(
    engine: PluginEngine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Off and on, with the token of the gateway."""
    with RunningGateway([engine], tokens=AccessTokens(control="secret")) as gateway:
        url = gateway.control_url
        assert "asks for a token" in refused(capsys, "switch", "off", "--gateway", url)
        monkeypatch.setenv(CONTROL_TOKEN_VARIABLE, "secret")
        gateway.control.headers["authorization"] = "Bearer secret"
        turned = {"lease_s": 60, "knobs": {"batch_cap": 8}}
        assert gateway.control.put("/control/knobs", json=turned).status_code == 200
        for position, held, cap in (("off", True, 64), ("on", False, 64)):
            assert cli.main(["switch", position, "--gateway", url]) == 0
            assert capsys.readouterr().out == f"control is {position}\n"
            assert gateway.control.get("/control/knobs").json()["held"] is held
            assert engine.now("batch_cap") == cap
