"""What jaxserve scale refuses: one sentence, exit code 2, and nothing is started."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jaxserve import cli
from jaxserve.scaling.setting import RuleSetting, parse_rule, rule_data
from server.local import free_port
from tests.gateway.gateway_thread import RunningGateway
from tests.live.replicas.test_scaler import FLEET

RULE = rule_data(RuleSetting("hpa_running", (4.0, 300.0)), FLEET)
SLEEP = ["--start", "sleep {port}"]


def changed(name: str, **values: Any) -> dict[str, Any]:
    """The rule with other values in one part; None takes a field away."""
    part = {key: value for key, value in (RULE[name] | values).items() if value is not None}
    return RULE | {name: part}


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ([], "--rule is []; it must be a JSON object"),
        (RULE | {"kind": "hpa_runing"}, "--rule: kind is 'hpa_runing'; it must be one of static,"),
        (changed("values", target=None), "--rule: values: target is missing"),
        (changed("values", goal=1.0), "field 'goal' is unknown"),
        (changed("values", target="four"), "target is 'four'; it must be a finite number"),
        (changed("fleet", window_s=0), "window_s is 0; it must be a finite number above 0"),
        (changed("fleet", most=2.5), "most is 2.5; it must be a whole number"),
        (changed("fleet", least=4), "--rule: least is 4, above most, 3"),
        (changed("fleet", pods=3), "field 'pods' is unknown"),
    ],
)
def test_rules_that_cannot_be(
    rule: Any, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The field is named."""
    (tmp_path / "rule.json").write_text(json.dumps(rule))
    assert cli.main(["scale", "--rule", str(tmp_path / "rule.json"), *SLEEP]) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert message in error


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "one of --start and --kubernetes says where replicas run"),
        ([*SLEEP, "--kubernetes", "a/b"], "one of --start and --kubernetes"),
        (["--start", "vllm serve MODEL"], "it must name its port as {port}"),
        (["--kubernetes", "engines"], "--kubernetes is 'engines'; it must be NAMESPACE/NAME"),
        ([*SLEEP, "--drain-s", "-1"], "--drain-s is -1"),
        ([*SLEEP, "--first-port", "65535"], "--first-port is 65535"),
        ([*SLEEP, "--gateway", "localhost"], "--gateway is 'localhost'"),
        ([*SLEEP, "--gateway", "http://127.0.0.1:{free}"], "the gateway cannot be reached"),
        ([*SLEEP, "--gateway", "http://127.0.0.1:{pools}"], "the gateway has 2 pools"),
        ([*SLEEP, "--gateway", "http://127.0.0.1:{few}"], "and the gateway has places for 1"),
    ],
)
def test_options_that_cannot_be(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence, and no process."""
    (tmp_path / "rule.json").write_text(json.dumps(RULE))
    few = ["vllm=http://127.0.0.1:9"]
    pools = [*(f"{few[0]},pool={name}" for name in "a"), "vllm=http://127.0.0.1:10,pool=b"]
    ports = {"{free}": free_port()}
    with RunningGateway(few) as one, RunningGateway(pools) as two:
        ports |= {"{few}": one.control_port, "{pools}": two.control_port}
        words = [
            next((o.replace(name, str(port)) for name, port in ports.items() if name in o), o)
            for o in options
        ]
        rule = str(tmp_path / "rule.json")
        assert cli.main(["scale", "--rule", rule, "--act", *words]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert message in error
    assert not list(tmp_path.rglob("*.pid"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "one of --rule and --task says what scales"),
        (["--task", "fleet_chat", "--rule", "rule.json"], "one of --rule and --task"),
        (["--task", "fleet_chat", "--agent", "planner"], "shown the simulator's state"),
        (["--task", "fleet_mixed"], "which opens"),
        (["--task", "bursty_workload", "--agent", "default"], "replicas serve all the time"),
        (["--task", "fleet_chat", "--first-port", "65530"], "--first-port is 65530"),
        (["--task", "fleet_chat", "--weights", "absent"], "absent"),
    ],
)
def test_policies_that_cannot_be(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence, before any gateway is asked."""
    assert cli.main(["scale", *SLEEP, "--gateway", "http://127.0.0.1:9", *options]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert message in error


def test_a_rule_survives_its_file() -> None:
    """All numbers."""
    setting, fleet = parse_rule(json.loads(json.dumps(RULE)), "rule.json")
    assert (setting, fleet) == (RuleSetting("hpa_running", (4.0, 300.0)), FLEET)
