"""Compiles programs with fewer of XLA's optimisations: a third of the time to compile, for programs
of a third of the speed. Most tests wait for the compiler and not for what it compiled."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from jaxserve.runtime.xla_flags import set_flag

_FLAGS = {"--xla_cpu_use_fusion_emitters": "false", "--xla_backend_optimization_level": "0"}
XLA_FLAGS = " ".join(f"{name}={value}" for name, value in _FLAGS.items())
"""The same for the environment of a command."""


def compile_quickly() -> None:
    """In this process, before its first computation, and in those that it starts from now on."""
    for name, value in _FLAGS.items():
        set_flag(name, value)


@contextmanager
def commands_compile_quickly() -> Iterator[None]:
    """In processes that are started inside the block; this one reads its flags before or after."""
    flags = os.environ.get("XLA_FLAGS")
    compile_quickly()
    try:
        yield
    finally:
        if flags is None:
            del os.environ["XLA_FLAGS"]
        else:
            os.environ["XLA_FLAGS"] = flags
