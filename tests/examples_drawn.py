"""How many examples a property is tried on, where the number of the profile does not suit it.

The profile of ``tests/conftest.py`` draws 25 examples, and 200 in ``make test-deep``.
"""

from __future__ import annotations

from hypothesis import settings

_PROFILE = settings().max_examples

FEW = settings(max_examples=2 * _PROFILE // 5)
"""For a property whose example takes long: 10 examples, 80 in ``make test-deep``."""
MANY = settings(max_examples=4 * _PROFILE)
"""For a property of plain Python with rare cases: 100 examples, 800 in ``make test-deep``."""
