"""Start options of measured servers that the file of rows leaves out, from ``data/served``.

The file's source publishes image, options and search space of every run by date, and a row names
its date. ``data/served/recipes.json`` has rules on a row's date, image, model and layout, each with
its source. No rule looks at a measured time.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from jaxserve.datafiles import load_json

_SOURCE = re.compile(r"db-dump/|source_file=\d{4}-\d\d-\d\d\.csv")
_DATE = re.compile(r"measured=(\d{4}-\d\d-\d\d)")
_CONFIG = re.compile(r"config_id=(\d+)")


@dataclass(frozen=True)
class Recipe:
    """How a server was started."""

    version: str | None
    """version of the engine, None where neither the row nor its source names it."""
    drafts: int | None
    """draft tokens of a step; None where the source ran with and without on one day."""
    kv_format: str | None
    """number format of the KV cache, None where the source does not name it."""
    most_running: float
    """largest number of running sequences."""
    held_iterations: int
    """iterations for which prompts are held back, to prefill several together."""
    drawn: bool
    """whether lengths are drawn."""


def mean_tokens(named: ArrayLike, equal: ArrayLike) -> np.ndarray:
    """Mean lengths, from the lengths that the source names.

    Args:
      named: lengths, tokens.
      equal: bool, whether every length is exactly the named one.
    """
    return np.asarray(named) * np.where(equal, 1.0, _recipes()["lengths"]["mean_share"])


def gpu_families() -> Mapping[str, tuple[str, ...]]:
    """GPU names by architecture."""
    return {name: tuple(gpus) for name, gpus in _recipes()["families"].items()}


def recipe(
    source: str,
    model: str,
    gpu: str,
    engine: str,
    version: str | None,
    layout: tuple[int, bool],
    loop: tuple[float, float, float],
    weights: str,
) -> Recipe:
    """The recipe of a row.

    Args:
      source: the row's text about its source.
      model: name of the model's file.
      gpu: name of the GPU's file.
      engine: name of the engine.
      version: version of the engine in the row, None where the row has none.
      layout: number of GPUs, and whether each attends for sequences of its own.
      loop: concurrency, prompt and output.
      weights: number format of the weights.
    """
    if not _SOURCE.search(source):
        return Recipe(version, 0, None, float("inf"), 0, drawn=False)
    found = _DATE.search(source)
    concurrency, prompt, output = loop
    facts: dict[str, Any] = {
        "date": found.group(1) if found else "",
        "model": model,
        "family": next((name for name, gpus in gpu_families().items() if gpu in gpus), None),
        "engine": engine,
        "weights": weights,
        "gpus": layout[0],
        "ranks_attend": layout[1],
        "concurrency": concurrency,
        "prompt": prompt,
        "output": output,
        "prompt_longer": prompt > output,
        "config_named": _CONFIG.search(source) is not None,
    }
    rules = _recipes()
    facts["version"] = version or _chosen(rules["images"]["rules"], facts).get("version")
    options = rules["options"]["defaults"] | _chosen(rules["options"]["rules"], facts)
    most = options["most_running"]
    options["most_running"] = float("inf") if most is None else float(most)
    return Recipe(version=facts["version"], drawn=True, **options)


def _chosen(rules: list[dict[str, Any]], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Values of the rules that match the facts; of two rules for one value the later counts."""
    chosen: dict[str, Any] = {}
    for rule in rules:
        if all(_holds(facts, name, wanted) for name, wanted in rule["where"].items()):
            chosen |= rule
    return {name: value for name, value in chosen.items() if name not in ("where", "source")}


def _holds(facts: Mapping[str, Any], name: str, wanted: Any) -> bool:
    """Whether a condition holds, such as ``"gpus_below": 8``; a list names alternatives."""
    if name == "since":
        return facts["date"] >= wanted
    if name.endswith("_above"):
        return facts[name.removesuffix("_above")] > wanted
    if name.endswith("_below"):
        return facts[name.removesuffix("_below")] < wanted
    return facts[name] in wanted if isinstance(wanted, list) else facts[name] == wanted


@functools.cache
def _recipes() -> dict[str, Any]:
    return load_json("served/recipes.json")
