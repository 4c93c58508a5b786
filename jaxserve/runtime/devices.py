"""Where a learner's environments live: spread over the devices of all processes.

The environments of a learner are cut into one piece per device, and everything else lies on every
device. One device is the same program with one piece.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

_AXIS = "environments"
EVERYWHERE = P()
"""Whole on every device."""


def spread(axis: int = 0) -> P:
    """Cut into one piece per device along the axis of the environments."""
    return P(*[None] * axis, _AXIS)


def all_devices() -> Mesh:
    """The devices of all processes, in a row."""
    return jax.make_mesh((jax.device_count(),), (_AXIS,), axis_types=(AxisType.Auto,))


def place(mesh: Mesh, tree: Any, parts: Any) -> Any:
    """``tree`` inside a compiled program, laid where ``parts`` (a prefix of its tree) says."""
    shardings = jax.tree.map(lambda part: NamedSharding(mesh, part), parts)
    return jax.lax.with_sharding_constraint(tree, shardings)


def on_each(mesh: Mesh, function: Callable[..., Any], *parts: P, out: P) -> Callable[..., Any]:
    """``function`` on each device's pieces, which need nothing of one another.

    Args:
      parts: where each argument lies.
      out: where the results do.
    """
    # The check takes the simulator's conditionals, of which one branch is constant, for mistakes.
    return jax.shard_map(function, mesh=mesh, in_specs=parts, out_specs=out, check_vma=False)
