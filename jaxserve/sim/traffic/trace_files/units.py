"""Units of a file's clock: told by the file, or asked for.

Where a file would not have ``PLAUSIBLE_RPS`` requests per second, its times are most likely in
another unit than its format has.
"""

from __future__ import annotations

import numpy as np

from jaxserve.errors import InputError
from jaxserve.sim.traffic.prompt_blocks import told_block_tokens
from jaxserve.sim.traffic.trace_files.formats import LAYOUTS, TIME_UNITS, Layout
from jaxserve.sim.traffic.trace_files.rows import Rows

PLAUSIBLE_RPS = (1 / 300, 1000.0)
"""Requests per second of a recorded trace: quiet hours of BurstGPT have one in two minutes, and no
deployment that a public trace was recorded of has more than the upper limit."""
_FEWEST_TO_TELL = 10
"""Requests from which their rate tells the unit of time."""
_EPOCH_S = (1e9, 4e9)
"""Seconds since 1970 in the years 2001 to 2096."""


def told_layout(name: str, rows: Rows) -> Layout:
    """The format of JSON lines that are Mooncake's or in seconds, as ``timed`` is.

    Args:
      name: of the file.
      rows: all of its rows.

    Raises:
      InputError: the file does not tell its unit.
    """
    mooncake, timed = LAYOUTS["mooncake"], LAYOUTS["timed"]
    counts = np.array([len(listed) for listed in rows.ids or ()])
    tokens = told_block_tokens(counts, rows.prompt, mooncake.block_tokens) if counts.any() else 0
    requests, span = len(rows.time), float(np.ptp(rows.time))
    telling = requests >= _FEWEST_TO_TELL and span > 0.0
    if tokens == timed.block_tokens:
        return timed
    if telling and mooncake.second * requests / span > PLAUSIBLE_RPS[1]:
        return timed
    whole = not telling or bool((rows.time == np.rint(rows.time)).all())
    if not span or (tokens == mooncake.block_tokens and whole):
        return mooncake
    raise InputError(_question(name, requests, span, ("s", "ms")))


def check_clock(name: str, unit: str, requests: int, first: float, span: float) -> None:
    """Refuses a clock whose unit is most likely not that of the format.

    Args:
      name: of the file.
      unit: of its format, one of ``TIME_UNITS``, where the user does not name one.
      requests: of the file.
      first: time of the first one, in that unit.
      span: time from the first to the last, likewise.

    Raises:
      InputError: the rate is not plausible, or the first time is a date in another unit.
    """
    dated = [
        each for each, second in TIME_UNITS.items() if _EPOCH_S[0] <= first / second < _EPOCH_S[1]
    ]
    strange = bool(dated) and unit not in dated
    if requests >= _FEWEST_TO_TELL and span > 0.0:
        low, high = PLAUSIBLE_RPS
        strange |= not low <= TIME_UNITS[unit] * requests / span <= high
    if strange:
        others = [each for each in dated or ("s", "ms") if each != unit]
        raise InputError(_question(name, requests, span, (unit, *others)))


def _question(name: str, requests: int, span: float, units: tuple[str, ...]) -> str:
    """Asks for the unit, with the rate in each of ``units``."""
    rates = ", ".join(
        f"{TIME_UNITS[unit] * requests / span:.3g} in {unit}" if span else f"any in {unit}"
        for unit in units
    )
    options = " or ".join(f"--time-unit {unit}" for unit in units)
    return (
        f"{name} does not tell the unit of its times: its requests per second would be {rates}; "
        f"say which ({options})"
    )
