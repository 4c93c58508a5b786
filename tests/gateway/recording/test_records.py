"""Records come back as they were written, whatever killed the writer."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.errors import InputError
from jaxserve.gateway.recording.records import (
    CompletionRecord,
    Link,
    PromptDecoder,
    RecordedChoice,
    RecordFile,
    decode,
    encode,
    lines,
    read_records,
)
from tests.examples_drawn import MANY
from tests.rollouts.conversation_trees import trees

_IDS = st.lists(st.integers(-(2**31), 2**31 - 1), max_size=5)
_NUMBERS = st.lists(st.floats(width=32), max_size=5)


def record_of(seq: int = 1, text: str = "é\n") -> CompletionRecord:
    """A record with something in every field."""
    logprobs = np.array([np.nan], np.float32)
    return CompletionRecord(
        session="s",
        request_id="r",
        dialect="chat",
        arrived_unix_s=1.5,
        received=f'{{"text": "{text}"}}'.encode(),
        seq=seq,
        sent=b'{"messages": [{"role": "user"}]}',
        response=b"{}",
        sampling={"temperature": 1.0},
        weight_version="v1",
        prompt_ids=np.array([1, 2**31 - 1], np.int32),
        choices=(
            RecordedChoice(0, {"content": text}, "stop", np.array([7]), logprobs, ("\u2028",)),
            RecordedChoice(1, {}, None),
        ),
        link=Link((4, 0), "exact", True),
    )


def test_a_record_comes_back_whole() -> None:
    """Bytes, arrays, NaN and link; on one line."""
    record = record_of()
    line = encode(record)
    assert line.count(b"\n") == 1 and line.endswith(b"\n")
    back = decode(line)
    assert encode(back) == line
    for name in ("received", "link", "sampling"):
        assert getattr(back, name) == getattr(record, name)
    assert np.isnan(back.choices[0].logprobs[0]) and back.choices[1].response_ids is None  # type: ignore[index]
    assert back.messages == [{"role": "user"}] and back.sampled == 1
    assert [choice.texts for choice in back.choices] == [["\u2028"], None]


def test_a_record_of_before_is_read() -> None:
    """Whose choices have no texts of tokens."""
    line = encode(record_of())
    before = line.replace(',"texts":["\u2028"]'.encode(), b"").replace(b',"texts":null', b"")
    assert before.count(b"texts") == 0
    assert [choice.texts for choice in decode(before).choices] == [None, None]


@given(_IDS, _NUMBERS)
def test_arrays_come_back_bit_for_bit(ids: list[int], numbers: list[float]) -> None:
    """Little-endian, whatever they are."""
    prompt, logprobs = np.array(ids, np.int32), np.array(numbers, np.float32)
    choice = RecordedChoice(0, {}, None, prompt, logprobs)
    (back,) = decode(encode(replace(record_of(), choices=(choice,)))).choices
    np.testing.assert_array_equal(back.response_ids, prompt)
    np.testing.assert_array_equal(back.logprobs, logprobs)


@pytest.mark.parametrize("line", [b"", b"{}", b"[]", b'{"v":1}', b'{"v":2}', b"nonsense"])
def test_what_is_no_record_is_refused(line: bytes) -> None:
    """By one kind of error."""
    with pytest.raises(ValueError):
        decode(line)


@given(st.data())
def test_a_torn_last_line_is_none(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """A kill at any byte costs the line that was being written, and the next one stands alone."""
    path = tmp_path_factory.mktemp("torn") / "records.jsonl"
    written = [encode(record_of(seq)) for seq in (1, 2, 3)]
    cut = data.draw(st.integers(0, sum(map(len, written))))
    path.write_bytes(b"".join(written)[:cut])
    whole = path.read_bytes().count(b"\n")
    assert list(lines(path)) == written[:whole]
    assert [record.seq for record in read_records(path)] == list(range(1, whole + 1))
    RecordFile(path).add(encode(record_of(whole + 1)))
    assert [record.seq for record in read_records(path)] == list(range(1, whole + 2))


def test_a_very_long_torn_line(tmp_path: Path) -> None:
    """Its beginning is found however far back it is."""
    path = tmp_path / "records.jsonl"
    path.write_bytes(encode(record_of()) + b"x" * 200_000)
    RecordFile(path)
    assert path.read_bytes() == encode(record_of())


def test_a_full_disk_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a line is taken back, at once or, where that fails as well, before the next one."""
    path = tmp_path / "records.jsonl"
    file = RecordFile(path)
    file.add(b"one\n")
    write, truncate = os.write, os.ftruncate

    def full(number: int, data: bytes) -> int:
        write(number, bytes(data)[:2])
        raise OSError(28, "No space left on device")

    def refuse(number: int, size: int) -> None:
        raise OSError(5, "Input/output error")

    for cut in (truncate, refuse):
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            patch.setattr(os, "ftruncate", cut)
            with pytest.raises(OSError):
                file.add(b"two\n")
    file.add(b"three\n")
    assert path.read_bytes() == b"one\nthree\n"


def test_a_write_in_pieces_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system may take less than it is given."""
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, bytes(data)[:3]))
    RecordFile(tmp_path / "r").add(b"0123456789\n")
    assert (tmp_path / "r").read_bytes() == b"0123456789\n"


def test_reading_says_what_is_wrong(tmp_path: Path) -> None:
    """A line that is none, a gap, a record twice, a file that is not there."""
    path = tmp_path / "records.jsonl"
    with pytest.raises(InputError, match="it must be a file"):
        read_records(path)
    path.write_bytes(b"what\n")
    with pytest.raises(InputError, match=r"line 1 of .* is no record"):
        read_records(path)
    for seqs in ((1, 3), (1, 1)):
        path.write_bytes(b"".join(encode(record_of(seq)) for seq in seqs))
        with pytest.raises(InputError, match=r"line 2 .* must be 2"):
            read_records(path)


@given(trees())
@MANY
def test_a_file_is_read_as_its_lines(records: list[CompletionRecord]) -> None:
    """Prompts are decoded as far as they are new, and are what they are alone, whatever the link
    says."""
    for others in (records, [replace(one, link=Link((1, 0), "exact")) for one in records]):
        written = [encode(record) for record in others]
        prompts = PromptDecoder()
        for line in written:
            together, alone = decode(line, prompts), decode(line)
            assert (together.prompt_ids is None) == (alone.prompt_ids is None)
            if together.prompt_ids is not None and alone.prompt_ids is not None:
                np.testing.assert_array_equal(together.prompt_ids, alone.prompt_ids)
                assert together.prompt_ids.dtype == alone.prompt_ids.dtype
                assert not together.prompt_ids.flags.writeable
            assert encode(together) == line
