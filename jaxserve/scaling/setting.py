"""A rule with its numbers, as data: settings of different rules share a compiled program."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray
from scipy.stats import qmc

from jaxserve.checks import JsonObject
from jaxserve.errors import InputError
from jaxserve.scaling.history import Fleetwide, Reading
from jaxserve.scaling.rule_form import RuleMemory, kept, parameters
from jaxserve.scaling.rules import RULES

STATIC = "static"
"""Name of a fleet that is never scaled, whose one number is its replicas."""
KINDS = (STATIC, *RULES)
"""Kinds of lanes: a static fleet and every rule."""
MOST_PARAMETERS = max(len(parameters(rule)) for rule in RULES.values())

SPREAD_SETTINGS, NEAR_SETTINGS = 31, 8
"""Settings of a rule that are tried over its whole bounds, beside its defaults; and around one."""
_NEAR = 0.25
"""Half-width of settings around one, as a share of the bounds."""


@dataclass(frozen=True)
class RuleSetting:
    """A setting to play: a kind and its numbers in the order of the rule's parameters."""

    kind: str
    values: tuple[float, ...]
    start_s: float | None = None
    """start-up time of every replica; None for those of the fleet."""

    @classmethod
    def default(cls, kind: str) -> RuleSetting:
        """A rule with the values of its source."""
        return cls(kind, tuple(found.default for found in parameters(RULES[kind]).values()))

    @property
    def numbers(self) -> NDArray[np.float32]:
        """float32[MOST_PARAMETERS], the values, and zeros behind them."""
        padded = np.zeros(MOST_PARAMETERS, np.float32)
        padded[: len(self.values)] = self.values
        return padded

    def serving(self, initial: int) -> int:
        """Replicas that serve at the start: ``initial``, or all of a static fleet."""
        return round(self.values[0]) if self.kind == STATIC else initial


def rule_data(setting: RuleSetting, fleet: Fleetwide) -> dict[str, Any]:
    """A rule, its numbers by name and the constants of its fleet; JSON-able."""
    return {
        "kind": setting.kind,
        "values": named_values(setting.kind, setting.values),
        "fleet": dataclasses.asdict(fleet),
    }


def named_values(kind: str, values: Sequence[float]) -> dict[str, float]:
    """Numbers of a setting by name."""
    return dict(zip(_names(kind), values, strict=True))


def parse_rule(data: Any, where: str) -> tuple[RuleSetting, Fleetwide]:
    """The rule and its fleet of ``rule_data``.

    Args:
      data: parsed JSON.
      where: name of the file, for errors.

    Raises:
      InputError: says what is missing, unknown or out of range.
    """
    rule = JsonObject(data, where, ("kind", "values", "fleet"))
    kind = rule.one_of("kind", KINDS)
    values = rule.inside("values", _names(kind))
    given = rule.inside("fleet", [field.name for field in dataclasses.fields(Fleetwide)])
    fleet = Fleetwide(
        window_s=given.positive("window_s"),
        most=given.whole("most", 1),
        least=given.whole("least", 1),
        group=given.whole("group", 1),
        requests_per_s=given.positive("requests_per_s"),
        prefill_tokens_per_s=given.positive("prefill_tokens_per_s"),
        kv_tokens=given.positive("kv_tokens"),
        ttft_slo_s=given.positive("ttft_slo_s"),
        tpot_slo_s=given.positive("tpot_slo_s"),
    )
    if fleet.least > fleet.most:
        raise InputError(f"{where}: least is {fleet.least}, above most, {fleet.most}")
    return RuleSetting(kind, tuple(values.number(name) for name in _names(kind))), fleet


def _names(kind: str) -> tuple[str, ...]:
    return ("replicas",) if kind == STATIC else tuple(parameters(RULES[kind]))


def wanted_by(
    fleet: Fleetwide, kind: jax.Array, values: jax.Array, memory: RuleMemory, reading: Reading
) -> tuple[jax.Array, RuleMemory]:
    """Replicas that a lane wants, float32, and its next memory.

    Args:
      kind: int32, index into ``KINDS``.
      values: float32[MOST_PARAMETERS], numbers of the lane.
    """

    def static(memory: RuleMemory) -> tuple[jax.Array, RuleMemory]:
        return kept(memory, fleet.clip(values[0]))

    def of(rule: type) -> Callable[[RuleMemory], tuple[jax.Array, RuleMemory]]:
        numbers = values[: len(parameters(rule))]
        return lambda memory: rule(*numbers).want(fleet, memory, reading)

    return jax.lax.switch(kind, [static, *map(of, RULES.values())], memory)


def spread_settings(kind: str, seed: int) -> list[RuleSetting]:
    """A rule's defaults and settings spread over its bounds (a Sobol sequence, in logarithms)."""
    lows, highs = _log_bounds(kind)
    draws = qmc.Sobol(len(lows), rng=seed).random(32)[:SPREAD_SETTINGS]
    return [
        RuleSetting.default(kind),
        *(_setting(kind, lows + draw * (highs - lows)) for draw in draws),
    ]


def near_settings(kind: str, best: RuleSetting, seed: int) -> list[RuleSetting]:
    """Settings around ``best``."""
    lows, highs = _log_bounds(kind)
    draws = qmc.Sobol(len(lows), rng=seed).random(NEAR_SETTINGS)
    points = np.log(best.values) + _NEAR * (2.0 * draws - 1.0) * (highs - lows)
    return [_setting(kind, np.clip(point, lows, highs)) for point in points]


def _log_bounds(kind: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    found = parameters(RULES[kind]).values()
    lows, highs = (np.log([getattr(each, end) for each in found]) for end in ("low", "high"))
    return lows, highs


def _setting(kind: str, logarithms: NDArray[np.float64]) -> RuleSetting:
    return RuleSetting(kind, tuple(float(f"{value:.3g}") for value in np.exp(logarithms)))
