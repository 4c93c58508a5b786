"""The registry of formats: declared alike, recognised by their own examples, named when unknown."""

from __future__ import annotations

import csv
import json
from typing import Any

import pytest

from jaxserve import checks
from jaxserve.errors import InputError
from jaxserve.file_formats import (
    GIVES,
    NEEDED,
    FileFormat,
    described,
    file_formats,
    find,
    normal,
    recognise,
    recognise_as,
    refusal,
)

NAMES = {each.name: each for each in file_formats()}


def example_row(each: FileFormat) -> dict[str, Any]:
    """The example as the first row of a file."""
    if each.example.startswith("{"):
        return json.loads(each.example)
    return dict.fromkeys(map(normal, next(csv.reader([each.example]))))


@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_recognised(name: str) -> None:
    """As its own format, unless only the values tell; and it has what a load test needs."""
    each = NAMES[name]
    row = example_row(each)
    assert recognise(row) == (each if name != "timed" else NAMES["mooncake"])
    assert set(each.gives) <= set(GIVES)
    run = find(row, each.rows)[0] if each.rows else row
    for what in NEEDED if "load test" in each.gives else ():
        paths = [*each.quantities.get(what, ()), *each.quantities.get(_COUNTED.get(what, ""), ())]
        present = any(find(run, path) is not checks.MISSING for path in paths)
        assert present or (what == "TPOT" and "mean latency" in each.quantities), what


_COUNTED = {"prompt length": "all prompt tokens", "output length": "all output tokens"}


def test_all_are_described() -> None:
    """By name, commands, and what they cannot tell."""
    text = described()
    for each in file_formats():
        assert f"{each.name}: {each.written_by}" in text and each.cannot_tell in text


def test_a_list_stands_for_the_entry_that_counts() -> None:
    """Phases that are left out of the results do not."""
    warmup = {"concurrency": 1, "exclude_from_results": True}
    assert find({"phases": [warmup, {"concurrency": 8}]}, "phases.concurrency") == 8
    assert find({"phases": [{"concurrency": 4}] * 2}, "phases.concurrency") is checks.MISSING


@pytest.mark.parametrize(
    ("row", "gives", "message"),
    [
        ({"metric": None}, "load test", "cannot tell how many .* JSON file of the same"),
        ({"contexttokens": 3}, "load test", r"\(azure\), which is a trace and no load test"),
        ({"results_ttft_s_mean": 1}, "load test", r"nearest is llmperf .* concurrency \(num_conc"),
        ({"time_stamp": 1, "input_len": 2, "output_len": 3}, "trace", "nearest is mooncake"),
        ({}, "log", "it has no fields, which is no known log"),
    ],
)  # fmt: skip
def test_what_a_file_is_instead(row: dict[str, Any], gives: str, message: str) -> None:
    """The sentence names the format, or the nearest with what is missing and an example."""
    with pytest.raises(InputError, match=message):
        recognise_as(row, gives)
    assert "\n" not in refusal(row, gives)
