"""Rows that look alike: refused where only a file that was pasted explains them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from jaxserve.errors import InputError
from jaxserve.sim.traffic.trace_files import text
from jaxserve.sim.traffic.traces import load_trace

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens"
BURSTGPT = "Timestamp,Request tokens,Response tokens"


def rows(count: int, digits: int, lengths: int) -> list[str]:
    """Ten requests a second in calendar times with that many digits behind the second."""
    rng = np.random.default_rng(0)
    at_ms = np.sort(rng.integers(0, 100 * count, count)).tolist()
    sizes = rng.integers(1, 1 + lengths, (count, 2)).tolist()
    stamps = [f"2024-05-12 {t // 3_600_000:02}:{t // 60_000 % 60:02}:" for t in at_ms]
    seconds = [f"{t % 60_000 / 1000:06.3f}"[: 3 + digits] for t in at_ms]
    return [f"{a}{b},{p},{o}" for a, b, (p, o) in zip(stamps, seconds, sizes, strict=True)]


@pytest.mark.parametrize(("digits", "lengths"), [(3, 1), (3, 9), (1, 200)])
@pytest.mark.parametrize("block_bytes", [1_000, 10**7])
def test_twins_of_chance_are_requests(
    digits: int,
    lengths: int,
    block_bytes: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Requests of few lengths, or of a coarse clock, share rows by chance; a thirtieth of the rows
    twice is no chance."""
    monkeypatch.setattr(text, "BLOCK_BYTES", block_bytes)
    path = tmp_path / "trace.csv"
    made = rows(3_000, digits, lengths)
    path.write_text("\n".join([AZURE, *made]))
    assert len(load_trace(path)) == 3_000
    if lengths == 200:
        made[1000:1100] = [row for row in made[1000:1100] for _ in "12"]
        path.write_text("\n".join([AZURE, *made]))
        with pytest.raises(InputError, match="line 1003: the same row as one before it"):
            load_trace(path)


@pytest.mark.parametrize("block_bytes", [16, 10**7])
def test_a_file_pasted_into_itself(
    block_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a coarse clock too, wherever a block ends; one row without a twin is enough to read it."""
    monkeypatch.setattr(text, "BLOCK_BYTES", block_bytes)
    path = tmp_path / "trace.csv"
    made = [f"{second},{9 + second},3" for second in range(60) for _ in "12"]
    path.write_text("\n".join([BURSTGPT, *made]))
    with pytest.raises(InputError, match="line 3: the same row as one before it"):
        load_trace(path)
    path.write_text("\n".join([BURSTGPT, *made, "60,1,1"]))
    assert len(load_trace(path)) == 121
