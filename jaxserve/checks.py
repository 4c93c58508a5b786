"""Checks of input from outside. Every error says: X is V; it must be this.

A check of one value takes its name first and returns the value. ``JsonObject`` applies the same
checks to its fields.
"""

from __future__ import annotations

import difflib
import math
import re
import reprlib
import sys
from collections.abc import Collection, Mapping
from ipaddress import IPv6Address, ip_address
from numbers import Integral, Real
from pathlib import Path
from typing import Any, NoReturn

from jaxserve.errors import InputError

_MAX_NUMBER = sys.float_info.max
_MAX_QUOTED = 120
"""Characters of a value in an error."""
_NEAR = 0.6
"""Least similarity of a name that an error proposes."""
_ADDRESS = re.compile(
    r"https?://(\[[0-9a-f:.]+\]|[\w.-]+)(?::([0-9]{1,5}))?(/[^\s?#@]*)?", re.ASCII | re.IGNORECASE
)


class _Missing:
    """Stands for a field that is not there."""

    def __repr__(self) -> str:
        return "missing"


MISSING = _Missing()

_short = reprlib.Repr()
_short.maxstring = _short.maxother = 80


def refuse(name: str, value: Any, allowed: str) -> NoReturn:
    """Raises the InputError of ``value``; ``allowed`` completes "it must be"."""
    plain = isinstance(value, Real) and not isinstance(value, int)  # NumPy's repr names the type
    shown = str(value) if plain else _short.repr(value)
    shown = shown if len(shown) <= _MAX_QUOTED else f"{shown[: _MAX_QUOTED - 3]}..."
    raise InputError(f"{name} is {shown}; it must be {allowed}") from None


def number(name: str, value: Any, low: float = -_MAX_NUMBER, high: float = _MAX_NUMBER) -> float:
    """A finite number from ``low`` to ``high``."""
    given = _float(value)
    if not low <= given <= high:
        refuse(name, value, _range("a number", low, high))
    return given


def seconds(name: str, value: Any, low: float, high: float) -> float:
    """A time from ``low`` to ``high`` seconds; a larger one is most likely in milliseconds, so its
    error says the unit."""
    given = _float(value)
    if not low <= given <= high:
        refuse(name, value, f"in seconds, from {low:g} to {high:g}")
    return given


def is_finite(value: Any) -> bool:
    """Whether a value is a finite number, which True and False are not."""
    return math.isfinite(_float(value))


def positive(name: str, value: Any) -> float:
    """A finite number above 0."""
    given = _float(value)
    if not 0 < given <= _MAX_NUMBER:
        refuse(name, value, "a finite number above 0")
    return given


def whole(name: str, value: Any, low: float, high: float = _MAX_NUMBER) -> int:
    """A whole number from ``low`` to ``high``."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not low <= int(value) <= high:
        refuse(name, value, _range("a whole number", low, high))
    return int(value)


def digits(name: str, text: str, low: float, high: float = _MAX_NUMBER) -> int:
    """A whole number that a variable or an option has in plain digits."""
    return whole(name, int(text) if re.fullmatch("[0-9]{1,18}", text) else text, low, high)


def decimal(text: str) -> Any:
    """The number that an option's text stands for; the text itself where that is none, so that the
    check of the number shows it."""
    try:
        return float(text)
    except ValueError:
        return text


def assignments(
    name: str, text: str, fields: Collection[str], like: str
) -> tuple[str, dict[str, str]]:
    """Reads ``chat:ttft=0.5,tpot=0.05``: a name, and values of one or more fields.

    Args:
      name: of the option.
      text: its value; only the last colon ends the name.
      fields: that may be assigned, each at most once.
      like: an example, for the error.

    Returns:
      the name, which is not empty, and the text of each field that is assigned.

    Raises:
      InputError: the text has another form, an unknown field, or a field twice.
    """
    owner, _, listed = text.rpartition(":")
    pairs = [part.partition("=")[::2] for part in listed.split(",")]
    values = {field.strip(): value.strip() for field, value in pairs}
    if (
        not owner.strip()
        or not values.keys() <= set(fields)
        or len(values) < len(pairs)
        or not all(value and "=" not in value for value in values.values())
    ):
        raise InputError(f"{name} {_short.repr(text)} is not understood; it must be like {like}")
    return owner.strip(), values


def secret(variables: Mapping[str, str], name: str) -> str | None:
    """A token or key from a variable, None where it is empty or not set; no error shows it."""
    text = variables.get(name)
    if text and (not text.isascii() or not text.isprintable() or " " in text):
        raise InputError(f"{name} has other than printable ASCII characters without spaces")
    return text or None


def one_of(name: str, value: Any, allowed: Collection[str]) -> str:
    """Checks that a value is one of several words."""
    if not isinstance(value, str) or value not in allowed:
        refuse(name, value, f"one of {', '.join(allowed)}")
    return value


def known_name(value: Any, names: Collection[str]) -> Any:
    """The name that ``value`` spells in any case and with any dashes; else ``value``."""
    if not isinstance(value, str) or value in names:
        return value
    spelt = {_plain(each): each for each in names}
    return spelt.get(_plain(value), value)


def refuse_name(name: str, value: Any, names: Collection[str], more: str = "") -> NoReturn:
    """Raises the InputError of an unknown name, with the nearest of ``names``.

    Args:
      name: name of the argument.
      value: the unknown name.
      names: known names.
      more: further allowed values, after the names.
    """
    spelt, given = {_plain(each): each for each in names}, _plain(str(value))
    near = [each for each in spelt if given and each.startswith(given)]
    near += difflib.get_close_matches(given, spelt, 1, _NEAR)
    meant = f"; did you mean {spelt[near[0]]}?" if near else ""
    refuse(name, value, f"one of {', '.join(names)}{more}{meant}")


def _plain(text: str) -> str:
    return re.sub(r"[-_ ]", "", text).lower()


def address(name: str, url: Any, like: str = "http://127.0.0.1:8000", path: bool = True) -> str:
    """An http or https address without a user or a query.

    Args:
      like: an example, for the error.
      path: whether it may have a path.
    """
    found = _ADDRESS.fullmatch(url) if isinstance(url, str) and url.isprintable() else None
    if (
        found is None
        or not _is_host(found[1])
        or not 0 < int(found[2] or 80) < 65_536
        or (found[3] and not path)
    ):
        shown = without_password(url) if isinstance(url, str) else url
        allowed = "without a user or a query" if path else "without a user, a path or a query"
        refuse(name, shown, f"an address such as {like}, {allowed}")
    return url


def _is_host(text: str) -> bool:
    """Whether a name is one, or numbers are those of an address of IPv4 or IPv6."""
    if not re.fullmatch(r"\[.*\]|[0-9.]+", text):
        return True
    try:
        return isinstance(ip_address(text.strip("[]")), IPv6Address) == text.startswith("[")
    except ValueError:
        return False


def without_password(url: str) -> str:
    """Address without its password, to be shown."""
    shown = re.sub(r"^([\w=+.-]*://)?.*@", r"\1...@", url, flags=re.DOTALL)
    return re.sub(r"([?#]).+", r"\1...", shown, flags=re.DOTALL)


def ending(name: str, path: Path | str, *allowed: str) -> str:
    """The ending of a path, with its dot."""
    suffix = Path(path).suffix
    if suffix not in allowed:
        refuse(name, str(path), f"a path that ends in {' or '.join(allowed)}")
    return suffix


class JsonObject(dict[str, Any]):
    """The fields of a JSON object. ``default`` stands in for a field that is missing."""

    def __init__(self, data: Any, where: str, known: Collection[str] | None = None) -> None:
        """Args: what should be an object, its name, and the fields it may have (None for any)."""
        if not isinstance(data, Mapping):
            refuse(where, data, "a JSON object")
        super().__init__(data)
        self.where = where
        unknown = [] if known is None else sorted(set(self) - set(known), key=str)
        if unknown:  # a misspelt field is not ignored
            raise InputError(
                f"{where}: field {_short.repr(unknown[0])} is unknown; allowed are "
                f"{', '.join(sorted(known or ()))}"
            )

    def name(self, key: str) -> str:
        """Name of a field in errors, in one line whatever its name is."""
        return f"{self.where}: {key if key.isprintable() else _short.repr(key)}"

    def number(
        self, key: str, low: float = -_MAX_NUMBER, high: float = _MAX_NUMBER, default: Any = MISSING
    ) -> float:
        """The field as ``number`` checks it."""
        return number(self.name(key), self.get(key, default), low, high)

    def seconds(self, key: str, low: float, high: float) -> float:
        """The field as ``seconds`` checks it."""
        return seconds(self.name(key), self.get(key, MISSING), low, high)

    def positive(self, key: str) -> float:
        """The field as ``positive`` checks it."""
        return positive(self.name(key), self.get(key, MISSING))

    def whole(self, key: str, low: float, high: float = _MAX_NUMBER, default: Any = MISSING) -> int:
        """The field as ``whole`` checks it."""
        return whole(self.name(key), self.get(key, default), low, high)

    def one_of(self, key: str, allowed: Collection[str]) -> str:
        """The field as ``one_of`` checks it."""
        return one_of(self.name(key), self.get(key, MISSING), allowed)

    def flag(self, key: str) -> bool:
        """The field as True or False."""
        value = self.get(key, MISSING)
        if not isinstance(value, bool):
            refuse(self.name(key), value, "true or false")
        return value

    def text(self, key: str) -> str:
        """A text that is not empty."""
        value = self.get(key, MISSING)
        if not isinstance(value, str) or not value:
            refuse(self.name(key), value, "a text")
        return value

    def entries(self, key: str) -> list[Any]:
        """A list with at least one entry."""
        value = self.get(key, MISSING)
        if not isinstance(value, list) or not value:
            refuse(self.name(key), value, "a list with at least one entry")
        return value

    def numbers(
        self,
        key: str,
        count: int,
        low: float = -_MAX_NUMBER,
        high: float = _MAX_NUMBER,
        default: Any = MISSING,
    ) -> Any:
        """A tuple of ``count`` finite numbers from ``low`` to ``high``.

        Args:
          key: name of the field.
          count: numbers in the tuple.
          low: least number allowed.
          high: greatest number allowed.
          default: value where the field is missing; without one the field is required.
        """
        value = self.get(key, default)
        found = tuple(map(_float, value)) if isinstance(value, list | tuple) else ()
        if len(found) != count or not all(low <= each <= high for each in found):
            refuse(self.name(key), value, _range(f"{count} numbers", low, high))
        return found

    def rising_pair(
        self, key: str, low: float, high: float, default: Any = MISSING
    ) -> tuple[float, float]:
        """Two numbers from ``low`` to ``high``, the second not below the first."""
        first, second = self.numbers(key, 2, low, high, default)
        if first > second:
            refuse(self.name(key), (first, second), _range("two rising numbers", low, high))
        return first, second

    def inside(self, key: str, known: Collection[str] | None = None) -> JsonObject:
        """The fields of an object inside this one."""
        return JsonObject(self.get(key, MISSING), self.name(key), known)


def _float(value: Any) -> float:
    """A number as a float, NaN for what is none, as True and False."""
    try:
        return math.nan if isinstance(value, bool) or not isinstance(value, Real) else float(value)
    except OverflowError:
        return math.inf


def _range(kind: str, low: float, high: float) -> str:
    if low == high:
        return f"{low:.15g}"
    if high < _MAX_NUMBER:
        return f"{kind} from {low:.15g} to {high:.15g}"
    kind = kind.replace("a number", "a finite number")
    return kind if low == -_MAX_NUMBER else f"{kind} from {low:.15g} on"
