"""``jaxserve operate`` on a fleet: what it refuses, and real processes."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import signal
import sys
from pathlib import Path

import jax.numpy as jnp
import pytest

from jaxserve import cli
from jaxserve.agents.open_loop import StaticPolicy
from jaxserve.runtime.child_processes import ports_in_a_row
from jaxserve.spaces import make_action
from tests.gateway.gateway_thread import RunningGateway
from tests.live.deployment import TASK

SLEEP = ["--start", "sleep {port}"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "which opens replicas; one of --start and --kubernetes says where"),
        ([*SLEEP, "--kubernetes", "a/b"], "one of --start and --kubernetes says where"),
        (["--start", "vllm serve MODEL"], "it must name its port as {port}"),
        (["--kubernetes", "engines"], "--kubernetes is 'engines'; it must be NAMESPACE/NAME"),
        ([*SLEEP, "--drain-s", "-1"], "--drain-s is -1"),
        ([*SLEEP, "--first-port", "65530"], "--first-port is 65530"),
        (["--task", "bursty_workload", *SLEEP], "which does not open replicas"),
    ],
)
def test_options_that_cannot_be(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence, and no log."""
    log = tmp_path / "x.jsonl"
    operate = ["operate", "--task", "fleet_mixed", "--agent", "default", "--log", str(log)]
    assert cli.main([*operate, *options]) == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert not log.exists()


@pytest.mark.slow
def test_real_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two engines are started from nothing and get the batch cap; all is in the log, and the
    engines outlive the command."""
    task = copy.deepcopy(TASK)
    task |= {"knobs": ["replicas", "batch_cap"], "window_s": 4.0}
    task["deployment"] = {"num_gpus": 2, "fleet": {"start_s": [60, 120]}}
    (tmp_path / "fleet.json").write_text(json.dumps(task))
    static = StaticPolicy(make_action(batch_cap=8).replace(replicas=jnp.int32(0)))
    monkeypatch.setattr("jaxserve.agents.panel.best_static_policy", lambda *_: static)
    ports = ports_in_a_row(2)
    engines = [f"vllm=http://127.0.0.1:{port}" for port in ports]
    engine = f"{sys.executable} -m jaxserve.cli mock-engine --model llama-3.1-8b"
    log = tmp_path / "log.jsonl"
    folder = tmp_path / "jaxserve-scale"
    try:
        with RunningGateway(engines, slo=["chat:ttft=0.5,tpot=0.05"]) as gateway:
            code = cli.main([
                "operate", "--task", str(tmp_path / "fleet.json"), "--agent", "default",
                "--log", str(log), "--gateway", gateway.control_url, "--mode", "free",
                "--start", f"{engine} --hardware h100-sxm-80gb --port {{port}}",
                "--first-port", str(ports[0]), "--windows", "8",
            ])  # fmt: skip
        assert code == 0
        lines = list(map(json.loads, log.read_text().splitlines()))
        windows = [line for line in lines if line["kind"] == "window"]
        # A busy machine may fall back to the static cap in some of them.
        both = [line for line in windows if line["observation"]["replicas_ready"] == 2]
        assert {line["told"]["replicas"] for line in both} == {2.0}
        caps = [line["echo"]["batch_cap"] for line in both]
        assert any(cap["asked"] == cap["now"] in (8.0, 64.0) for cap in caps)
        assert sorted(file.name for file in folder.glob("*.pid")) == ["place-0.pid", "place-1.pid"]
    finally:
        for file in folder.glob("*.pid"):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(int(file.read_text()), signal.SIGKILL)
