"""Cost models as JSON objects, the form in which latency tables keep them."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from jaxserve import checks
from jaxserve.fields import Tier
from jaxserve.sim.machine.cost_model import CostModel
from jaxserve.sim.machine.moe_terms import Beyond
from jaxserve.sim.machine.other_mixers import OtherMixers

_OPTIONAL = ("beyond", "mixed_share", "mixed_s_per_sequence")
"""Terms that a table leaves out where it has none."""
_NEWEST = "expert_move_s_per_token"
_DIVISORS = ("linear_p", "attention_q", "draft_flat_depth")


def cost_to_dict(cost: CostModel) -> dict[str, Any]:
    """JSON-able form that ``cost_from_dict`` reads back exactly."""
    data = dataclasses.asdict(cost)
    if cost.beyond is not None and cost.beyond.mixers is None:
        del data["beyond"]["mixers"]
    absent = [name for name in _OPTIONAL if not data[name]]
    return {name: value for name, value in data.items() if name not in absent}


def cost_from_dict(data: dict[str, Any]) -> CostModel:
    """Inverse of ``cost_to_dict``, also after a round trip through JSON.

    Raises:
      InputError: a field is missing, unknown, or not a finite non-negative number; an exponent
        or the draft's depth is 0.
    """
    kinds = {field.name: field.type for field in dataclasses.fields(CostModel)}
    fields = checks.JsonObject(data, "cost_model", kinds)
    values: dict[str, Any] = {}
    for name, kind in kinds.items():
        if name == "beyond":
            if name in fields:
                values[name] = _beyond(fields.inside(name))
        elif kind is str:
            values[name] = fields.text(name)
        elif kind is int:
            values[name] = fields.whole(name, 1)
        elif kind is float and name not in _OPTIONAL:
            values[name] = fields.number(name, 0)
        elif kind is float:
            values[name] = fields.number(name, 0, default=0.0)
        else:
            values[name] = fields.numbers(name, len(Tier), 0)
    for name in _DIVISORS:
        if 0 in np.ravel(values[name]):
            checks.refuse(fields.name(name), values[name], "above 0")
    return CostModel(**values)


def _beyond(fields: checks.JsonObject) -> Beyond:
    values: dict[str, Any] = {}
    for field in dataclasses.fields(Beyond):
        if field.name == "collectives":
            name = fields.name("collectives")
            values["collectives"] = tuple(
                _line(name, line) for line in fields.entries("collectives")
            )
        elif field.name == "mixers":
            if field.name in fields:
                values[field.name] = _mixers(fields.inside(field.name))
        elif field.type == "float":
            known = field.default is not dataclasses.MISSING
            default = field.default if known else checks.MISSING
            values[field.name] = fields.number(field.name, 0, default=default)
        elif field.name == _NEWEST and field.name not in fields:  # of tables before it was known
            values[field.name] = (0.0, 0.0, 0.0)
        else:
            values[field.name] = fields.numbers(field.name, len(Tier), 0)
    if 0 in values["expert_p"]:
        checks.refuse(fields.name("expert_p"), values["expert_p"], "above 0")
    return Beyond(**values)


def _mixers(fields: checks.JsonObject) -> OtherMixers:
    names = [field.name for field in dataclasses.fields(OtherMixers)]
    return OtherMixers(**{name: fields.number(name, 0) for name in names})


def _line(name: str, line: Any) -> tuple[float, float, float]:
    if not isinstance(line, list | tuple) or len(line) != 3:
        checks.refuse(name, line, "lines of three numbers")
    first, second, third = (checks.number(name, value, 0) for value in line)
    return first, second, third
