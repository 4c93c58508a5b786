"""Plans beside started servers."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from jaxserve import cli
from jaxserve.errors import InputError
from jaxserve.live.player import RequestOutcome
from jaxserve.plan import check
from jaxserve.plan.check import Check, check_json, check_server, options_as_checked, part_to_send
from jaxserve.plan.inputs import PlanInputs, PlanObjective
from jaxserve.plan.options import engine_options
from jaxserve.plan.play import PlannedDeployment, served_by
from jaxserve.sim.machine.tabulated import TabulatedTimer
from jaxserve.sim.reference.own_log import simulate
from jaxserve.sim.traffic.traces import Trace
from tests.mock_engine.conftest import running
from tests.quick_compiler import programs_compute


def _trace(count: int = 120, seconds: float = 6.0) -> Trace:
    rng = np.random.default_rng(1)
    arrival_s = np.sort(rng.uniform(0, seconds, count))
    prompt = rng.integers(100, 1500, count).astype(np.int32)
    return Trace(arrival_s - arrival_s[0], prompt, rng.integers(2, 30, count).astype(np.int32))


INPUTS = PlanInputs(
    "llama-3.1-8b", _trace(), "a wave", PlanObjective(1.0, 0.05),
    {"h100-sxm-80gb": 3.5}, max_gpus=2, formats=("bf16", "fp8"), kv_formats=("bf16",),
)  # fmt: skip
OPTIONS = engine_options(INPUTS)[0]
PLANNED = PlannedDeployment(OPTIONS[0], 1, 256, 2048)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch):
    """Sets how the server answers: ``slower`` times, a delay before the engine, failures."""

    def answers(slower: float, frontend_s: float = 0.0, failed: int = 0) -> None:
        async def sent(url: str, part: Trace, *ignored: object) -> list[RequestOutcome]:
            timer = TabulatedTimer(PLANNED.option.cost, PLANNED.option.tier, slower)
            log = simulate(part, timer, served_by(PLANNED, part, frontend_s))
            noise = np.random.default_rng(2).normal(1.0, 0.03, len(log))
            return [
                RequestOutcome(
                    "default", float(row["arrival_s"]), 0.0, int(row["prompt_tokens"]),
                    int(row["output_tokens"]),
                    None if place < failed else float(row["ttft_s"]),
                    None if place < failed else float(row["tpot_s"] * noise[place]),
                    int(row["output_tokens"]) - 1, True, "it broke" if place < failed else None,
                )
                for place, row in enumerate(log)
            ]  # fmt: skip

        monkeypatch.setattr(check, "_sent", sent)

    return answers


def _checked() -> Check:
    return check_server("http://127.0.0.1:1", INPUTS, PLANNED)


@pytest.mark.parametrize("slower", [0.6, 1.0, 1.8])
def test_the_factor_and_the_delay_are_found(server, slower: float) -> None:
    """Within what requests scatter; other engines of the kind follow, with more doubt."""
    server(slower, frontend_s=0.02, failed=2)
    found = _checked()
    assert found.factor == pytest.approx(slower, rel=0.03)
    assert found.frontend_s == pytest.approx(0.02, abs=0.01)
    assert found.failed == 2 and found.error < 0.05
    after = {each.name: each for each in options_as_checked(OPTIONS, found, INPUTS)}
    for option in OPTIONS:
        ratio = after[option.name].cost.decode_s(8, 1000) / option.cost.decode_s(8, 1000)
        assert float(ratio) == pytest.approx(slower, rel=0.04)
    own, other = after[PLANNED.option.name], after["h100-sxm-80gb TP2 bf16"]
    assert own.doubt.error < other.doubt.error < OPTIONS[0].doubt.error + 0.05
    assert json.loads(json.dumps(check_json(found), allow_nan=False))["factor"] == found.factor


def test_a_server_that_says_nothing_of_the_plan(server) -> None:
    """Failures beyond a twentieth, and times that no such engine has, are refused."""
    server(1.0, failed=40)
    with pytest.raises(InputError, match=r"40 failed.*it broke"):
        _checked()
    server(12.0)
    with pytest.raises(InputError, match="another model or GPU"):
        _checked()


def test_the_part_that_is_sent() -> None:
    """Some hundred requests at most ten minutes long, without the prefixes that prompts lack."""
    part = part_to_send(_trace(20_000, 20_000.0))
    assert 200 <= len(part) <= 500 and part.duration_s <= 600 and part.blocks is None
    assert len(part_to_send(_trace())) == 120


def test_random_prompts_tell_nothing_of_drafts(tmp_path: Path) -> None:
    """A plan that speculates is refused."""
    plan = {
        "model": INPUTS.model,
        "traffic": INPUTS.traffic,
        "objective": dataclasses.asdict(INPUTS.objective),
        "deployment": {"name": "drafting", "draft": "cnn/eagle"},
    }
    (tmp_path / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    with pytest.raises(InputError, match="make and check the plan without --draft"):
        check.planned_in(tmp_path, INPUTS, OPTIONS)


def test_requests_reach_a_server() -> None:
    """Each is sent with its lengths, and its times come back."""
    part = _trace(12, 0.5)
    with running(max_model_len=4096, kv_blocks=2000, batch_cap=64, token_budget=2048) as engine:
        outcomes = asyncio.run(check._sent(engine.url, part, INPUTS.objective, None))
    assert [each.prompt_tokens for each in outcomes] == part.prompt_tokens.tolist()
    assert all(each.error is None and each.tpot_s is not None for each in outcomes)


@programs_compute()
def test_the_command(server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A server that is slower than planned makes another plan; one folder is of one plan."""
    out = tmp_path / "out"
    base = ["plan", "--model", "llama-3.1-8b", "--hardware", "h100-sxm-80gb", "--max-gpus", "2"]
    base += ["--rate", "6", "--prompt", "700", "--output", "30", "--ttft", "1"]
    base += ["--format", "bf16", "--kv-format", "bf16", "--processes", "1", "--out", str(out)]
    url = ["--check", "http://127.0.0.1:1"]
    assert cli.main([*base, "--tpot", "0.02", *url]) != 0
    assert "plan.json does not exist" in capsys.readouterr().err
    assert cli.main([*base, "--tpot", "0.02"]) == 0
    before = json.loads((out / "plan.json").read_text(encoding="utf-8"))
    assert before["check"] is None
    assert cli.main([*base, "--tpot", "0.03", *url]) != 0
    assert "is of the objective" in capsys.readouterr().err
    server(1.5)
    assert cli.main([*base, "--tpot", "0.02", *url]) == 0
    printed = capsys.readouterr().out
    assert "slower than planned" in printed
    after = json.loads((out / "plan.json").read_text(encoding="utf-8"))
    assert after["check"]["factor"] == pytest.approx(1.5, rel=0.05)
    assert after["result"]["tpot_p50_s"] > 1.2 * before["result"]["tpot_p50_s"]
    assert "<h2>Checked</h2>" in (out / "report.html").read_text(encoding="utf-8")


def test_options_are_told_apart(tmp_path: Path) -> None:
    """A plan names its engine; options that lack it are refused."""
    folder = tmp_path / "out"
    folder.mkdir()
    plan = {
        "model": INPUTS.model,
        "traffic": INPUTS.traffic,
        "objective": dataclasses.asdict(INPUTS.objective),
        "deployment": {
            "gpu": "h100-sxm-80gb", "tensor_parallel": 2, "weight_format": "bf16",
            "kv_format": "bf16", "expert_parallel": False, "replicas": 1, "batch_cap": 64,
            "token_budget": 1024, "name": "two",
        },
    }  # fmt: skip
    (folder / "plan.json").write_text(json.dumps(plan), encoding="utf-8")

    assert check.planned_in(folder, INPUTS, OPTIONS).option.tensor_parallel == 2
    with pytest.raises(InputError, match="not among the engines"):
        check.planned_in(folder, INPUTS, [each for each in OPTIONS if each.tensor_parallel == 1])
