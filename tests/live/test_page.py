"""The commands and the code of docs/live.md run, and what the commands refuse."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from jaxserve import cli
from jaxserve.gateway.records import Records, RequestRecord
from jaxserve.live.calibration import calibrate
from jaxserve.live.calibration.plan import Plan
from jaxserve.sim.machine.cost_model import CostModel
from jaxserve.sim.machine.hardware import load_gpu, load_model
from tests.docs.snippets import blocks
from tests.live.calibration.batching import HttpEngine, measured_in_virtual_time

PAGE = Path(__file__).resolve().parents[2] / "docs" / "live.md"
H100 = CostModel.of(load_gpu("h100-sxm-80gb"), load_model("llama-3.1-8b"))


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpEngine]:
    """An engine whose times are an H100's, whatever the machine of the test does meanwhile."""

    async def measure(client: object, plan: Plan, progress: object) -> object:
        return measured_in_virtual_time(H100, plan, kv_pool_tokens=60_000)

    monkeypatch.setattr(calibrate, "measure", measure)
    with HttpEngine(H100) as running:
        yield running


def test_the_page(
    engine: HttpEngine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """From an engine and the records of a gateway to a simulator of both."""
    monkeypatch.chdir(tmp_path)
    records = Records(kept=1, path=tmp_path / "records.jsonl")
    for second in range(700):
        record = RequestRecord(str(second), "chat", 1e9 + second, float(second))
        record.prompt_tokens, record.output_tokens = 50 + second % 300, 20
        record.outcome = "completed" if second % 7 else "failed"
        records.add(record)
    records.close()
    names: dict[str, object] = {}
    for block in blocks(PAGE):
        if block.language == "python":
            exec(compile(block.code, str(PAGE), "exec"), names)
            continue
        for line in block.code.replace("\\\n", " ").strip().splitlines():
            line = line.replace("http://127.0.0.1:8000", engine.url)
            line = line.replace("default,best_static", "default --episodes 2")
            assert cli.main(shlex.split(line)[1:]) == 0, line
    assert names["env"].deployment.kv_pool_tokens[0, 0] == 60_000  # pyright: ignore
    printed = capsys.readouterr().out
    assert "36 points in at most 6 minutes" in printed
    assert "of them held out: " in printed and "only tier 0 (FP16) was measured" in printed
    assert "KV pool: 60,000 tokens, as the engine says" in printed
    assert "wrote trace.csv: 600 requests in 698.0 s; 100 left out (100 failed)" in printed
    assert "2 test episodes" in printed


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one sentence of a command that fails."""
    assert cli.main(arguments) == 2
    error = capsys.readouterr().err.splitlines()
    return error[-1].removeprefix("jaxserve: ")


def calibration(url: str, *more: str) -> list[str]:
    """A command that writes mine.parquet."""
    described = ["--hardware", "h100-sxm-80gb", "--model", "llama-3.1-8b", "--out", "mine.parquet"]
    return ["calibrate", "--url", url, *described, *more]


def test_what_calibrate_refuses(
    engine: HttpEngine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One sentence and no file, whether it is an option, the engine or the fit."""
    monkeypatch.chdir(tmp_path)
    url = engine.url
    assert "--url is '127.0.0.1:80'" in refused(capsys, *calibration("127.0.0.1:80"))
    assert "--key is 'NOT_SET'" in refused(capsys, *calibration(url, "--key", "NOT_SET"))
    assert "--minutes is 0" in refused(capsys, *calibration(url, "--minutes", "0"))
    assert "--out is 'x.csv'" in refused(capsys, *calibration(url, "--out", "x.csv"))
    assert "--tier is 5" in refused(capsys, *calibration(url, "--tier", "5"))
    few = calibration(url, "--concurrency", "1", "--prompt-tokens", "64")
    assert "different loads were measured" in refused(capsys, *few)
    assert "cannot be reached" in refused(capsys, *calibration("http://127.0.0.1:9"))
    assert not list(tmp_path.iterdir())


def test_an_interrupted_calibration(
    engine: HttpEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
