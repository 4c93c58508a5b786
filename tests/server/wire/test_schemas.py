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


def test_figures_of_half_a_request_are_not_judged() -> None:
    """The schema says what a figure rests on; language models are shown nothing in its place."""
    properties = schemas.ObservationModel.model_json_schema()["properties"]
    rests = {name: said["rests_on"] for name, said in properties.items() if "rests_on" in said}
    assert set(rests.values()) == {"first_tokens", "decoding", "ended", "good"}
    seen = dict.fromkeys(OBSERVATION_FIELDS, 7.0)
    few = {"first_tokens": 0.49, "decoding": 0.5, "ended": 3.0, "good": 1e-10}
    nothing = {name for name, requests in rests.items() if requests in ("first_tokens", "good")}
    assert set(schemas.nothing_to_judge(few)) == nothing
    blank = {name: None if name in nothing else value for name, value in seen.items()}
    assert schemas.readable(seen, few) == blank
    assert schemas.nothing_to_judge({}) == []
