"""Compiles programs with fewer of XLA's optimisations. Most tests wait for the compiler and not for
what it compiled."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from jaxserve.runtime.xla_flags import set_flag

_LEVEL = "--xla_backend_optimization_level"


def compile_quickly() -> None:
    """In this process, before its first computation, and in those that it starts from now on: a
    fifth of the time to compile, for programs of a third of the speed."""
    _compile_at_level(0)


def compile_sooner() -> None:
    """Likewise: half of the time to compile, for programs of two thirds of the speed."""
    _compile_at_level(1)


def _compile_at_level(level: int) -> None:
    flags = os.environ.get("XLA_FLAGS", "").split()
    os.environ["XLA_FLAGS"] = " ".join(flag for flag in flags if not flag.startswith(_LEVEL))
    set_flag("--xla_cpu_use_fusion_emitters", "false")
    set_flag(_LEVEL, str(level))


def quick_flags() -> dict[str, str]:
    """The variable with which a server or a command compiles quickly."""
    with commands_compile_quickly():
        return {"XLA_FLAGS": os.environ.get("XLA_FLAGS", "")}


def quick_environment() -> dict[str, str]:
    """This process's, with which a command compiles quickly."""
    return os.environ | quick_flags()


@contextmanager
def commands_compile_quickly() -> Iterator[None]:
    """In processes that are started inside the block; this one reads its flags before or after."""
    flags = os.environ.get("XLA_FLAGS")
    compile_quickly()
    try:
        yield
    finally:
        if flags is None:
            os.environ.pop("XLA_FLAGS", None)
        else:
            os.environ["XLA_FLAGS"] = flags
