"""The knobs of the mock engine: what its settings allow, and the values in force."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from jaxserve.engine_control.leased_knobs import LeasedKnobs, NotOffered, OfferedKnob
from jaxserve.mock_engine.machine import Machine


def leased_knobs(
    machine: Machine,
    static: Mapping[str, float],
    clock: Callable[[], float] = time.monotonic,
) -> LeasedKnobs:
    """The knobs of an engine on ``machine``.

    Args:
      machine: bounds of the knobs; an engine starts with the most of each.
      static: values in force without a lease, by knob.
      clock: monotonic time of the host, s.

    Raises:
      CommandError: ``static`` names a knob that is not offered, or a value out of its range.
    """
    settings = machine.settings
    values: dict[str, float] = {}

    def whole_blocks(share: float) -> float:
        return max(least_kv, round(share * machine.kv_blocks) / machine.kv_blocks)

    def knob(
        name: str,
        least: float,
        most: float,
        nearest: Callable[[float], float] = lambda value: value,
    ) -> OfferedKnob:
        def turn(value: float | None) -> None:
            assert value is not None
            values[name] = nearest(value)

        values[name] = most
        return OfferedKnob(least, most, turn, lambda: values[name])

    depth, least_kv = settings.speculation_depth, machine.longest_blocks / machine.kv_blocks
    return LeasedKnobs(
        {
            "batch_cap": knob("batch_cap", 1, settings.batch_cap),
            "token_budget": knob("token_budget", 1 + depth, settings.token_budget),
            "kv_budget_fraction": knob("kv_budget_fraction", least_kv, 1.0, whole_blocks),
            "speculation_depth": knob("speculation_depth", 0, depth)
            if depth
            else NotOffered("the engine was started without --speculation-depth"),
            "priority_routing": knob("priority_routing", 0, 1)
            if settings.scheduling_policy == "priority"
            else NotOffered("the engine was started without --scheduling-policy priority"),
            "quantization_tier": NotOffered(
                "vLLM holds one set of weights; it has to be restarted"
            ),
            "prefill_decode_split": NotOffered("vLLM's roles are fixed when it starts"),
        },
        static,
        clock,
    )
