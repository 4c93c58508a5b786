"""Checks: what is good passes through, what is not gets one sentence of one form."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve import checks
from jaxserve.checks import JsonObject
from jaxserve.errors import InputError

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
CHECKS: list[Callable[[Any], Any]] = [
    lambda value: checks.number("x", value, -1, 1),
    lambda value: checks.seconds("x", value, 0, 1),
    lambda value: checks.positive("x", value),
    lambda value: checks.whole("x", value, 0),
    lambda value: checks.one_of("x", value, ("a", "b")),
    lambda value: checks.address("x", value),
    lambda value: JsonObject({"y": value}, "x").text("y"),
    lambda value: JsonObject({"y": value}, "x").entries("y"),
    lambda value: JsonObject({"y": value}, "x").numbers("y", 2),
    lambda value: JsonObject({"y": value}, "x").rising_pair("y", 0, 1),
    lambda value: JsonObject({"y": value}, "x").inside("y", ("z",)),
]


@given(anything, st.sampled_from(CHECKS))
def test_good_passes_unchanged_and_bad_gets_a_sentence(value: Any, check: Any) -> None:
    """A check returns what it was given, or says in one short line: X is V; it must be this."""
    try:
        result = check(value)
    except InputError as error:
        text = str(error)
        assert text.startswith("x") and " is " in text
        assert "; it must be " in text or " is unknown; allowed are " in text
        assert len(text.splitlines()) == 1 and len(text) < 1000
    else:
        if isinstance(result, float | tuple):
            value = float(value) if isinstance(result, float) else tuple(map(float, value))
        assert result == value


@pytest.mark.parametrize(
    ("check", "sentence"),
    [
        (lambda: checks.number("x", 2, 0, 1), "x is 2; it must be a number from 0 to 1"),
        (lambda: checks.number("x", True, 0, 1), "x is True; it must be a number from 0 to 1"),
        (lambda: checks.number("x", math.nan), "x is nan; it must be a finite number"),
        (lambda: checks.number("x", math.inf, 0), "x is inf; it must be a finite number from 0 on"),
        (lambda: checks.number("x", np.float32(-1), 0.5, 1e-6 + 1), "from 0.5 to 1.000001"),
        (lambda: checks.seconds("x", 9, 0.5, 2), "x is 9; it must be in seconds, from 0.5"),
        (lambda: checks.positive("x", 0), "x is 0; it must be a finite number above 0"),
        (lambda: checks.whole("x", 1.0, 0, 9), "x is 1.0; it must be a whole number from 0 to 9"),
        (lambda: checks.whole("x", -1, 0), "x is -1; it must be a whole number from 0 on"),
        (lambda: checks.whole("x", 2, 1, 1), "x is 2; it must be 1"),
        (lambda: checks.whole("x", 10**999, 1, 2**31), "it must be a whole number from 1 to"),
        (lambda: checks.one_of("x", "c", ("a", "b")), "x is 'c'; it must be one of a, b"),
        (lambda: checks.ending("x", "a.csv", ".png"), "x is 'a.csv'; it must be a path that ends"),
        (lambda: JsonObject([1], "x"), "x is [1]; it must be a JSON object"),
        (lambda: JsonObject({"b": 1}, "x", ("a", "c")), "field 'b' is unknown; allowed are a, c"),
        (lambda: JsonObject({}, "x").whole("y", 0, 9), "x: y is missing; it must be a whole"),
        (lambda: JsonObject({}, "x").inside("y").text("z"), "x: y is missing; it must be a JSON"),
        (lambda: JsonObject({"y": {}}, "x").inside("y").text("z"), "x: y: z is missing; it must"),
        (lambda: JsonObject({"y": [1]}, "x").numbers("y", 3), "x: y is [1]; it must be 3 numbers"),
        (lambda: JsonObject({"y": [2, 1]}, "x").rising_pair("y", 0, 5), "numbers from 0 to 5"),
    ],
)  # fmt: skip
def test_sentences(check: Callable[[], Any], sentence: str) -> None:
    """Each check says name, value and what is allowed."""
    with pytest.raises(InputError) as caught:
        check()
    assert sentence in str(caught.value)


def test_a_default_stands_in_for_a_missing_field_only() -> None:
    """What a file leaves out is the default; what it says wrongly is refused."""
    fields = JsonObject({"a": None}, "x")
    assert fields.number("b", 0, 1, 0.5) == 0.5
    with pytest.raises(InputError, match="x: a is None"):
        fields.number("a", 0, 1, 0.5)


def test_numbers_of_numpy_are_numbers() -> None:
    """NumPy's scalars pass, and come out as Python's own."""
    assert type(checks.whole("x", np.int64(3), 0)) is int
    assert type(checks.number("x", np.float32(0.5))) is float


@given(st.text() | st.integers(-5, 120).map(str))
def test_digits(text: str) -> None:
    """A whole number in plain ASCII digits within the range, and nothing else."""
    try:
        found = checks.digits("N", text, 1, 100)
    except InputError as error:
        assert str(error).startswith("N is ") and text not in map(str, range(1, 101))
    else:
        assert text.isascii() and found == int(text) and 1 <= found <= 100


@given(st.text() | st.floats().map(repr))
def test_a_decimal_is_a_number_or_the_text_that_is_none(text: str) -> None:
    """What Python reads as a number is that number; other text stays, for the error to show."""
    found = checks.decimal(text)
    if isinstance(found, float):
        assert repr(found) == repr(float(text))
    else:
        assert found == text
        with pytest.raises(ValueError, match="could not convert"):
            float(text)


@pytest.mark.parametrize(
    ("text", "name", "values"),
    [
        ("chat:a=1,b=2", "chat", {"a": "1", "b": "2"}),
        ("chat:b=x", "chat", {"b": "x"}),
        (" long ones : b = 2 , a=1", "long ones", {"a": "1", "b": "2"}),
        ("a:b:a=1", "a:b", {"a": "1"}),
        ("a=1:a=-1e3", "a=1", {"a": "-1e3"}),
    ],
)
def test_assignments(text: str, name: str, values: dict[str, str]) -> None:
    """The last colon ends the name, fields are in any order, and their values are text."""
    assert checks.assignments("--x", text, ("a", "b"), "n:a=1") == (name, values)


@pytest.mark.parametrize(
    "text",
    [
        *("", "chat", "chat:", ":a=1", " :a=1", "chat:c=1", "chat:a", "chat:a=", "chat:a=1,"),
        *("chat:=1", "chat:a=1,a=2", "chat:a=1;b=2", "chat:a==1", "a=1", "x" * 999),
    ],
)
def test_what_is_no_assignment(text: str) -> None:
    """The error has an example, and stays short."""
    with pytest.raises(InputError) as refused:
        checks.assignments("--x", text, ("a", "b"), "n:a=1")
    message = str(refused.value)
    assert message.startswith(f"--x '{text[:30]}") and len(message) < 200
    assert message.endswith("' is not understood; it must be like n:a=1")


@pytest.mark.parametrize(
    "url",
    ["http://a", "https://a.b:8000", "HTTP://127.0.0.1:1/", "http://[::1]:80/v1", "http://a/b"],
)
def test_addresses(url: str) -> None:
    """With a path where one may be."""
    assert checks.address("x", url) == url
    if url.count("/") > 2:
        with pytest.raises(InputError, match="without a user, a path or a query"):
            checks.address("x", url, path=False)


@pytest.mark.parametrize(
    "url",
    [
        *("", "a:80", "ftp://a", "http://", "http://a b", "http://a?b", "http://a#b", "http://[a"),
        *("http://a:0", "http://a:65536", "http://a:b", "http://u@a", "http://a/u@b"),
    ],
)
def test_what_is_no_address(url: str) -> None:
    """The error has an example."""
    with pytest.raises(InputError, match="it must be an address such as http://b:1, without"):
        checks.address("x", url, "http://b:1")


@given(st.sampled_from(["http://", "x=https://", "//", ""]), st.text(), st.text())
def test_passwords_are_not_shown(start: str, user: str, password: str) -> None:
    """Whatever is in them, and wherever one stands that should not."""
    secret = f"{user}hunter2{password}"
    with pytest.raises(InputError) as refused:
        checks.address("x", f"{start}{secret}@host")
    assert "hunter2" not in str(refused.value)


def test_secrets_are_not_shown() -> None:
    """What cannot be sent in a header is refused without its value; nothing is no secret."""
    assert checks.secret({"KEY": "sk-1"}, "KEY") == "sk-1"
    assert checks.secret({"KEY": ""}, "KEY") is checks.secret({}, "KEY") is None
    for text in ("two words", "line\n", "gehe\xefm"):
        with pytest.raises(InputError, match="KEY has other than printable ASCII") as refused:
            checks.secret({"KEY": text}, "KEY")
        assert text not in str(refused.value)


@pytest.mark.parametrize("text", ["H100-SXM-80GB", "h100_sxm_80gb", "H100 sxm 80GB"])
def test_names_in_any_case_and_with_any_dashes(text: str) -> None:
    """A name that is spelt otherwise is the known one; an unknown value stays as it is."""
    names = ("h100-sxm-80gb", "l40s-48gb")
    assert checks.known_name(text, names) == names[0]
    assert checks.known_name("tpu", names) == "tpu" and checks.known_name(3, names) == 3


@pytest.mark.parametrize(
    ("text", "near"), [("h100", True), ("h100-smx-80gb", True), ("tpu", False)]
)
def test_an_unknown_name_is_told_the_nearest(text: str, near: bool) -> None:
    """The beginning of a name, or nearly a name; nothing for any other text."""
    with pytest.raises(InputError) as found:
        checks.refuse_name("gpu", text, ("h100-sxm-80gb", "l40s-48gb"), " or a path")
    start = f"gpu is '{text}'; it must be one of h100-sxm-80gb, l40s-48gb or a path"
    assert str(found.value) == start + ("; did you mean h100-sxm-80gb?" if near else "")
