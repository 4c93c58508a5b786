"""Tables of actions and observations, from their descriptions in the code."""

from __future__ import annotations

from docs_pages.markdown import code, number, table
from jaxserve.env import FEATURE_NAMES
from jaxserve.fields import Bound
from jaxserve.live.measured import MEASURED
from jaxserve.spaces import KNOB_FIELDS, OBSERVATION_FIELDS


def action_table() -> str:
    """One knob a row."""
    rows = [
        [code(name), _range(knob.bound), knob.unit, number(knob.default), knob.text]
        for name, knob in KNOB_FIELDS.items()
    ]
    return table(["knob", "allowed", "unit", "default", "what it is"], rows)


def grid_table() -> str:
    """The values that learners and adapters choose from."""
    rows = [
        [code(name), ", ".join(f"{value:g}" for value in knob.grid)]
        for name, knob in KNOB_FIELDS.items()
    ]
    return table(["knob", "grid"], rows)


def observation_table() -> str:
    """One entry a row."""
    rows = [
        [code(name), _range(entry.bound), entry.unit, entry.meaning]
        for name, entry in OBSERVATION_FIELDS.items()
    ]
    return table(["entry", "bounds", "unit", "what it is"], rows)


def measured_table() -> str:
    """The source of every entry of the live observation, a row each."""
    rows = [
        [code(name), source.kind, source.how, source.error] for name, source in MEASURED.items()
    ]
    return table(["entry", "source", "how", "largest error"], rows)


def feature_list() -> str:
    """Entries of the vector for networks, in order."""
    return code(*FEATURE_NAMES)


def _range(bound: Bound) -> str:
    kind = " (whole)" if bound.integer else ""
    return f"{number(bound.low)} to {number(bound.high)}{kind}"
