"""A process before its first computation: XLA flags, compiled programs on disk, one device per
core, and how often Python collects garbage.

This module imports JAX only where it is used: the gateway starts without it.
"""

from __future__ import annotations

import gc
import os
from pathlib import Path

import platformdirs
from jaxlib import version as jaxlib_version

_SMALL_LOOP_BYTES = 2**16
"""Loops over fewer bytes are compiled whole. The ticks of one environment touch half as many."""
_MIN_COMPILE_S = 0.3
"""Programs that compile faster are not kept on disk."""
_OBJECTS_BETWEEN_COLLECTIONS = 100_000
XLA_FLAGS_VARIABLE = "JAXSERVE_XLA_FLAGS"


def set_xla_flags() -> None:
    """Adds two flags to ``XLA_FLAGS`` of this process; ``JAXSERVE_XLA_FLAGS=0`` prevents it.

    Both flags are in force everywhere, since they may change the last bits of a result: a server's
    rewards equal those of ``jax.jit(env.step)`` in any other process.

    - ``--xla_cpu_experimental_ynn_fusion_type=`` switches a defect of jaxlib 0.10 off: reductions
      compiled to YNNPACK hang on a busy machine. Updates of the learner stopped for ever on two
      cores that other processes used; without such reductions no hang was seen.
    - ``xla_cpu_small_while_loop_byte_threshold`` compiles a loop over few bytes to one function
      instead of a call for every operation, up to 64 KiB in place of XLA's own 1 KiB.
    """
    if os.environ.get(XLA_FLAGS_VARIABLE) == "0":
        return
    set_flag("--xla_cpu_experimental_ynn_fusion_type", "")
    set_flag(
        "--xla_backend_extra_options",
        f"xla_cpu_small_while_loop_byte_threshold={_SMALL_LOOP_BYTES}",
    )


def set_flag(flag: str, value: str) -> None:
    """Adds a flag to ``XLA_FLAGS``, unless the user has set it.

    XLA reads its flags at the first computation and aborts the process at an unknown one, so only
    jaxlib 0.10, whose flags these are, gets any.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    if jaxlib_version.__version__.startswith("0.10.") and flag not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {flag}={value}".strip()


def collect_garbage_rarely() -> None:
    """Makes Python search this process for cyclic garbage after 100,000 new objects.

    Imports and traces make objects by the hundred thousand that stay. After Python's own 700 the
    searches among them take an eighth of the time of a command or of a server's start.
    """
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)


def enable_compilation_cache() -> Path | None:
    """Switches JAX's persistent compilation cache on, unless the environment has set it.

    Returns:
      The folder of compiled programs: ``JAX_COMPILATION_CACHE_DIR``, else ``cache_folder()``; None
      if no folder can be written, which only costs time.
    """
    import jax

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
    """The user's cache directory of jaxserve; None if it cannot be written."""
    try:
        folder = platformdirs.user_cache_path("jaxserve", ensure_exists=True)
    except (OSError, RuntimeError):
        return None
    return folder if os.access(folder, os.W_OK | os.X_OK) else None


def use_all_cores() -> None:
    """Makes one CPU device per core, up to a power of two; for a process of its own.

    XLA computes most of a simulated window on one core of a device. The call has no effect if the
    user has chosen a number of devices, on accelerators, and after the first computation.
    """
    import jax

    if "JAX_NUM_CPU_DEVICES" in os.environ or "device_count" in os.environ.get("XLA_FLAGS", ""):
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    try:
        jax.config.update("jax_num_cpu_devices", 1 << ((cores or 1).bit_length() - 1))
    except RuntimeError:  # a computation has already fixed the devices
        return
