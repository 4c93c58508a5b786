"""Classes that a task names: built-in ones, and a user's own as ``module:Class``."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from jaxserve.checks import refuse
from jaxserve.errors import InputError

_Made = TypeVar("_Made")


def named_class(where: str, name: str, built_in: Mapping[str, Any]) -> Any:
    """A built-in class, or the class ``module:Class``.

    Args:
      where: name of the field, for errors.

    Raises:
      InputError: the name is unknown, or the class cannot be imported.
    """
    if name in built_in:
        return built_in[name]
    module, colon, attribute = name.partition(":")
    allowed = f"one of {', '.join(built_in)}, or module:Class of a class that can be imported"
    if not colon or not module or module.startswith("."):
        refuse(where, name, allowed)
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception:
        refuse(where, name, allowed)


def constructed(
    where: str, name: str, make: Callable[[], _Made], methods: Collection[str]
) -> _Made:
    """An object of such a class.

    Args:
      make: the class with its arguments.
      methods: methods that the object must have.

    Raises:
      InputError: an option is wrong, the constructor fails, or a method is missing.
    """
    try:
        made = make()
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{where} is {name!r}; it cannot be made: {error}") from None
    if not all(callable(getattr(made, method, None)) for method in methods):
        plural = "s" if len(methods) > 1 else ""
        refuse(where, name, f"a class with the method{plural} {', '.join(methods)}")
    return made
