"""Kinds of arguments, and what several commands do with them."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Annotated

import tyro

from jaxserve.errors import InputError

File = Annotated[Path | None, tyro.conf.arg(metavar="FILE")]
Name = Annotated[str | None, tyro.conf.arg(metavar="NAME")]
Number = Annotated[int | None, tyro.conf.arg(metavar="N")]


def import_plots(module: str = "jaxserve.plots", what: str = "--plot") -> ModuleType:
    """A module that draws.

    Args:
      what: asks for it.

    Raises:
      InputError: matplotlib is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "matplotlib":
            raise
        raise InputError(
            f"{what} needs matplotlib, which the plot extra installs: pip install 'jaxserve[plot]'"
        ) from None


def text(path: Path | None) -> str | None:
    """A path for functions that take names and paths."""
    return None if path is None else str(path)
