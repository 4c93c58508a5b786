"""Promises of the replay of a real vLLM run."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest

from jaxserve.errors import InputError
from jaxserve.fidelity import vllm_run
from jaxserve.fidelity.sources import shared_data

SHARED = shared_data()
needs_run = pytest.mark.skipif(SHARED is None, reason="measured data is not on this machine")


def write_profile(directory: Path, attention_us, skip=None) -> None:
    """A small profile whose attention time is the given function of its four axes."""
    dense = [f"{layer},{n},{n}" for layer in ("qkv_proj", "layernorm") for n in (1, 100)]
    (directory / "profile_dense.csv").write_text("\n".join(["layer,tokens,time_us", *dense]))
    heads = [f"{layer},{n},{10 * n}" for layer in ("lm_head", "sampler") for n in (1, 10)]
    (directory / "profile_per_sequence.csv").write_text(
        "\n".join(["layer,sequences,time_us", *heads])
    )
    lines = ["prefill_chunk,kv_prefill,n_decode,kv_decode,time_us"]
    for point in product((0, 16, 64), (0, 32, 128), (0, 1, 8, 32), (0, 16, 256)):
        chunk, prefix, sequences, context = point
        missing = (chunk == 0 and (prefix or not sequences)) or (sequences == 0) != (context == 0)
        if not missing and not (chunk and sequences == 32) and point != skip:
            lines.append(",".join(map(str, (*point, attention_us(*point)))))
    (directory / "profile_attention.csv").write_text("\n".join(lines))


def plane_us(chunk, prefix, sequences, context):
    return 3.0 + chunk + 0.1 * (prefix if chunk else 0) + 2 * sequences + 0.05 * context


@needs_run
def test_bars_hold():
    """TTFT mean and p99 and TPOT mean of the real server are met, with and without host time."""
    assert SHARED is not None
    rows = vllm_run.vllm_fidelity(SHARED)
    assert [row.bar for row in rows] == [5.0, 5.0, 5.0, 5.0, 3.0, 3.0]
    assert all(row.passed and row.measured <= row.bar for row in rows)


@needs_run
def test_whole_distribution_follows_the_real_run():
    """Not only the means: deciles of TTFT and TPOT, and each request's own TTFT."""
    assert SHARED is not None
    directory = SHARED / vllm_run.DIRECTORY
    real, ours = vllm_run.served(directory), vllm_run.replay(directory)
    deciles = np.arange(10, 100, 10)
    ttft_s, tpot_s = real[:, 1] - real[:, 0], (real[:, 2] - real[:, 1]) / (real[:, 4] - 1)
    np.testing.assert_allclose(
        np.percentile(ours["ttft_s"], deciles), np.percentile(ttft_s, deciles), rtol=0.06
    )
    np.testing.assert_allclose(
        np.percentile(ours["tpot_s"], deciles), np.percentile(tpot_s, deciles), rtol=0.05
    )
    assert np.corrcoef(ours["ttft_s"], ttft_s)[0, 1] > 0.995
    assert ours["finish_s"].max() == pytest.approx(real[:, 2].max(), rel=0.02)


@needs_run
def test_prefix_cache_is_needed_to_explain_the_run():
    """Recomputing preempted sequences in full would make the run longer than it was."""
    assert SHARED is not None
    directory = SHARED / vllm_run.DIRECTORY
    cached, full = (vllm_run.replay(directory, caching) for caching in (True, False))
    assert cached["preemptions"].sum() > 100
    assert full["finish_s"].max() > 1.02 * cached["finish_s"].max()


def test_profile_is_exact_on_its_grid_and_linear_between(tmp_path: Path):
    """A plane is reproduced anywhere inside, including where the profile has gaps to fill."""
    write_profile(tmp_path, plane_us)
    timer = vllm_run.ProfileTimer(tmp_path)
    for point in ((16, 32, 8, 256), (40, 0, 5, 100), (64, 100, 1, 16), (0, 0, 20, 40)):
        assert timer.attention_s(*point) == pytest.approx(plane_us(*point) * 1e-6)
    assert timer.attention_s(40, 100, 0, 0) == pytest.approx((3 + 40 + 10) * 1e-6)
    assert timer.attention_s(64, 0, 32, 256) == pytest.approx(plane_us(64, 0, 32, 256) * 1e-6)
    assert timer.attention_s(0, 0, 0, 0) == 0.0


def test_iteration_sums_the_layers(tmp_path: Path):
    """32 layers with two norms each, head and sampler once, attention of the whole batch."""
    write_profile(tmp_path, plane_us)
    timer = vllm_run.ProfileTimer(tmp_path)
    seconds = timer.iteration_s(decode_seqs=8, kv_tokens=8 * 256, chunks=((16, 32),))
    dense_us, head_us = 24 * (32 + 64), 2 * 10 * 9
    expected_us = dense_us + head_us + 32 * plane_us(16, 32, 8, 256)
    assert seconds == pytest.approx(expected_us * 1e-6)


def test_incomplete_profile_is_refused(tmp_path: Path):
    """A hole in the attention grid is an error, not a NaN in the results."""
    write_profile(tmp_path, plane_us, skip=(16, 32, 8, 256))
    with pytest.raises(InputError, match="not a complete grid"):
        vllm_run.ProfileTimer(tmp_path)


def test_absent_data_gives_no_rows(tmp_path: Path):
    """Without the run the check is left out."""
    assert vllm_run.vllm_fidelity(tmp_path) == []
