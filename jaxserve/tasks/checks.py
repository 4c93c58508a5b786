"""Checked access to what a JSON file or a caller gives: every error names field and value."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from jaxserve.errors import InputError


def mapping(value: Any, where: str) -> Mapping[str, Any]:
    """``value``, if it is a mapping."""
    if not isinstance(value, Mapping):
        raise InputError(f"{where} is {_kind(value)}; it must be a JSON object")
    return value


def entries(data: Mapping[str, Any], key: str, where: str) -> list[Any]:
    """A list with at least one entry."""
    value = data.get(key)
    if not isinstance(value, list) or not value:
        raise InputError(
            f"{where}: {key} is {_shown(data, key)}; it must be a list with at least one entry"
        )
    return value


def only(data: Mapping[str, Any], known: Collection[str], where: str) -> None:
    """Refuses fields that nobody knows, so that a misspelt one is not ignored."""
    unknown = sorted(set(data) - set(known), key=str)
    if unknown:
        raise InputError(
            f"{where}: field {unknown[0]!r} is unknown; allowed are {', '.join(sorted(known))}"
        )


def text(data: Mapping[str, Any], key: str, where: str) -> str:
    """A text that is not empty."""
    value = data.get(key)
    if not isinstance(value, str) or not value:
        raise InputError(f"{where}: {key} is {_shown(data, key)}; it must be a text")
    return value


def number(
    data: Mapping[str, Any],
    key: str,
    where: str,
    low: float,
    high: float,
    default: float | None = None,
) -> float:
    """A number in ``low`` .. ``high`` (which NaN is not)."""
    value = data.get(key, default)
    if not is_number(value) or not low <= value <= high:
        raise InputError(
            f"{where}: {key} is {_shown(data, key)}; it must be a number from {low:g} to {high:g}"
        )
    return float(value)


def whole(
    data: Mapping[str, Any], key: str, where: str, low: int, high: int, default: int | None = None
) -> int:
    """A whole number in ``low`` .. ``high``."""
    value = data.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InputError(
            f"{where}: {key} is {_shown(data, key)}; it must be a whole number from {low} to {high}"
        )
    return value


def rising_pair(
    data: Mapping[str, Any],
    key: str,
    where: str,
    low: float,
    high: float,
    default: tuple[float, float],
) -> tuple[float, float]:
    """Two numbers in ``low`` .. ``high``, the second not below the first."""
    value = data.get(key, list(default))
    pair = isinstance(value, list) and len(value) == 2 and all(map(is_number, value))
    if not pair or not low <= value[0] <= value[1] <= high:
        raise InputError(
            f"{where}: {key} is {value!r}; it must be two rising numbers from {low:g} to {high:g}"
        )
    return float(value[0]), float(value[1])


def is_number(value: Any) -> bool:
    """Whether ``value`` is a plain number; True and False are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def _shown(data: Mapping[str, Any], key: str) -> str:
    return repr(data[key]) if key in data else "missing"


def _kind(value: Any) -> str:
    return "missing" if value is None else f"a {type(value).__name__}"
