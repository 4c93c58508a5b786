"""Compiles programs with fewer of XLA's optimisations. Most tests wait for the compiler and not for
what it compiled."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from jaxserve.runtime.jax_setup import set_flag

_LEVEL = "xla_backend_optimization_level"


def compile_quickly() -> None:
    """In this process, before its first computation, and in those that it starts: a fifth of the
    time to compile, for programs of a fifth of the speed."""
    set_flag("--xla_cpu_use_fusion_emitters", "false")
    set_flag(f"--{_LEVEL}", "0")


@contextmanager
def commands_compute() -> Iterator[None]:
    """For commands that compute for longer than they compile: those that are started inside the
    block take half of XLA's time to compile, for programs of two thirds of the speed."""
    with pytest.MonkeyPatch.context() as patch:
        flags = os.environ.get("XLA_FLAGS", "")
        patch.setenv("XLA_FLAGS", flags.replace(f"{_LEVEL}=0", f"{_LEVEL}=1"))
        yield


@contextmanager
def programs_compute() -> Iterator[None]:
    """The same for what this process compiles inside the block. XLA reads its flags once, and JAX
    takes other options only where it is called, which is in the code under test."""
    from jax._src import compiler

    chosen = compiler.get_compile_options

    def options(*args: Any, **kwargs: Any) -> Any:
        found = chosen(*args, **kwargs)
        setattr(found.executable_build_options.debug_options, _LEVEL, 1)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiler, "get_compile_options", options)
        yield
