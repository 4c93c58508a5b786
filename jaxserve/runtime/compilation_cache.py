"""Where jaxserve keeps what it can make again; compiled programs are kept there, so that only the
first run of a command waits for XLA."""

from __future__ import annotations

import os
from pathlib import Path

import jax
import platformdirs

_MIN_COMPILE_S = 0.3  # what compiles faster is not worth a file


def enable_compilation_cache() -> Path | None:
    """Switches JAX's persistent compilation cache on, unless the environment has set it.

    Returns:
      where programs are kept: ``JAX_COMPILATION_CACHE_DIR``, else ``jaxserve`` in the user's cache
      directory; None where nothing can be written, which only costs time.
    """
    chosen = os.environ.get("JAX_COMPILATION_CACHE_DIR")
    if chosen:
        return Path(chosen)
    directory = cache_folder()
    if directory is None:
        return None
    jax.config.update("jax_compilation_cache_dir", str(directory))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", _MIN_COMPILE_S)
    return directory


def cache_folder() -> Path | None:
    """The user's cache directory of jaxserve; None where nothing can be written."""
    try:
        folder = platformdirs.user_cache_path("jaxserve", ensure_exists=True)
    except (OSError, RuntimeError):
        return None
    return folder if os.access(folder, os.W_OK | os.X_OK) else None
