"""Headroom of tasks as tables, for the terminal and for docs/headroom.md."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jaxserve.show.text_table import TextTable

if TYPE_CHECKING:
    from jaxserve.evaluation.headroom import Headroom

_TITLE = "# Headroom\n"
_HEAD = f"""{_TITLE}
Written by `jaxserve search`: for each task the constant settings in each regime (share of the best
there), then the mean reward of every policy on test seeds.
"""
_SECTION = "\n## "
_SETTING_WIDTH = 58


def headroom_tables(result: Headroom) -> tuple[TextTable, TextTable]:
    """Settings by regime, and mean rewards of all policies."""
    from jaxserve.agents.search import setting_text
    from jaxserve.grids import grid_sizes

    sizes, regimes = grid_sizes(result.env), [regime.name for regime in result.spec.regimes]
    labels = [*(f"best in {name}" for name in regimes), "best static"]
    settings = [*result.by_regime, result.static]
    best = result.matrix.max(axis=0)
    rows = [
        (
            f"{label}:\n{textwrap.fill(setting_text(setting, sizes), _SETTING_WIDTH)}",
            *(_with_share(value, top) for value, top in zip(row, best, strict=True)),
        )
        for label, setting, row in zip(labels, settings, result.matrix, strict=True)
    ]
    matrix = TextTable(
        f"{result.spec.name}: mean reward of a constant setting in each regime",
        ("setting", *regimes),
        tuple(rows),
    )
    ranked = sorted(result.values.items(), key=lambda item: item[1])
    values = TextTable(
        f"mean reward on test seeds, headroom {result.headroom:+.1%}",
        ("policy", "mean reward"),
        tuple((name, f"{value:.4f}") for name, value in ranked),
    )
    return matrix, values


def headroom_markdown(results: Sequence[Headroom], earlier: str = "") -> str:
    """The Markdown page. A search takes long, so that separate commands may measure the tasks.

    Args:
      results: headroom of each task.
      earlier: the existing page; its introduction and its sections on other tasks are kept.
    """
    head, *sections = earlier.split(_SECTION) if earlier.startswith(_TITLE) else [_HEAD]
    kept = {section.partition("\n")[0]: section.rstrip() for section in sections}
    for result in results:
        tables = "\n".join(
            f"{table.title}:\n\n{table.markdown()}" for table in headroom_tables(result)
        )
        kept[result.spec.name] = f"{result.spec.name}\n\n{tables}".rstrip()
    return head.rstrip() + "\n" + "".join(f"{_SECTION}{text}\n" for text in kept.values())


def _with_share(value: float, best: float) -> str:
    """A value and its share of the best, if that is positive."""
    return f"{value:.3f} ({value / best:.0%})" if best > 0.0 else f"{value:.3f}"
