"""Trace files: every format is read exactly, and every defect is named with file, line, column."""

import gzip
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from jaxserve.errors import InputError
from jaxserve.sim.traffic.trace_files import reading
from jaxserve.sim.traffic.trace_files.part import TracePart
from jaxserve.sim.traffic.traces import Trace, load_trace, spread_in_ticks

DATA = Path(__file__).resolve().parents[2] / "data"
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
BURSTGPT = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
FIRST = "2000-01-01 00:00:01.0000000"
LATER = "2000-01-01 00:00:02.5000001"


@pytest.fixture
def write(tmp_path: Path):
    """Writes a file and returns its path."""

    def write_file(content: str | bytes, name: str = "trace") -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write_file


@pytest.mark.parametrize(
    ("name", "format", "requests", "skipped"),
    [
        ("azure_small.csv", "azure", 40, 0),
        ("mooncake_small.jsonl", "mooncake", 40, 0),
        ("burstgpt_small.csv", "burstgpt", 34, 6),
    ],
)
def test_each_format_is_read_and_recognised(
    name: str, format: str, requests: int, skipped: int
) -> None:
    """A sample of each format loads alike with its format named and without."""
    trace = load_trace(DATA / name, format)
    assert (len(trace), trace.skipped) == (requests, skipped)
    assert trace.arrival_s[0] == 0.0 and trace.duration_s > 1.0
    assert trace.arrival_s.dtype == np.float64 and trace.prompt_tokens.dtype == np.int32
    assert trace.output_tokens.dtype == np.int32
    found = load_trace(DATA / name)
    np.testing.assert_array_equal(found.arrival_s, trace.arrival_s)
    np.testing.assert_array_equal(found.prompt_tokens, trace.prompt_tokens)


def test_azure_values(write) -> None:
    """Seven fractional digits, carriage returns and tokens come through exactly."""
    text = AZURE + f"{FIRST},374,44\n{LATER},396,109\n"
    trace = load_trace(write(text.replace("\n", "\r\n")))
    np.testing.assert_allclose(trace.arrival_s, [0.0, 1.5000001], rtol=0, atol=1e-12)
    assert trace.prompt_tokens.tolist() == [374, 396]
    assert trace.output_tokens.tolist() == [44, 109]


@pytest.mark.parametrize("offset", ["+00:00", "Z", "-07:00"])
def test_azure_times_with_an_offset(write, offset: str) -> None:
    """The 2024 files' times with a UTC offset, whole seconds among them, are read too."""
    text = f"{AZURE}2024-05-12 00:00:00{offset},374,44\n2024-05-12T00:00:01.250000{offset},396,109"
    np.testing.assert_allclose(load_trace(write(text)).arrival_s, [0.0, 1.25])


def test_times_cross_midnight_and_leap_day(write) -> None:
    """Times are calendar times, not clock readings."""
    text = AZURE + "2024-02-28 23:59:59.5,1,1\n2024-02-29 00:00:00.5,1,1\n2024-03-01 00:00:00.5,1,1"
    np.testing.assert_allclose(load_trace(write(text)).arrival_s, [0.0, 1.0, 86401.0])


def test_mooncake_values(write) -> None:
    """Milliseconds become seconds; other keys and fractions of a millisecond do not disturb."""
    text = (
        '{"timestamp": 27482, "input_length": 955, "output_length": 52, "hash_ids": [46, 47]}\n'
        '{"output_length": 26.0, "timestamp": 30535.5, "input_length": 6472}\n'
    )
    trace = load_trace(write(text))
    np.testing.assert_allclose(trace.arrival_s, [0.0, 3.0535])
    assert trace.prompt_tokens.tolist() == [955, 6472]
    assert trace.output_tokens.tolist() == [52, 26]


def test_burstgpt_values(write) -> None:
    """Failed requests (zero tokens) are left out and counted; columns may stand in any order."""
    text = (
        "Model,Session ID,Response tokens,Request tokens,Timestamp\n"
        'ChatGPT,,18,472,5\nGPT-4,"a, b",0,586,6.5\nChatGPT,7,0,0,6.5\nChatGPT,7,230,1087,45\n'
    )
    trace = load_trace(write(text))
    assert trace.arrival_s.tolist() == [0.0, 40.0] and trace.skipped == 2
    assert trace.prompt_tokens.tolist() == [472, 1087]
    assert trace.output_tokens.tolist() == [18, 230]


def test_byte_order_mark_spaces_and_final_blank_lines_are_harmless(write) -> None:
    """What spreadsheets add to a file does not make it unreadable."""
    text = "\ufeff" + AZURE.replace(",", ", ") + f"{FIRST}, 374 ,44.0\n\n\n"
    assert load_trace(write(text)).prompt_tokens.tolist() == [374]


@given(st.floats(1e-3, 1e3))
def test_time_scale_compresses_time(scale: float) -> None:
    """A time scale of 2 doubles the rate and changes no length."""
    trace = load_trace(DATA / "azure_small.csv")
    scaled = load_trace(DATA / "azure_small.csv", time_scale=scale)
    np.testing.assert_allclose(scaled.arrival_s * scale, trace.arrival_s, rtol=1e-12)
    np.testing.assert_array_equal(scaled.prompt_tokens, trace.prompt_tokens)


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf])
def test_bad_time_scale(scale: float) -> None:
    """A time scale that is not a finite number above 0 is refused."""
    with pytest.raises(InputError, match=r"time_scale is .*; it must be a finite number above 0"):
        load_trace(DATA / "azure_small.csv", time_scale=scale)


def test_unknown_format() -> None:
    """An unknown format's error lists the known ones."""
    with pytest.raises(
        InputError,
        match="format is 'csv'; it must be one of azure, mooncake, bailian, timed, burstgpt, timed",
    ):
        load_trace(DATA / "azure_small.csv", format="csv")


BAD_CSV = [
    ("", "is empty"),
    (" \n\n", "is empty"),
    (AZURE, "has a header but no rows"),
    ("time,tokens\n1,2\n", "line 1: it has time, tokens, which is no known trace; the nearest is"),
    ("TIMESTAMP,ContextTokens\n", "line 1: column 'GeneratedTokens' is missing; the azure"),
    ("Timestamp,Request tokens\n", "line 1: column 'Response tokens' is missing; the burstgpt"),
    (AZURE.strip() + ",TIMESTAMP\n", "line 1: column 'TIMESTAMP' appears twice"),
    (AZURE + f"{FIRST},374\n", "line 2: 2 cells, but the header has 3"),
    (AZURE + f"{FIRST},374,44\n{LATER},1,2,3\n", "line 3: 4 cells, but the header has 3"),
    (AZURE + f"{FIRST},374,44\n\n{LATER},1,2\n", "line 3, column TIMESTAMP is ''; it must be a t"),
    (AZURE + f"{FIRST},,44\n", "line 2, column ContextTokens is ''; it must be a whole number"),
    (
        AZURE + f"{FIRST},374,44\n{LATER},nan,4\n",
        "line 3, column ContextTokens is 'nan'; it must be",
    ),
    (AZURE + f"{FIRST},-5,44\n", "line 2, column ContextTokens is '-5'; it must be a whole number"),
    (AZURE + f"{FIRST},374,44.5\n", "line 2, column GeneratedTokens is '44.5'; it must be a whole"),
    (AZURE + f"{FIRST},374,1e3\n", "line 2, column GeneratedTokens is '1e3'; it must be a whole"),
    (
        AZURE + f"{FIRST},374,20000000\n",
        "line 2, column GeneratedTokens is '20000000'; .* 10000000",
    ),
    (AZURE + f"{FIRST},9{'9' * 30},1\n", "line 2, column ContextTokens is '9999"),
    (AZURE + f"{FIRST},0,44\n{LATER},3,0\n", "holds no request with tokens, only failed ones"),
    (
        AZURE + "yesterday,374,44\n",
        "line 2, column TIMESTAMP is 'yesterday'; it must be a time like",
    ),
    (AZURE + "2023-13-16 18:17:03,3,4\n", "line 2, column TIMESTAMP is '2023-13-16 18:17:03'"),
    (AZURE + f"{FIRST},3,4\n2000-02-30 00:00:00,3,4\n", "line 3, column TIMESTAMP is '2000-02-30"),
    (
        AZURE + f"{FIRST}+00:00,3,4\n{LATER},3,4\n",
        "line 3, column TIMESTAMP is '2000-01-01 00:00:02.5000001'; .* like the first row",
    ),
    (AZURE + f"{LATER},3,4\n{FIRST},3,4\n", "line 3, column TIMESTAMP: earlier than the line"),
    (AZURE + f"{FIRST},3,4\n{FIRST},3,5\n{FIRST},3,4\n", "line 4: the same row as one before it"),
    (BURSTGPT + "-5,G,3,4,7,L\n", "line 2, column Timestamp is '-5'; it must be a finite number"),
    (BURSTGPT + "inf,G,3,4,7,L\n", "line 2, column Timestamp is 'inf'; it must be a finite number"),
    (
        BURSTGPT + "1e999,G,3,4,7,L\n",
        "line 2, column Timestamp is '1e999'; it must be a finite number",
    ),
    (BURSTGPT + "5,G,3,4,7,L\n4,G,3,4,7,L\n", "line 3, column Timestamp: earlier than the line"),
    (BURSTGPT + "5,G,0,0,0,L\n", "holds no request with tokens, only failed ones"),
    (BURSTGPT + "5,G,3,4,7,L\n5,G,3,4,7,L\n", "line 3: the same row as one before it"),
    (AZURE + f'"{FIRST},3,4\n{LATER},3,4\n', "line 2: 1 cells, but the header has 3"),
    (b"\x89PNG\r\n\x1a\n\xff\xd8", "line 1: not UTF-8 text"),
    (AZURE.encode() + b"\xe9,3,4\n", "line 2: not UTF-8 text"),
    (AZURE + f"{FIRST},3\0,4\n", "line 2: a zero byte, so this is not a text file"),
]

ROW = '{"timestamp": 0, "input_length": 3, "output_length": 4, "hash_ids": [5]}\n'
BAD_JSONL = [
    (ROW + "{\n", "line 2, column 2: not JSON: Expecting property name"),
    (ROW + "\n" + ROW, "line 2, column 1: not JSON: Expecting value"),
    (ROW + "[1, 2]\n", r"line 2 is \[1, 2\]; it must be a JSON object"),
    ('{"timestamp": 0, "input_length": 3}\n', "line 1: output_length is missing"),
    (ROW.replace("3", "-3"), "line 1: input_length is -3; it must be a whole number"),
    (ROW.replace("3", "2.5"), "line 1: input_length is 2.5; it must be a whole number"),
    (ROW.replace("3", "NaN"), "line 1: input_length is nan; it must be a whole number"),
    (ROW.replace("3", "null"), "line 1: input_length is None; it must be a whole number"),
    (ROW.replace("3", "true"), "line 1: input_length is True; it must be a whole number"),
    (ROW.replace("3", '"3"'), "line 1: input_length is '3'; it must be a whole number"),
    (ROW.replace("3", "9" * 5000), "line 1: a number too long or nesting too deep"),
    ('{"timestamp": ' + "[" * 99_999, "line 1: a number too long or nesting too deep"),
    (ROW.replace(": 0", ": -1"), "line 1: timestamp is -1; it must be a number"),
    (ROW.replace(": 0", ": Infinity"), "line 1: timestamp is inf; it must be a number"),
    (ROW.replace(": 0", ": 9") + ROW, "line 2, column timestamp: earlier than the line before"),
    (ROW + ROW, "line 2: the same row as one before it"),
]


@pytest.mark.parametrize(("content", "message"), BAD_CSV + BAD_JSONL)
def test_defects_are_named(write, content: str | bytes, message: str) -> None:
    """Every defect gives one sentence with the file, and the line and column where there are."""
    path = write(content)
    with pytest.raises(InputError, match=message) as caught:
        load_trace(path)
    assert str(caught.value).startswith(str(path)) and "\n" not in str(caught.value)


def test_defect_far_down_is_found_on_its_line(write) -> None:
    """Line numbers stay right behind many good rows."""
    rows = [f"{i},GPT-4,{3 + i},4,7,API log" for i in range(50_000)]
    rows[43_210] = rows[43_210].replace("GPT-4,43213", "GPT-4,none")
    with pytest.raises(InputError, match="line 43212, column Request tokens is 'none'"):
        load_trace(write(BURSTGPT + "\n".join(rows)))


def test_equal_rows_of_a_coarse_clock_are_requests(write) -> None:
    """Whole seconds and batched milliseconds can repeat a row; both requests are kept."""
    rows = "5,G,3,4,7,L\n5,G,3,4,7,L\n6,G,3,4,7,L\n"
    assert len(load_trace(write(BURSTGPT + rows))) == 3
    assert len(load_trace(write(ROW + ROW + ROW.replace("3", "5")))) == 3


def test_equal_times_with_other_tokens_are_requests(write) -> None:
    """Requests at the same time are fine in every format."""
    assert len(load_trace(write(AZURE + f"{FIRST},3,4\n{FIRST},3,5\n{FIRST},4,4\n"))) == 3


def test_requests_of_a_coarse_tick_are_spread_over_it(write) -> None:
    """Ticks of three seconds, one a millisecond short, as in the published Mooncake trace."""
    ticks = [0, 2_999, *range(6_000, 60_000, 3_000)]
    rows = [
        {"timestamp": tick, "input_length": 9, "output_length": 4, "hash_ids": [tick]}
        for tick in ticks
        for _ in "12"
    ]
    path = write(
        "".join(json.dumps(row | {"output_length": i + 1}) + "\n" for i, row in enumerate(rows))
    )
    trace = load_trace(path)
    assert trace.tick_s == 3.0 and "every 3 s" in (trace.note() or "")
    # Every request is in its tick, which begins that much later than the first request.
    into_tick_s = trace.arrival_s - 1e-3 * np.repeat(ticks, 2)
    assert trace.arrival_s[0] == 0.0
    assert into_tick_s.max() - into_tick_s.min() < 3.0 and len(set(into_tick_s)) == len(rows)
    assert (np.diff(trace.arrival_s) > 0.0).all()
    assert (trace.output_tokens == 1 + np.arange(len(rows))).all()
    np.testing.assert_array_equal(trace.arrival_s, load_trace(path).arrival_s)
    twice = load_trace(DATA / "azure_small.csv")
    assert twice.tick_s is None and twice.note() is None


def test_times_in_a_tick_are_those_of_a_poisson_process() -> None:
    """Times in their ticks are uniform, and times between requests vary as much as those of the
    process that the clock hid; equal distances would vary by half."""
    rng = np.random.default_rng(7)
    hidden_s = np.cumsum(rng.exponential(0.25, 20_000))
    spread_s = spread_in_ticks(np.floor(hidden_s), 1.0)
    gaps_s = np.diff(spread_s)
    assert gaps_s.std() / gaps_s.mean() == pytest.approx(1.0, abs=0.03)
    assert stats.kstest(np.diff(spread_s), "expon", (0.0, gaps_s.mean())).pvalue > 1e-3
    moved_s = spread_s - hidden_s
    assert moved_s.max() - moved_s.min() < 2.0


@pytest.mark.parametrize("step_s", [0.4, 7.3])
def test_a_clock_that_ticks_is_left_alone(write, step_s: float) -> None:
    """Short ticks, and long gaps that are multiples of nothing."""
    times = np.cumsum(np.tile([step_s, 1.37 * step_s], 20))
    rows = [f"{time:.3f},G,{3 + i},4,7,L" for i, time in enumerate(np.repeat(times, 2))]
    trace = load_trace(write(BURSTGPT + "\n".join(rows)))
    assert trace.tick_s is None and trace.arrival_s[0] == trace.arrival_s[1]


def test_format_named_against_the_content(write) -> None:
    """Naming a format the file does not have is an error about the first line."""
    with pytest.raises(InputError, match="line 1, column 1: not JSON"):
        load_trace(write(AZURE + f"{FIRST},3,4\n"), format="mooncake")
    with pytest.raises(InputError, match="line 1: column 'TIMESTAMP' is missing"):
        load_trace(write(ROW), format="azure")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """A missing file and a folder give one sentence, not a traceback."""
    with pytest.raises(InputError, match="cannot be read: No such file"):
        load_trace(tmp_path / "absent.csv")
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        load_trace(tmp_path)


def test_more_requests_than_a_trace_may_have(write, monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal names the options with which the file is read."""
    path = write(AZURE + f"{FIRST},3,4\n{LATER},3,4\n")
    monkeypatch.setattr(reading, "MAX_TRACE_ROWS", 1)
    with pytest.raises(InputError, match=r"more than 1 requests; take a part .*--for 2h.*--sample"):
        load_trace(path)
    assert len(load_trace(path, part=TracePart(length="1s"))) == 1


def test_traces_are_checked_when_built_by_hand() -> None:
    """A trace begins at 0 and has no times out of order, uneven columns or empty requests."""
    ones = np.ones(2, np.int32)
    with pytest.raises(InputError, match="must not decrease"):
        Trace(np.array([1.0, 0.0]), ones, ones)
    with pytest.raises(InputError, match=r"arrival_s\[0\] is 5.0; it must be 0"):
        Trace(np.array([5.0, 6.0]), ones, ones)
    with pytest.raises(InputError, match="all columns of one length"):
        Trace(np.array([0.0, 1.0]), ones[:1], ones)
    with pytest.raises(InputError, match="at least one request"):
        Trace(np.zeros(0), ones[:0], ones[:0])
    with pytest.raises(InputError, match="at least 1"):
        Trace(np.array([0.0, 1.0]), 0 * ones, ones)


def test_repeated_blocks_are_counted(write) -> None:
    """Of hash ids the share of prompt tokens in blocks that came before is told."""
    rows = [
        {"timestamp": 0, "input_length": 1000, "output_length": 4, "hash_ids": [7, 8]},
        {"timestamp": 1, "input_length": 700, "output_length": 4, "hash_ids": [7, 9]},
        {"timestamp": 2, "input_length": 600, "output_length": 4, "hash_ids": [7, 8, 9]},
    ]
    trace = load_trace(write("".join(json.dumps(row) + "\n" for row in rows)))
    assert trace.repeated_share == pytest.approx((512 + 512 + 88) / 2300)


@pytest.mark.parametrize("blocks", [None, [], 7, "7", {}])
def test_blocks_without_names_are_not_counted(write, blocks: Any) -> None:
    """Where a file has no hash ids nothing is said of them."""
    row = {"timestamp": 0, "input_length": 1000, "output_length": 4, "hash_ids": blocks}
    trace = load_trace(write(json.dumps(row)))
    assert trace.repeated_share is None and trace.blocks is None
    assert load_trace(DATA / "azure_small.csv").repeated_share is None


def test_bailian_traces_count_seconds_and_short_blocks(write) -> None:
    """Lines with a chat_id have timestamps in seconds, and ids of 16 tokens."""
    rows = [
        {
            "chat_id": i,
            "timestamp": 1.5 * i,
            "input_length": 40,
            "output_length": 4,
            "hash_ids": ids,
        }
        for i, ids in enumerate(([5, 6, 7], [5, 6, 8]))
    ]
    trace = load_trace(write("".join(json.dumps(row) + "\n" for row in rows)))
    assert trace.blocks is not None and trace.blocks.tokens == 16
    assert trace.arrival_s.tolist() == [0.0, 1.5]
    assert trace.repeated_share == pytest.approx(32 / 80)


def test_compressed_traces_are_read(write) -> None:
    """gzip makes no difference, and a damaged file is named."""
    path = DATA / "mooncake_small.jsonl"
    packed = gzip.compress(path.read_bytes())
    found, plain = load_trace(write(packed, "trace.gz")), load_trace(path)
    np.testing.assert_array_equal(found.arrival_s, plain.arrival_s)
    with pytest.raises(InputError, match="damaged"):
        load_trace(write(packed[: len(packed) // 2], "half.gz"))


def test_requests_beyond_the_tables_are_counted_and_shortened() -> None:
    """What latency tables do not know is said, with how much it is."""
    trace = Trace(
        np.array([0.0, 1.0, 2.0]),
        np.array([131_000, 200_000, 131_000], np.int32),
        np.array([72, 100, 200], np.int32),
    )
    assert trace.beyond_table == (2, 69_028 + 128)
    assert "2 of 3 requests are longer" in (trace.note() or "")
    assert "69,156 tokens" in (trace.note() or "")
    shorter = trace.within_table()
    assert shorter.prompt_tokens.tolist() == [131_000, 130_972, 130_872]
    assert shorter.output_tokens.tolist() == [72, 100, 200]
    assert shorter.beyond_table == (0, 0)
    assert shorter.within_table() is shorter
    assert shorter.note() is None


PLAIN = "Timestamp,Request tokens,Response tokens\n"


def json_lines(times: list[float], **fields: Any) -> str:
    """Requests at these times in the fields of Mooncake's traces."""
    rows = [{"timestamp": t, "input_length": 40, "output_length": 4} | fields for t in times]
    return "".join(json.dumps(row) + "\n" for row in rows)


@given(st.lists(st.floats(0.0, 9.9), min_size=1, max_size=30), st.integers(1, 12))
def test_sums_over_windows_are_those_of_their_requests(times_s: list[float], windows: int) -> None:
    """Windows without requests have none; the last one lasts until the end."""
    arrival_s = np.sort(np.array(times_s) - min(times_s))
    tokens = np.arange(1, len(arrival_s) + 1, dtype=np.int32)
    trace = Trace(arrival_s, tokens, tokens)
    place = np.minimum(arrival_s.astype(int), windows - 1)
    expected = np.bincount(place, tokens, windows)
    np.testing.assert_array_equal(trace.sums(tokens, 1.0, windows), expected)
    np.testing.assert_array_equal(trace.counts(1.0, windows), np.bincount(place, None, windows))


def test_blocks_of_16_tokens_are_not_mooncakes(write) -> None:
    """A replay of GuideLLM or vLLM has them, and times in seconds."""
    trace = load_trace(write(json_lines([0, 1, 3], hash_ids=[1, 2, 3])))
    assert trace.blocks is not None and trace.blocks.tokens == 16
    assert trace.arrival_s.tolist() == [0.0, 1.0, 3.0]


def test_calendar_times_have_no_unit() -> None:
    """A unit that is named for them is a mistake."""
    with pytest.raises(InputError, match="calendar times"):
        load_trace(DATA / "azure_small.csv", time_unit="ms")


def test_a_csv_in_milliseconds(write) -> None:
    """A unit that is named holds for every format with a clock."""
    trace = load_trace(write(PLAIN + "0,9,9\n1500,9,9\n"), time_unit="ms")
    assert trace.arrival_s.tolist() == [0.0, 1.5]


def test_what_was_understood_is_one_line(write) -> None:
    """Number, length, rate, lengths, and what failed."""
    trace = load_trace(write(PLAIN + "0,100,10\n300,9,0\n600,300,30\n"))
    assert trace.summary == (
        "2 requests in 10 min, 0.00333/s (times in s), prompts of 200 and outputs of 20 tokens "
        "on average; 1 that failed are left out"
    )
    assert trace.note() == "1 of 3 requests failed and are left out"


def test_an_unknown_log_is_told_from_a_trace(write) -> None:
    """Another tool's file is named by what it has and what is known."""
    with pytest.raises(
        InputError, match="line 1: it has arrival_time_ns, input_toks, which is no known trace"
    ):
        load_trace(write('{"input_toks": 3, "arrival_time_ns": 5}\n'))
