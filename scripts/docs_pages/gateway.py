"""Tables of servers' options and of records, from their docstrings and defaults."""

from __future__ import annotations

import ast
import inspect
from dataclasses import MISSING, fields

from docs_pages.markdown import code, table


def option_table(settings: type) -> str:
    """One option a row, with its default."""
    docs = field_docs(settings)
    rows = []
    for field in fields(settings):
        default = "" if field.default in (MISSING, None, ()) else code(str(field.default))
        option = code("--" + field.name.replace("_", "-"))
        rows.append([option, default, docs[field.name].replace("``", "`")])
    return table(["option", "default", "what it is"], rows)


def record_table(kind: type) -> str:
    """One field of a record a row."""
    docs = field_docs(kind)
    rows = [[code(name), " ".join(text.replace("``", "`").split())] for name, text in docs.items()]
    return table(["field", "what it is"], rows)


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
