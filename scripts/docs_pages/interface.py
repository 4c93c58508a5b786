"""Tables of actions and observations, from the docstrings and bounds in the code."""

from __future__ import annotations

import ast
import inspect

from docs_pages.markdown import code, number, table
from jaxserve.env import FEATURE_NAMES
from jaxserve.grids import KNOB_GRIDS
from jaxserve.spaces import ACTION_BOUNDS, DEFAULT_ACTION, OBSERVATION_BOUNDS, Bound
from jaxserve.types import ServeAction, ServeObservation


def field_docs(kind: type) -> dict[str, str]:
    """The string below each field of a class."""
    (definition,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(definition, ast.ClassDef)
    found: dict[str, str] = {}
    for field, below in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
            assert isinstance(field.target, ast.Name) and isinstance(below.value, ast.Constant)
            found[field.target.id] = str(below.value.value)
    return found


def action_table() -> str:
    """One knob a row."""
    docs = field_docs(ServeAction)
    rows = [
        [code(knob), _range(bound), number(DEFAULT_ACTION[knob]), _meaning(docs[knob])]
        for knob, bound in ACTION_BOUNDS.items()
    ]
    return table(["knob", "allowed", "default", "what it is"], rows)


def grid_table() -> str:
    """The values that learners and adapters choose from."""
    rows = [
        [code(knob), ", ".join(f"{value:g}" for value in values)]
        for knob, values in KNOB_GRIDS.items()
    ]
    return table(["knob", "grid"], rows)


def observation_table() -> str:
    """One entry a row."""
    docs = field_docs(ServeObservation)
    rows = [
        [code(name), _range(bound), _meaning(docs[name])]
        for name, bound in OBSERVATION_BOUNDS.items()
    ]
    return table(["entry", "bounds", "what it is"], rows)


def feature_list() -> str:
    """Entries of the vector for networks, in order."""
    return code(*FEATURE_NAMES)


def _range(bound: Bound) -> str:
    kind = " (whole)" if bound.integer else ""
    return f"{number(bound.low)} to {number(bound.high)}{kind}"


def _meaning(docs: str) -> str:
    """A field's docstring without the type, which the range says."""
    kind, _, rest = docs.partition(", ")
    text = rest if kind in ("int32", "float32", "float32[3]") else docs
    return text.replace("``", "`")
