"""Sandboxes: places in which the commands of a session run.

A task names a class of its own as ``module:Class``, with the methods of ``Sandbox``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from jaxserve.checks import JsonObject
from jaxserve.rollouts.sandboxes.containers import ApptainerSandbox, DockerSandbox
from jaxserve.rollouts.sandboxes.interface import (
    RUNTIME_FIELDS,
    Sandbox,
    SandboxCommand,
    sandbox_options,
)
from jaxserve.rollouts.sandboxes.processes import LocalSandbox, WrappedSandbox
from jaxserve.rollouts.user_classes import constructed, named_class

BUILT_IN: Mapping[str, Any] = {
    "local": LocalSandbox,
    "docker": DockerSandbox,
    "apptainer": ApptainerSandbox,
    "wrapped": WrappedSandbox,
}
"""Sandboxes by ``kind``."""
_METHODS = ("put", "run", "get", "end")

__all__ = ["BUILT_IN", "Sandbox", "SandboxCommand", "parse_sandbox", "sandbox_options"]


def parse_sandbox(given: JsonObject) -> Callable[[Path], Sandbox]:
    """The sandboxes of a task: a function of a session's folder.

    Args:
      given: the task's ``runtime``: ``kind``, and options beside ``RUNTIME_FIELDS``.

    Raises:
      InputError: the kind is unknown, or an option is wrong.
    """
    kind = given.text("kind") if "kind" in given else "local"
    options = {name: given[name] for name in given if name not in RUNTIME_FIELDS}
    where = given.name("kind")
    make = partial(named_class(where, kind, BUILT_IN), JsonObject(options, given.where))
    constructed(where, kind, partial(make, Path("/")), _METHODS)
    return make
