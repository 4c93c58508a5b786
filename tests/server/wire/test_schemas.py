"""Schemas of actions and observations say what the package says."""

from __future__ import annotations

import pytest

from jaxserve.fields import Entry, Knob
from jaxserve.spaces import KNOB_FIELDS, OBSERVATION_FIELDS
from server.wire import schemas


@pytest.mark.parametrize(
    ("model", "fields"),
    [(schemas.ActionModel, KNOB_FIELDS), (schemas.ObservationModel, OBSERVATION_FIELDS)],
)
def test_fields_are_those_of_the_package(
    model: type[schemas.ActionModel], fields: dict[str, Knob | Entry]
) -> None:
    """The same names in the same order, bounds, units and meanings."""
    properties = model.model_json_schema()["properties"]
    assert [name for name in properties if name in fields] == list(fields)
    for name, field in fields.items():
        said = properties[name]
        assert field.meaning in said["description"]
        if isinstance(field, Knob):
            assert said["default"] == field.default
        else:
            assert field.unit in said["description"]
        if said["type"] != "array":
            assert (said["minimum"], said["maximum"]) == (field.bound.low, field.bound.high)
