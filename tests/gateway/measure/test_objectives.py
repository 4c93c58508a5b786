"""Classes of requests and what is good in each."""

from __future__ import annotations

import math

import pytest

from jaxserve.errors import InputError
from jaxserve.gateway.measure.objectives import LatencyObjectives, RequestClasses


def test_classes() -> None:
    """An unknown name is ``other``: clients make no classes. Whoever names none is ``default``."""
    classes = RequestClasses(("chat:ttft=0.5,tpot=0.05", "bulk:tpot=0.2", "default:ttft=2"))
    assert classes.names == ("default", "chat", "bulk", "other")
    assert classes.slos["chat"] == LatencyObjectives(0.5, 0.05)
    assert classes.slos["bulk"] == LatencyObjectives(math.inf, 0.2)
    assert classes.slos["default"] == LatencyObjectives(2.0)
    names = [classes.name(asked) for asked in (None, "chat", "x" * 999)]
    assert names == ["default", "chat", "other"]


def test_good() -> None:
    """Both limits count, and one token has no TPOT."""
    slo = LatencyObjectives(0.5, 0.05)
    assert slo.met(0.5, 0.05) and slo.met(0.1, None)
    assert not slo.met(0.51, 0.01) and not slo.met(0.1, 0.06)
    assert LatencyObjectives().met(1e9, 1e9)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (("chat",), "it must be like chat:ttft=0.5,tpot=0.05"),
        (("chat:",), "is not understood"),
        (("a b:ttft=1",), "is not understood; the name of a class has 1 to 64 letters, digits"),
        (("x" * 65 + ":ttft=1",), "is not understood; the name of a class has 1 to 64 letters"),
        (("chat:ttft=1,ttft=2",), "is not understood; it must be like chat:ttft=0.5"),
        (("chat:ttft=1,priority=0",), "is not understood; it must be like chat:ttft=0.5"),
        (("chat:ttft=86401",), "ttft is '86401'; it must be above 0 and at most 86400 s"),
        (("chat:itl=1",), "is not understood"),
        (("chat:ttft=x",), "ttft is 'x'; it must be above 0"),
        (("chat:ttft=nan",), "ttft is 'nan'; it must be above 0"),
        (("chat:tpot=0",), "tpot is '0'; it must be above 0"),
        (("a:ttft=1", "a:ttft=2"), "--slo a is given twice"),
    ],
)
def test_refusals(texts: tuple[str, ...], message: str) -> None:
    """One sentence each."""
    with pytest.raises(InputError, match=r"^--slo") as refused:
        RequestClasses(texts)
    assert message in str(refused.value)
