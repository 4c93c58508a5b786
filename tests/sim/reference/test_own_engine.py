"""The engine behind a user's trace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jaxserve import cli
from jaxserve.errors import InputError
from jaxserve.sim.machine.hardware import load_gpu
from jaxserve.sim.machine.stack import load_engine
from jaxserve.sim.reference.own_engine import own_engine
from jaxserve.studies.fidelity import vllm_run
from jaxserve.studies.fidelity.measurements import shared_data
from tests.sim.fit.kernel_samples import write_kernels, write_profile

SHARED = shared_data()
_MODEL = "llama-3.1-8b"
_TABLE = "llama-3.1-8b__h100-sxm-80gb"


def test_a_profile_is_interpolated(tmp_path: Path) -> None:
    """An iteration at a measured point takes its kernels and the host time of vLLM."""
    files = write_profile(tmp_path)
    engine = own_engine(None, "h100-sxm-80gb", _MODEL, 1, files)
    built = own_engine(None, "h100-sxm-80gb", _MODEL, 1)
    load: dict[str, Any] = {"decode_seqs": 16, "kv_tokens": 16 * 1024}
    kernels_s = built.timer.iteration_s(**load) - load_gpu("h100-sxm-80gb").host_s
    profiled_s = engine.timer.iteration_s(**load) - load_engine("vllm").host_s
    assert profiled_s == pytest.approx(kernels_s, rel=1e-3)
    assert engine.kv_tokens(0) == built.kv_tokens(0)
    assert engine.context_tokens == 131_072
    assert engine.token_budget == 2048


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((None, None, None, 1), "name either --table, or --hardware and --model"),
        ((_TABLE, None, None, 2), "--tensor-parallel goes with --hardware"),
    ],
)
def test_what_does_not_go_together(options: tuple[Any, ...], message: str) -> None:
    """One sentence each."""
    with pytest.raises(InputError, match=message):
        own_engine(*options)


def test_what_a_profile_does_not_tell(tmp_path: Path) -> None:
    """Its model, its KV pool, other tiers, and iterations larger than it has."""
    files = write_profile(tmp_path)
    with pytest.raises(InputError, match="does not name its model"):
        own_engine(None, None, None, 1, files)
    with pytest.raises(InputError, match="name either --table or --profile"):
        own_engine(_TABLE, None, _MODEL, 1, files)
    with pytest.raises(InputError, match="not a dense model"):
        own_engine(None, None, "qwen3-30b-a3b", 1, files)
    with pytest.raises(InputError, match="three files of a layer profile, not single kernels"):
        own_engine(None, None, _MODEL, 1, write_kernels(tmp_path))
    engine = own_engine(None, None, _MODEL, 1, files)
    with pytest.raises(InputError, match="name --kv-tokens"):
        engine.kv_tokens(0)
    engine.check_limits(1024, 2048, 0)
    for limits, message in (
        ((1025, 2048, 0), "--batch-cap with --profile is 1025"),
        ((8, 2049, 0), "--token-budget with --profile is 2049"),
        ((8, 2048, 1), "--tier with --profile is 1"),
    ):
        with pytest.raises(InputError, match=message):
            engine.check_limits(*limits)


def test_an_unknown_model_of_a_table_has_no_known_context(tmp_path: Path) -> None:
    """A table may be of a model whose file is elsewhere; a packaged one is known."""
    path = tmp_path / "mine.json"
    sizes = {"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "head_dim": 16}
    path.write_text(json.dumps({"architecture": sizes | {"intermediate": 128, "vocab": 512}}))
    out = tmp_path / "mine.parquet"
    build = ["table", "build", "--hardware", "h100-sxm-80gb", "--model", str(path)]
    assert cli.main([*build, "--out", str(out)]) == 0
    assert own_engine(str(out), None, None, 1).context_tokens is None
    assert own_engine(_TABLE, None, None, 1).context_tokens == 131_072


@pytest.mark.skipif(
    SHARED is None or not (SHARED / vllm_run.DIRECTORY).is_dir(),
    reason="the measured run is absent; set JAXSERVE_SHARED to its directory",
)
def test_a_users_command_meets_the_bars_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    """A real server's log and its profile: TTFT within 5 %, TPOT within 3 %."""
    assert SHARED is not None
    run = SHARED / vllm_run.DIRECTORY
    files = [str(run / f"profile_{n}.csv") for n in ("dense", "per_sequence", "attention")]
    options = ["--profile", *files, "--model", _MODEL, "--kv-tokens", "41392", "--prefix-caching"]
    assert cli.main(["simulate", str(run / "requests.jsonl"), *options]) == 0
    printed = capsys.readouterr().out.splitlines()
    for quantity, bar in (("TTFT mean", 5.0), ("TTFT p99", 5.0), ("TPOT mean", 3.0)):
        (line,) = (line for line in printed if quantity in line)
        assert abs(float(line.split()[-2])) < bar
