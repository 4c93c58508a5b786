"""Objectives that users name for kinds of requests, in Python and on the command line."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.errors import InputError
from jaxserve.sim.traffic.traces import Trace
from jaxserve.tasks.slos import KindSlo, check_slos, parse_slo
from jaxserve.tasks.spec import TPOT_SLO_S, TTFT_SLO_S

ONES = np.ones(2, np.int32)
PLAIN = Trace(np.zeros(2), ONES, ONES)
NAMED = Trace(np.zeros(2), ONES, ONES, kinds=("batch", "chat"), kind=np.array([1, 0], np.int32))
GOOD = KindSlo(0.5, 0.05)


@given(st.floats(*TTFT_SLO_S), st.floats(*TPOT_SLO_S), st.none() | st.integers(0, 2))
def test_the_command_line_says_what_python_does(
    ttft_s: float, tpot_s: float, priority: int | None
) -> None:
    """Every objective in range has a text that stands for it."""
    text = f"long documents:tpot={tpot_s!r},ttft={ttft_s!r}"
    text += "" if priority is None else f",priority={priority}"
    assert parse_slo(text) == ("long documents", KindSlo(ttft_s, tpot_s, priority))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("chat", "'chat' is not understood; it must be like chat:ttft=0.5,tpot=0.05"),
        ("chat:ttft=0.5,tpot=0.05,rank=1", "is not understood; it must be like chat:"),
        ("chat:ttft=0.5,ttft=0.5,tpot=0.05", "is not understood; it must be like chat:"),
        ("chat:ttft=0.5", "has no tpot; it must be like chat:ttft=0.5,tpot=0.05"),
        ("chat:priority=1", "has no ttft and tpot; it must be like chat:"),
        ("chat:ttft=500,tpot=0.05", "ttft_s is 500.0; it must be in seconds, from 0.001"),
        ("chat:ttft=0.5,tpot=50", "tpot_s is 50.0; it must be in seconds, from 0.0001"),
        ("chat:ttft=half,tpot=0.05", "ttft_s is 'half'; it must be in seconds, from"),
        ("chat:ttft=nan,tpot=0.05", "ttft_s is nan; it must be in seconds, from"),
        ("chat:ttft=0.5,tpot=0.05,priority=3", "priority is 3; it must be a whole number from 0"),
        ("chat:ttft=0.5,tpot=0.05,priority=1.0", "priority is '1.0'; it must be a whole number"),
    ],
)
def test_text_that_names_no_objectives(text: str, message: str) -> None:
    """One sentence, which shows the option and its text."""
    with pytest.raises(InputError) as refused:
        parse_slo(text, "--objective")
    assert str(refused.value).startswith(f"--objective {text!r}")
    assert message in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1000, 0.05), "ttft_s is 1000; it must be in seconds, from 0.001 to 120"),
        ((120.5, 0.05), "ttft_s is 120.5; it must be in seconds, from 0.001 to 120"),
        ((0.0009, 0.05), "ttft_s is 0.0009; it must be in seconds, from 0.001 to 120"),
        ((0.5, 10.5), "tpot_s is 10.5; it must be in seconds, from 0.0001 to 10"),
        ((0.5, 0), "tpot_s is 0; it must be in seconds, from 0.0001 to 10"),
        (("0.5", 0.05), "ttft_s is '0.5'; it must be in seconds, from"),
        ((True, 0.05), "ttft_s is True; it must be in seconds, from"),
        ((0.5, 0.05, 3), "priority is 3; it must be a whole number from 0 to 2"),
        ((0.5, 0.05, 1.0), "priority is 1.0; it must be a whole number from 0 to 2"),
    ],
)
def test_slips_of_units_are_refused(arguments: tuple[Any, ...], message: str) -> None:
    """Milliseconds are larger than any objective; the sentence says that it is in seconds."""
    with pytest.raises(InputError) as refused:
        KindSlo(*arguments)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("slos", "trace", "message"),
    [
        ({"chat": GOOD}, NAMED, "slos has no objectives of 'batch'; every kind of the trace must"),
        (
            {"chat": GOOD, "batch": GOOD, "code": GOOD},
            NAMED,
            "slos has objectives of 'code'; the kinds of the trace are 'batch', 'chat'",
        ),
        ({"Chat": GOOD, "batch": GOOD}, NAMED, "slos has objectives of 'Chat'; the kinds"),
        ({"chat": GOOD}, PLAIN, "slos has objectives of 'chat', but the trace does not say of"),
        ({"chat": (0.5, 0.05)}, NAMED, r"slos['chat'] is (0.5, 0.05); it must be a KindSlo"),
        ({5: None}, NAMED, "slos[5] is None; it must be a KindSlo"),
        ([GOOD], NAMED, "it must be a mapping from kinds of requests to KindSlo"),
    ],
)
def test_objectives_are_those_of_the_kinds(slos: Any, trace: Trace, message: str) -> None:
    """Each kind has them, no other has, and a sentence names the kind that is wrong."""
    with pytest.raises(InputError) as refused:
        check_slos(slos, trace)
    assert message in str(refused.value)
    check_slos({"chat": GOOD, "batch": GOOD}, NAMED)
