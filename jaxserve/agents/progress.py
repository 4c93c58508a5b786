"""How searches, evaluations and comparisons say how far they are."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called with a stage name, steps done and steps in all."""
