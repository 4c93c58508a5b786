"""Variables of earlier projects: none is ignored without a word."""

from __future__ import annotations

import pytest

from jaxserve.errors import InputError
from jaxserve.runtime.earlier_variables import BASE_URL, EARLIER, check_earlier, without_effect


def test_what_nothing_reads_is_refused() -> None:
    """By its name, with those that are known; other programs' variables are not looked at."""
    for check in (check_earlier, lambda variables: without_effect(variables, (), "here")):
        with pytest.raises(InputError, match="LLMSERVE_SEED is set, which has no effect"):
            check({"LLMSERVE_SEED": "", BASE_URL: "x"})
        check({"SEED": "1", "MY_LLMSERVE_SEED": "1"})


def test_what_something_else_reads_is_said() -> None:
    """All of it in one sentence; empty is as good as unset."""
    provider, model = (EARLIER[f"JAXSERVE_LIVE_{name}"] for name in ("PROVIDER", "MODEL"))
    assert without_effect({}, (), "here") is None
    assert without_effect({model: ""}, (), "here") is None
    assert without_effect({model: "m"}, (model,), "here") is None
    assert without_effect({model: "m"}, (), "here") == f"{model} is set and has no effect here"
    said = without_effect({model: "m", provider: "vllm"}, (), "here")
    assert said == f"{model}, {provider} are set and have no effect here"
