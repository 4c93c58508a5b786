"""Sharding of a learner's environments over the devices of all processes.

Environments are cut into one shard per device; all other arrays are replicated. A single device
runs the same program with one shard.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

_AXIS = "environments"
EVERYWHERE = P()
"""Partition of replicated arrays."""


def spread(axis: int = 0) -> P:
    """Partition with one shard per device along the axis of environments."""
    return P(*[None] * axis, _AXIS)


def all_devices() -> Mesh:
    """A one-dimensional mesh of the devices of all processes."""
    return jax.make_mesh((jax.device_count(),), (_AXIS,), axis_types=(AxisType.Auto,))


def place(mesh: Mesh, tree: Any, parts: Any) -> Any:
    """``tree`` inside a compiled program, sharded by ``parts``, a prefix of its tree."""
    shardings = jax.tree.map(lambda part: NamedSharding(mesh, part), parts)
    return jax.lax.with_sharding_constraint(tree, shardings)


def on_each(mesh: Mesh, function: Callable[..., Any], *parts: P, out: P) -> Callable[..., Any]:
    """``function`` on each device's shards, without communication.

    Args:
      parts: partition of each argument.
      out: partition of the results.
    """
    # The check rejects the simulator's conditionals, of which one branch is constant.
    return jax.shard_map(function, mesh=mesh, in_specs=parts, out_specs=out, check_vma=False)
