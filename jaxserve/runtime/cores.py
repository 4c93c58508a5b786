"""CPU cores as devices: XLA runs most of a simulated window on one core of a device."""

from __future__ import annotations

import os

import jax


def use_all_cores() -> None:
    """Makes one CPU device per core, as many as the largest power of two, for a command that has
    the process to itself. Without effect where the user has chosen a number, where JAX runs on
    another kind of device, and once JAX has begun to compute."""
    if "JAX_NUM_CPU_DEVICES" in os.environ or "device_count" in os.environ.get("XLA_FLAGS", ""):
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    try:
        jax.config.update("jax_num_cpu_devices", 1 << ((cores or 1).bit_length() - 1))
    except RuntimeError:  # too late: a computation has fixed the devices
        return
