"""How many examples a property is tried on, where the number of the profile does not suit it.

The profile of ``tests/conftest.py`` draws 25 examples, and 200 in ``make test-deep``.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

_PROFILE = settings().max_examples

FEW = settings(max_examples=2 * _PROFILE // 5)
"""For a property whose example takes long: 10 examples, 80 in ``make test-deep``."""
MANY = settings(max_examples=4 * _PROFILE)
"""For a property of plain Python with rare cases: 100 examples, 800 in ``make test-deep``."""


def any_json(keys: str = "", leaves: int = 12) -> st.SearchStrategy[Any]:
    """Any JSON, with NaN and infinities.

    Args:
      keys: names that its objects have, separated by spaces; any names if there are none.
      leaves: most values in it that are neither a list nor an object.
    """
    names = st.sampled_from(keys.split()) if keys else st.text(max_size=4)
    return st.recursive(
        st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4),
        max_leaves=leaves,
    )
