"""What clients keep for the model without reading it."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.gateway.dialects.sealed_reasoning import sealed, unsealed


@given(st.text(st.characters(codec="utf-8")))
def test_a_seal_opens_again(text: str) -> None:
    """Also after a client has decoded it and encoded it anew, in either alphabet."""
    seal = sealed(text)
    again = base64.urlsafe_b64encode(base64.b64decode(seal)).decode()
    assert unsealed(seal) == unsealed(again) == unsealed(again.rstrip("=")) == text


@pytest.mark.parametrize(
    "value",
    [None, 3, "", "skip_thought_signature_validator", "é", sealed("a")[:-3], sealed("ab")[4:]],
)
def test_what_is_no_seal(value: object) -> None:
    """Signatures of others, and damaged ones, say nothing."""
    assert unsealed(value) is None
