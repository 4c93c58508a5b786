"""Text comes in blocks of whole lines, and every byte of it is looked at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.errors import InputError
from jaxserve.sim.traffic.trace_files import text
from jaxserve.sim.traffic.trace_files.text import text_blocks


@given(
    lines=st.lists(st.text("aж ,\t\r", max_size=12), min_size=1, max_size=30),
    block_bytes=st.integers(3, 80),
)
def test_blocks_are_the_lines(lines: list[str], block_bytes: int, tmp_path_factory: Any) -> None:
    """Joined they are the file without the space at its end, and each knows its first line."""
    path = tmp_path_factory.getbasetemp() / "lines"
    content = "\n".join(["first", *lines]).encode()
    path.write_bytes(b"\xef\xbb\xbf" + content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "BLOCK_BYTES", block_bytes)
        found = list(text_blocks(str(path)))
    joined: list[bytes] = []
    for block in found:
        # Blank lines between two blocks belong to the second; space at a line's end is dropped.
        assert block.first_line == len(joined) + 1
        joined += block.data.split(b"\n")
    wanted = content.rstrip().split(b"\n")
    assert [line.rstrip() for line in joined] == [line.rstrip() for line in wanted]


def test_what_is_no_text_is_found_far_down(tmp_path: Path, monkeypatch: Any) -> None:
    """On its line, in whatever block; and a file without line breaks is no text either."""
    monkeypatch.setattr(text, "BLOCK_BYTES", 64)
    path = tmp_path / "lines"
    for wrong, message in ((b"a\xff", "not UTF-8 text"), (b"\0", "a zero byte")):
        path.write_bytes(b"abcdefg\n" * 100 + wrong + b"\nabc\n")
        with pytest.raises(InputError, match=f"line 101: {message}"):
            list(text_blocks(str(path)))
    monkeypatch.setattr(text, "MAX_LINE_BYTES", 1_000)
    path.write_bytes(b"abc\n" + b"x" * 2_000)
    with pytest.raises(InputError, match="line 2: longer than 1,000 bytes"):
        list(text_blocks(str(path)))


def test_progress_is_told_of_large_files_alone(tmp_path: Path, monkeypatch: Any) -> None:
    """In MiB, up to the whole file."""
    path = tmp_path / "lines"
    path.write_bytes(b"abcdefg\n" * 400_000)
    told: list[tuple[int, int]] = []
    list(text_blocks(str(path), lambda done, total: told.append((done, total))))
    assert not told
    monkeypatch.setattr(text, "BLOCK_BYTES", 2**20)
    list(text_blocks(str(path), lambda done, total: told.append((done, total))))
    assert told[-1] == (3, 3) and told == sorted(told)
