"""Where programs keep what must outlive them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def state_folder(variables: Mapping[str, str]) -> Path | None:
    """``jaxserve`` in the user's state directory; None where the user has no home.

    Args:
      variables: the environment; ``XDG_STATE_HOME`` names the directory where it is set.
    """
    base = variables.get("XDG_STATE_HOME")
    try:
        state = Path(base) if base else Path.home() / ".local" / "state"
    except RuntimeError:
        return None
    return state / "jaxserve"
