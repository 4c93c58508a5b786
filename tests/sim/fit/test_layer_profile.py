"""Promises of layer profiles: their rows, and the times between them."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest

from jaxserve.errors import InputError
from jaxserve.sim.fit.kernel_fit import predicted_s
from jaxserve.sim.fit.layer_profile import LayerProfile, ProfileTimer
from tests.sim.fit.kernel_samples import GPU, MODEL, write_profile


def write_plane(directory: Path, attention_us, skip=None) -> LayerProfile:
    """A small profile whose attention time is the given function of its four axes."""
    dense = [f"{layer},{n},{n}" for layer in ("qkv_proj", "layernorm") for n in (1, 100)]
    (directory / "dense.csv").write_text("\n".join(["layer,tokens,time_us", *dense]))
    heads = [f"{layer},{n},{10 * n}" for layer in ("lm_head", "sampler") for n in (1, 10)]
    (directory / "per_sequence.csv").write_text("\n".join(["layer,sequences,time_us", *heads]))
    lines = ["prefill_chunk,kv_prefill,n_decode,kv_decode,time_us"]
    for point in product((0, 16, 64), (0, 32, 128), (0, 1, 8, 32), (0, 16, 256)):
        chunk, prefix, sequences, context = point
        missing = (chunk == 0 and (prefix or not sequences)) or (sequences == 0) != (context == 0)
        if not missing and not (chunk and sequences == 32) and point != skip:
            lines.append(",".join(map(str, (*point, attention_us(*point)))))
    (directory / "attention.csv").write_text("\n".join(lines))
    names = ("dense", "per_sequence", "attention")
    return LayerProfile.read(*(directory / f"{name}.csv" for name in names))


def plane_us(chunk, prefix, sequences, context):
    return 3.0 + chunk + 0.1 * (prefix if chunk else 0) + 2 * sequences + 0.05 * context


def test_profile_is_exact_on_its_grid_and_linear_between(tmp_path: Path):
    """A plane is reproduced anywhere inside, including where the profile has gaps to fill."""
    timer = ProfileTimer(write_plane(tmp_path, plane_us), 32)
    for point in ((16, 32, 8, 256), (40, 0, 5, 100), (64, 100, 1, 16), (0, 0, 20, 40)):
        assert timer.attention_s(*point) == pytest.approx(plane_us(*point) * 1e-6)
    assert timer.attention_s(40, 100, 0, 0) == pytest.approx((3 + 40 + 10) * 1e-6)
    assert timer.attention_s(64, 0, 32, 256) == pytest.approx(plane_us(64, 0, 32, 256) * 1e-6)
    assert timer.attention_s(0, 0, 0, 0) == 0.0


def test_iteration_sums_the_layers(tmp_path: Path):
    """32 layers with two norms each, head and sampler once, attention of the whole batch."""
    timer = ProfileTimer(write_plane(tmp_path, plane_us), 32)
    seconds = timer.iteration_s(decode_seqs=8, kv_tokens=8 * 256, chunks=((16, 32),))
    dense_us, head_us = 24 * (32 + 64), 2 * 10 * 9
    expected_us = dense_us + head_us + 32 * plane_us(16, 32, 8, 256)
    assert seconds == pytest.approx(expected_us * 1e-6)


def test_incomplete_profile_is_refused(tmp_path: Path):
    """A hole in the attention grid is an error, not a NaN in the results."""
    profile = write_plane(tmp_path, plane_us, skip=(16, 32, 8, 256))
    with pytest.raises(InputError, match="not a complete grid"):
        ProfileTimer(profile, 32)


def test_rows_are_those_that_made_the_profile(tmp_path: Path) -> None:
    """Products and other kernels by token, head by sequence, attention alone or behind a prefix."""
    rows = LayerProfile.read(*write_profile(tmp_path)).rows(MODEL.layers)
    assert list(rows) == ["linear", "elementwise", "head", "decode", "prefill"]
    for kind, found in rows.items():
        np.testing.assert_allclose(found.seconds, predicted_s(GPU, MODEL, kind, found), rtol=1e-6)
    prefix = rows["prefill"].prefix
    assert prefix is not None and prefix.max() > 0 and rows["prefill"].length.min() == 128


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("o_proj", "experts", "'experts', which is unknown"),
        ("qkv_proj", "act_fn", "no 'qkv_proj'"),
        ("o_proj,1,", "o_proj,3,", "'o_proj' at other sizes than other layers"),
        ("layernorm,1,", "layernorm,3,", "not all layers at the same tokens"),
    ],
)
def test_other_layers_are_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    """Those of other models, and sizes that differ."""
    paths = write_profile(tmp_path, change=lambda text: text.replace(f"\n{old}", f"\n{new}"))
    profile = LayerProfile.read(*paths)
    with pytest.raises(InputError, match=message):
        profile.rows(MODEL.layers)
