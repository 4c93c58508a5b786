"""Rows of a trace file, as the readers of all formats give them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxserve import checks
from jaxserve.errors import InputError
from jaxserve.sim.traffic.request_kinds import KIND_RULE, is_kind

MAX_KINDS = 1_000
"""Most kinds of requests in a file."""


class Rows(NamedTuple):
    """n successive rows of a file."""

    time: NDArray[Any]
    """float64[n] in the unit of the file's clock, or int64[n] of calendar times, in nanoseconds."""
    prompt: NDArray[np.int32]
    """int32[n], tokens."""
    output: NDArray[np.int32]
    """int32[n], tokens."""
    first_line: int
    """line of the file on which the first row stands; the others follow line by line."""
    kind: NDArray[np.int32] | None = None
    """int32[n], place of each row's text in ``KindTexts``; None where rows have none."""
    ids: list[Any] | None = None
    """ids of the blocks of each prompt; None where the format has none."""

    def chosen(self, rows: NDArray[np.bool_]) -> Rows:
        """The rows for which ``rows``, bool[n], is true; their lines are no longer known."""
        if rows.all():
            return self
        ids = self.ids
        return self._replace(
            time=self.time[rows],
            prompt=self.prompt[rows],
            output=self.output[rows],
            kind=None if self.kind is None else self.kind[rows],
            ids=None if ids is None else [ids[row] for row in np.flatnonzero(rows)],
        )


class KindTexts:
    """The different texts of a file's column of kinds, in order of their first row."""

    def __init__(self, name: str, column: str) -> None:
        """Texts of a file.

        Args:
          name: of the file.
          column: that holds the kinds.
        """
        self._name, self._column = name, column
        self._places: dict[str, int] = {}
        self._empty_line: int | None = None

    def places(
        self, texts: Sequence[str], text: NDArray[np.integer], first_line: int
    ) -> NDArray[np.int32]:
        """int32[n], the place of each row's text in ``texts()``.

        Args:
          texts: different texts of a part of the file, trimmed; an empty one stands for none.
          text: int[n], which of them each row has.
          first_line: line of the first row.

        Raises:
          InputError: a text is no kind.
        """
        for place, found in enumerate(texts):
            if found and is_kind(found):
                continue
            line = first_line + int(np.argmax(text == place))
            if found:
                checks.refuse(f"{self._name}, line {line}, column {self._column}", found, KIND_RULE)
            if self._empty_line is None:
                self._empty_line = line
        known = [self._places.setdefault(found, len(self._places)) for found in texts]
        if len(self._places) > MAX_KINDS:
            raise InputError(
                f"{self._name}, column {self._column}: more than {MAX_KINDS:,} different texts; a "
                "kind of requests has one name"
            )
        return np.array(known, np.int32)[text]

    def texts(self) -> list[str]:
        """All texts; none where no row of the file has one.

        Raises:
          InputError: a row has none while others have.
        """
        if not any(self._places):
            return []
        if self._empty_line is not None:
            raise InputError(
                f"{self._name}, line {self._empty_line}, column {self._column}: there is no kind, "
                "which other rows have; give every row one"
            )
        return list(self._places)
