"""Kinds of requests: read from every format alike, and kept with a trace's requests."""

from __future__ import annotations

import csv
import dataclasses
import gzip
import io
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.errors import InputError
from jaxserve.sim.traffic.request_kinds import is_kind, number_kinds
from jaxserve.sim.traffic.traces import Trace, load_trace

KINDS = ("chat", "batch", "chat", "code, long", "batch")


@pytest.fixture
def write(tmp_path: Path):
    """Writes a file and returns its path."""

    def write_file(content: str | bytes) -> Path:
        path = tmp_path / "trace"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write_file


def azure(kinds: tuple[str, ...], place: int = 3, column: str = "kind", end: str = "\n") -> str:
    """Rows of these kinds, the column in that place, among others."""
    header = ["TIMESTAMP", "ContextTokens", "GeneratedTokens", "Region"]
    rows = [[f"2000-01-01 00:00:0{i}", f"{10 + i}", "4", "eu"] for i in range(len(kinds))]
    for row, cell in zip([header, *rows], [column, *kinds], strict=True):
        row.insert(place, cell)
    text = io.StringIO()
    csv.writer(text, lineterminator=end).writerows([header, *rows])
    return text.getvalue()


def burstgpt(kinds: tuple[str, ...]) -> str:
    """The same in the other CSV format; zero tokens are a request that failed."""
    header = "Timestamp,Model,Request tokens,Response tokens,Kind\n"
    return header + "".join(f'{i},G,{10 + i},4,"{kind}"\n' for i, kind in enumerate(kinds))


def json_lines(kinds: tuple[str | None, ...], **more: object) -> str:
    """The same in the formats of JSON lines."""
    rows = (
        {"timestamp": i, "input_length": 10 + i, "output_length": 4, "hash_ids": [i], **more}
        | ({} if kind is None else {"kind": kind})
        for i, kind in enumerate(kinds)
    )
    return "".join(json.dumps(row) + "\n" for row in rows)


def told(trace: Trace) -> list[str]:
    """The kind of each request by name."""
    assert trace.kind is not None and trace.kind.dtype == np.int32
    return [trace.kinds[kind] for kind in trace.kind]


@pytest.mark.parametrize(
    "content",
    [
        *(azure(KINDS, place) for place in range(5)),
        azure(KINDS, column=" KiNd "),
        azure(KINDS, end="\r\n"),
        azure(tuple(f"  {kind} " for kind in KINDS)),
        "\ufeff" + azure(KINDS, 0),
        gzip.compress(azure(KINDS).encode()),
        burstgpt(KINDS),
        json_lines(KINDS),
        json_lines(KINDS, chat_id=3),
        json_lines(KINDS).replace('"batch"', '" batch\\t"'),
        gzip.compress(json_lines(KINDS).encode()),
    ],
)
def test_every_format_tells_kinds(write, content: str | bytes) -> None:
    """In any place and case, with spaces, quotes, CRLF or gzip, and beside other columns."""
    trace = load_trace(write(content))
    assert trace.kinds == ("batch", "chat", "code, long")
    assert told(trace) == list(KINDS)
    assert trace.prompt_tokens.tolist() == [10, 11, 12, 13, 14]


@pytest.mark.parametrize(
    "content",
    [
        azure(KINDS, column="kinds"),
        azure(("", " ", "")),
        burstgpt(("", "")),
        json_lines((None, None)),
        json_lines(("", " ")),
        json_lines((None, None)).replace("4}", '4, "kind": null}'),
    ],
)
def test_a_file_that_tells_no_kind_has_none(write, content: str) -> None:
    """A column without a single text is as good as none."""
    trace = load_trace(write(content))
    assert trace.kinds == () and trace.kind is None


RULE = "it must be a text of 1 to 64 printable characters"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (azure(("a", "", "b")), "line 3, column kind: there is no kind, which other rows have"),
        (azure(("", "a"), column="KIND"), "line 2, column KIND: there is no kind"),
        (azure(("a", "  ")), "line 3, column kind: there is no kind"),
        (azure(("a", "b" * 65)), f"line 3, column kind is 'b.*'; {RULE}"),
        (azure(("a", "b\x07")), rf"line 3, column kind is 'b\\x07'; {RULE}"),
        (azure(("a", "b")).replace("Region", "Kind"), "line 1: column 'kind' appears twice"),
        (burstgpt(("a", "b", "")), "line 4, column Kind: there is no kind"),
        (json_lines(tuple(map(str, range(1001)))), "column kind: more than 1,000 different texts"),
        (json_lines(("a", None)), "line 2, column kind: there is no kind, which other rows have"),
        (json_lines((None, "a")), "line 1, column kind: there is no kind"),
        (json_lines(("a", " ")), "line 2, column kind: there is no kind"),
        (json_lines(("a", "b" * 65)), f"line 2, column kind is 'b.*'; {RULE}"),
        (json_lines(("a", "b\nc")), rf"line 2, column kind is 'b\\nc'; {RULE}"),
        (json_lines(("a", "b")).replace('"b"', "7"), f"line 2, column kind is 7; {RULE}"),
        (json_lines(("a", "b")).replace('"b"', "true"), f"line 2, column kind is True; {RULE}"),
        (json_lines(("a", "b")).replace('"b"', "[]"), rf"line 2, column kind is \[\]; {RULE}"),
    ],
)
def test_defects_of_kinds_are_named(write, content: str, message: str) -> None:
    """Every defect gives one sentence with the file, the line and the column."""
    path = write(content)
    with pytest.raises(InputError, match=message) as caught:
        load_trace(path)
    assert str(caught.value).startswith(str(path)) and "\n" not in str(caught.value)


def test_the_longest_name_is_read(write) -> None:
    """64 characters, of any script."""
    name = "ж" * 64
    assert load_trace(write(azure((name, "a")))).kinds == ("a", name)
    assert load_trace(write(json_lines((name, "a")))).kinds == ("a", name)


def test_a_kind_of_failed_requests_alone_is_none(write) -> None:
    """What is left out of the trace leaves no empty kind behind."""
    text = burstgpt(("b", "a", "c", "b")).replace(",11,4,", ",11,0,")
    trace = load_trace(write(text))
    assert trace.skipped == 1
    assert trace.kinds == ("b", "c") and told(trace) == ["b", "c", "b"]


def test_rows_that_differ_in_kind_are_not_the_same(write) -> None:
    """They are two requests, where two rows that are equal in all columns are refused."""
    row = "2000-01-01 00:00:01,3,4,"
    header = "TIMESTAMP,ContextTokens,GeneratedTokens,kind\n"
    assert told(load_trace(write(f"{header}{row}a\n{row}b\n"))) == ["a", "b"]
    with pytest.raises(InputError, match="line 4: the same row as one before it"):
        load_trace(write(f"{header}{row}a\n{row}b\n{row}a\n"))


def test_requests_are_chosen_with_their_kinds() -> None:
    """A part of a trace begins at 0, and has no kind that none of its requests has."""
    trace = Trace(
        np.array([0.0, 1.0, 2.5, 4.0]),
        np.array([1, 200_000, 3, 4], np.int32),
        np.array([5, 6, 7, 8], np.int32),
        kinds=("a", "b", "c"),
        kind=np.array([1, 0, 2, 1], np.int32),
    )
    part = trace.chosen(np.array([False, False, True, True]))
    assert part.arrival_s.tolist() == [0.0, 1.5]
    assert part.prompt_tokens.tolist() == [3, 4] and part.output_tokens.tolist() == [7, 8]
    assert part.kinds == ("b", "c") and told(part) == ["c", "b"]
    assert told(trace.within_table()) == told(trace)
    with pytest.raises(InputError, match="at least one request"):
        trace.chosen(np.zeros(4, bool))
    plain = dataclasses.replace(trace, kinds=(), kind=None)
    assert plain.chosen(np.ones(4, bool)).kind is None


@given(st.lists(st.sampled_from(["d", "b", "", "a", "c"]), min_size=1))
def test_numbering_keeps_names(names: list[str]) -> None:
    """Each request's number stands for its name, and names are sorted and all in use."""
    texts = ["d", "a", "", "unused", "c", "b"]
    kinds, kind = number_kinds(texts, np.array([texts.index(name) for name in names]))
    assert kinds == tuple(sorted(set(names)))
    assert [kinds[i] for i in kind] == names


@given(st.text())
def test_kinds_fit_in_a_line(text: str) -> None:
    """A name of a kind has neither line ends nor more than 64 characters, and is not empty."""
    if is_kind(text):
        assert len(text.splitlines()) == 1 and len(text) <= 64


@pytest.mark.parametrize(
    ("kinds", "kind", "message"),
    [
        (("a",), None, r"kinds is \('a',\); it must be empty where kind is None"),
        ((), [0, 0], "kind must hold the place of each of kinds"),
        (("b", "a"), [0, 1], r"kinds is \('b', 'a'\); it must be sorted names, each only once"),
        (("a", "a"), [0, 1], "it must be sorted names, each only once"),
        (("",), [0, 0], f"a name in kinds is ''; {RULE} without space around it"),
        ((" a",), [0, 0], f"a name in kinds is ' a'; {RULE}"),
        ((7,), [0, 0], f"a name in kinds is 7; {RULE}"),
        (("a",), [0], "kind must hold one whole number for each request"),
        (("a",), [[0, 0]], "kind must hold one whole number for each request"),
        (("a",), [0.0, 0.0], "kind must hold one whole number for each request"),
        (("a", "b"), [0, 2], "kind must hold the place of each of kinds at least once"),
        (("a", "b"), [0, -1], "kind must hold the place of each of kinds at least once"),
        (("a", "b"), [1, 1], "kind must hold the place of each of kinds at least once"),
    ],
)
def test_kinds_are_checked_when_built_by_hand(kinds, kind, message: str) -> None:
    """Names and numbers of a trace belong together."""
    ones = np.ones(2, np.int32)
    given = None if kind is None else np.array(kind)
    with pytest.raises(InputError, match=message):
        Trace(np.zeros(2), ones, ones, kinds=kinds, kind=given)
