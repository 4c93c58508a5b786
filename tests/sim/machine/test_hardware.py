"""Promises of the hardware data."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from jaxserve.datafiles import load_json
from jaxserve.errors import InputError
from jaxserve.sim.machine import hardware
from jaxserve.sim.machine.hardware import gpu_names, load_gpu


def test_every_named_gpu_loads() -> None:
    """The GPUs that the documentation names can be loaded."""
    assert set(gpu_names()) == {
        "a100-sxm-40gb",
        "a100-sxm-80gb",
        "b200-sxm-180gb",
        "gb200-nvl72-186gb",
        "h100-sxm-80gb",
        "h200-sxm-141gb",
        "l40s-48gb",
    }
    assert all(load_gpu(name).name == name for name in gpu_names())


def _groups(node: Any, path: str) -> list[tuple[str, dict[str, Any]]]:
    """Every innermost object of a JSON tree that holds a number."""
    found = []
    if any(isinstance(value, int | float) for value in node.values()):
        found.append((path, node))
    for key, value in node.items():
        if isinstance(value, dict):
            found += _groups(value, f"{path}/{key}")
    return found


@pytest.mark.parametrize("name", gpu_names())
def test_every_hardware_constant_has_a_source(name: str) -> None:
    """Each group of numbers in a hardware file says where they come from."""
    groups = _groups(load_json(f"hardware/{name}.json"), name)
    assert len(groups) >= 11
    assert not [path for path, group in groups if not group.get("source")]


def test_acceptance_has_its_source() -> None:
    """The data cite where their numbers come from."""
    assert load_json("acceptance.json")["source"]


def test_an_unknown_name_is_answered_with_the_allowed_ones() -> None:
    """It raises with the list of GPUs."""
    with pytest.raises(InputError, match=r"gpu is 'b200'; it must be one of a100-sxm-40gb"):
        load_gpu("b200")


def test_a_gpu_of_ones_own_differs_where_its_file_says(tmp_path: Path) -> None:
    """Constants that a file names replace those of its base; the rest stays."""
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"base": "h100-sxm-80gb", "memory": {"memory_bytes": 1e11}}))
    base, own = load_gpu("h100-sxm-80gb"), load_gpu(str(path))
    assert own == dataclasses.replace(base, name="mine", memory_bytes=1e11)


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("mine", {"base": "b200"}, "base is 'b200'; it must be one of a100"),
        ("mine", [], r"GPU file mine.json is \[\]; it must be a JSON object"),
        ("mine", {}, "base is missing"),
        ("mine", {"base": "l40s-48gb", "memori": {}}, "field 'memori' is unknown"),
        ("mine", {"base": "l40s-48gb", "memory": {"size": 1}}, "memory: field 'size' is unknown"),
        ("mine", {"base": "l40s-48gb", "memory": 5}, "memory is 5; it must be a JSON object"),
        ("mine", {"base": "l40s-48gb", "power": {"max_w": -1}}, "power: max_w is -1"),
        ("l40s-48gb", {"base": "l40s-48gb"}, "has the name of a packaged GPU"),
    ],
)
def test_a_wrong_gpu_file_is_refused(
    name: str, content: Any, complaint: str, tmp_path: Path
) -> None:
    """With one sentence that names the field."""
    path = tmp_path / f"{name}.json"
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=complaint):
        load_gpu(str(path))


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf"), None, "fast"])
def test_a_bad_constant_is_named(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A constant that is not a positive finite number raises with file and field."""
    data = load_json("hardware/h100-sxm-80gb.json")
    data["memory"]["bandwidth_bytes_per_s"] = value
    monkeypatch.setattr(hardware, "load_json", lambda name: data)
    with pytest.raises(InputError, match=r"h100-sxm-80gb\.json: memory: bandwidth_bytes_per_s is"):
        load_gpu("h100-sxm-80gb")


def test_a_missing_group_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hardware file without a group raises with the group's name."""
    data = load_json("hardware/h100-sxm-80gb.json")
    del data["power"]
    monkeypatch.setattr(hardware, "load_json", lambda name: data)
    with pytest.raises(InputError, match="power is missing"):
        load_gpu("h100-sxm-80gb")
