"""Kinds of requests, such as chat and batch, that a recorded trace tells apart by name."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from jaxserve import checks
from jaxserve.errors import InputError

MAX_KIND_LENGTH = 64
"""Most characters in the name of a kind."""
KIND_RULE = f"a text of 1 to {MAX_KIND_LENGTH} printable characters"
"""Rule of ``is_kind``, for errors."""


def is_kind(text: str) -> bool:
    """Whether a text without space around it names a kind."""
    return 0 < len(text) <= MAX_KIND_LENGTH and text.isprintable()


def number_kinds(
    texts: Sequence[str], text: NDArray[np.integer]
) -> tuple[tuple[str, ...], NDArray[np.int32]]:
    """Kinds as a ``Trace`` has them.

    Args:
      texts: different names; requests need not have all of them.
      text: int[n], which of them each request has.

    Returns:
      the names that requests have, sorted, and int32[n], the index of each request's.
    """
    names = sorted(texts[used] for used in np.flatnonzero(np.bincount(text)).tolist())
    place_of = {name: place for place, name in enumerate(names)}
    place = np.array([place_of.get(name, -1) for name in texts], np.int32)
    return tuple(names), place[text]


def check_kinds(kinds: Sequence[str], kind: NDArray[np.int32] | None, requests: int) -> None:
    """Checks the kinds of a trace.

    Raises:
      InputError: names are not sorted or not all different, ``kind`` is not one index a request, or
        no request has one of the kinds.
    """
    if kind is None:
        if kinds:
            checks.refuse("kinds", tuple(kinds), "empty where kind is None")
        return
    for name in kinds:
        if not isinstance(name, str) or name != name.strip() or not is_kind(name):
            checks.refuse("a name in kinds", name, f"{KIND_RULE} without space around it")
    if list(kinds) != sorted(set(kinds)):
        checks.refuse("kinds", tuple(kinds), "sorted names, each only once")
    if kind.shape != (requests,) or not np.issubdtype(kind.dtype, np.integer):
        raise InputError("kind must hold one whole number for each request of the trace")
    if kind.min() < 0 or not (np.bincount(kind) > 0).tolist() == [True] * len(kinds):
        raise InputError("kind must hold the place of each of kinds at least once, and no other")
