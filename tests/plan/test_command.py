"""The command: an answer with its files, and one sentence for what it cannot answer."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from jaxserve import cli
from jaxserve.sim.machine.cost_model import CostModel
from jaxserve.sim.machine.stack import Stack, serve
from jaxserve.sim.table.closed_loop import closed_loop

FILES = {
    "compose.yaml",
    "gateway.sh",
    "kubernetes.yaml",
    "plan.json",
    "report.html",
    "sglang.sh",
    "table.parquet",
    "task.json",
    "vllm.sh",
}
BASE = ("plan", "--ttft", "1", "--tpot", "0.05", "--processes", "1")
SMALL = ("--model", "llama-3.1-8b", "--hardware", "h100-sxm-80gb", "--max-gpus", "2")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A hundred requests in twenty seconds."""
    rng = np.random.default_rng(0)
    times = np.sort(rng.uniform(0, 20, 100))
    rows = [
        {"chat_id": 0, "timestamp": time, "input_length": int(prompt), "output_length": int(output)}
        for time, prompt, output in zip(
            times.round(3).tolist(),
            rng.integers(50, 2000, 100),
            rng.integers(5, 60, 100),
            strict=True,
        )
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def load_test(path: Path, model: str, slower: float = 1.0, tpot_scale: float = 1.0) -> Path:
    """A load test of an H100 whose times are ``slower``."""
    gpu, found = serve("h100-sxm-80gb", "llama-3.1-8b", Stack(formats=("bf16", "fp8", "int4")))
    cost = CostModel.of(gpu, found, 1)
    rows = []
    for prompt in (256, 1024, 2048):
        for level in (1, 4, 16):
            loop = closed_loop(cost, level, prompt, 100)
            rows.append(
                {
                    "max_concurrency": level,
                    "random_input_len": prompt,
                    "random_output_len": 100,
                    "mean_tpot_ms": float(1e3 * slower * tpot_scale * loop.tpot_s),
                    "model_id": model,
                }
            )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_an_answer_and_its_files(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All files are written; JSON and YAML can be read, the page needs nothing from elsewhere, and
    nothing of the search is left beside them."""
    out = tmp_path / "out"
    assert cli.main([*BASE, *SMALL, "--trace", str(trace), "--out", str(out)]) == 0
    assert {path.name for path in out.iterdir()} == FILES
    assert {path.name for path in tmp_path.iterdir()} == {"out", "trace.jsonl"}
    printed = capsys.readouterr().out
    assert printed.startswith("trace.jsonl: 100 requests in 19.9 s")
    plan = json.loads((out / "plan.json").read_text(encoding="utf-8"))
    low, high = plan["interval_95"]["attainment"]
    assert low <= plan["result"]["attainment"] <= high
    assert plan["result"]["attainment"] >= 0.99
    assert plan["deployment"]["gpus"] == 1 and plan["deployment"]["weight_format"] == "bf16"
    assert plan["bears"]["traffic_factor"] >= 1
    assert plan["least_gpus"]["peak"] == 1
    services = yaml.safe_load((out / "compose.yaml").read_text(encoding="utf-8"))["services"]
    assert set(services) == {"engine-0", "gateway"}
    kinds = [
        each["kind"]
        for each in yaml.safe_load_all((out / "kubernetes.yaml").read_text(encoding="utf-8"))
    ]
    assert kinds == ["Service", "StatefulSet", "Service", "Deployment"]
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "prefers-color-scheme: dark" in page and page.count("<svg") == 2
    assert "http://" not in page.split("<pre>")[0] and "src=" not in page
    assert plan["answer"] in printed and "wrote" in printed


@pytest.mark.slow
def test_an_answer_without_a_trace_by_a_load_test(tmp_path: Path) -> None:
    """The doubt is that of the load test, smaller than the published one."""
    out = tmp_path / "out"
    measured = load_test(tmp_path / "test.jsonl", "meta-llama/Llama-3.1-8B-Instruct", 1.1)
    traffic = ("--rate", "2", "--prompt", "500", "--output", "20")
    words = [*BASE, *SMALL, *traffic, "--format", "bf16", "--kv-format", "bf16"]
    assert cli.main([*words, "--load-test", str(measured), "--out", str(out)]) == 0
    interval = json.loads((out / "plan.json").read_text(encoding="utf-8"))["interval_95"]
    assert interval["source"].startswith("load test")
    assert interval["relative_time_error"] < 0.05


REFUSED = {
    "TTFT of a slip of units": (("--ttft", "1000"), "--ttft is 1000"),
    "no GPU holds the model": (("--model", "qwen3-235b-a22b", "--max-gpus", "1"), "memory"),
    "no price": (("--prices", "prices.json"), "has no price of h100-sxm-80gb"),
    "nothing meets the objectives": (("--tpot", "0.001"), "the nearest is"),
    "a load test of another model": (
        ("--load-test", "other.jsonl"),
        "is of the model meta-llama/Llama-3.1-70B-Instruct",
    ),
    "a load test in another unit": (("--load-test", "unit.jsonl"), "times the TPOT"),
    "a table of another GPU": (
        ("--table", "llama-3.1-8b__l40s-48gb"),
        "which is not among the engines of the plan",
    ),
    "two kinds of traffic": (("--rate", "1"), "either --trace, or --rate"),
    "drafts whose times are unknown": (
        ("--draft", "sharegpt/ngram"),
        "--draft is 'sharegpt/ngram'",
    ),
    "a format that is none": (("--format", "fp7"), "--format is 'fp7'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_in_one_sentence(
    name: str,
    trace: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Exit code 2, one line, and no folder."""
    monkeypatch.chdir(tmp_path)
    load_test(tmp_path / "other.jsonl", "meta-llama/Llama-3.1-70B-Instruct")
    load_test(tmp_path / "unit.jsonl", "llama-3.1-8b", tpot_scale=1e3)
    (tmp_path / "prices.json").write_text('{"a100-sxm-80gb": 2.0}', encoding="utf-8")
    given, message = REFUSED[name]
    words = [*BASE, *SMALL, "--trace", str(trace), "--out", "out"]
    for option, value in zip(given[::2], given[1::2], strict=True):
        if option in words:
            words[words.index(option) + 1] = value
        else:
            words += [option, value]
    assert cli.main(words) == 2
    printed = capsys.readouterr().err.strip().splitlines()
    errors = [line for line in printed if line.startswith("jaxserve: ")]
    assert len(errors) == 1 and message in errors[0]
    assert not (tmp_path / "out").exists()


def test_a_folder_of_other_files_is_left_alone(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error comes before the search."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("", encoding="utf-8")
    words = [*BASE, *SMALL, "--trace", str(trace), "--out", str(tmp_path / "out")]
    assert cli.main(words) == 2
    assert "holds other files" in capsys.readouterr().err
