"""Ray's cluster: that of ``RAY_ADDRESS``, or one that Ray starts on this machine."""

from __future__ import annotations

import logging
import threading
from typing import Any

from jaxserve.errors import InputError

_LOCK = threading.Lock()


def connected_ray() -> Any:
    """The module ``ray``, connected to its cluster.

    Raises:
      InputError: Ray is not installed, or its cluster cannot be reached.
    """
    try:
        import ray  # type: ignore[import-not-found]
    except ModuleNotFoundError:
        raise InputError("Ray is not installed: pip install 'jaxserve[ray]'") from None
    try:
        with _LOCK:
            ray.init(ignore_reinit_error=True, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise InputError(f"Ray's cluster cannot be used: {error}") from None
    return ray
