"""A fleet's constants: how long replicas take to start, and what may go wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax

from jaxserve import checks
from jaxserve.arrays.convert import on_device
from jaxserve.datafiles import data_dir, read_json

MAX_START_S = 3600.0
MAX_DRAIN_S = 3600.0


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Fleet:
    """Constants of replicas that start and stop while a deployment serves; float32 scalars."""

    start_least_s: jax.Array
    """shortest time from the request for a replica until it serves, s."""
    start_most_s: jax.Array
    """longest such time; each start is as likely anywhere between the two, s."""
    drain_s: jax.Array
    """longest time that a replica which is to stop keeps its sequences; what still runs then is
    preempted and recomputed elsewhere, s."""
    failing_share: jax.Array
    """share of the starts that end without a replica."""
    refused_share: jax.Array
    """share of the windows in which no GPU is free for a start."""
    places: int = field(metadata={"static": True})
    """places for replicas."""


@dataclass(frozen=True)
class FleetSettings:
    """Settings of a fleet as an operator knows them; see ``Fleet``. Times in seconds."""

    start_s: tuple[float, float] = (60.0, 135.0)
    """shortest and longest time from the request for a replica until it serves."""
    drain_s: float = 120.0
    """longest time that a replica which is to stop keeps its sequences."""
    failing_share: float = 0.0
    """share of the starts that end without a replica."""
    refused_share: float = 0.0
    """share of the control windows in which no GPU is free for a start."""

    def __post_init__(self) -> None:
        least, most = (checks.number("start_s", value, 0, MAX_START_S) for value in self.start_s)
        if least > most:
            checks.refuse("start_s", self.start_s, "the shortest start before the longest")
        checks.number("drain_s", self.drain_s, 0, MAX_DRAIN_S)
        for name in ("failing_share", "refused_share"):
            checks.number(name, getattr(self, name), 0, 1)

    @classmethod
    def on_host(cls, fleet: Fleet) -> FleetSettings:
        """The settings whose arrays ``fleet`` has."""
        return cls(
            start_s=(float(fleet.start_least_s), float(fleet.start_most_s)),
            drain_s=float(fleet.drain_s),
            failing_share=float(fleet.failing_share),
            refused_share=float(fleet.refused_share),
        )

    def on_device(self, places: int) -> Fleet:
        """The constants as arrays of the fast simulator, with the number of places."""
        least, most = self.start_s
        return Fleet(
            start_least_s=on_device(least),
            start_most_s=on_device(most),
            drain_s=on_device(self.drain_s),
            failing_share=on_device(self.failing_share),
            refused_share=on_device(self.refused_share),
            places=places,
        )


def start_classes() -> dict[str, dict[str, Any]]:
    """Measured start-ups by class: ``start_s`` [shortest, longest] and ``source`` of each."""
    return read_json(data_dir() / "replica_starts.json", "replica_starts.json")
