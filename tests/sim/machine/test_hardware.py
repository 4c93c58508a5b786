"""Promises of the hardware and model data."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from jaxserve.datafiles import data_dir, load_json
from jaxserve.errors import InputError
from jaxserve.sim.machine import hardware
from jaxserve.sim.machine.hardware import gpu_names, load_gpu, load_model, model_names


def test_every_named_gpu_and_model_loads() -> None:
    """The GPUs and models that the documentation names can be loaded."""
    assert set(gpu_names()) == {
        "a100-sxm-40gb",
        "a100-sxm-80gb",
        "b200-sxm-180gb",
        "gb200-nvl72-186gb",
        "h100-sxm-80gb",
        "h200-sxm-141gb",
        "l40s-48gb",
    }
    dense = {"llama-3.1-8b", "llama-3.1-70b", "qwen2.5-32b", "qwen3-32b"}
    experts = {"gpt-oss-120b", "qwen3-30b-a3b", "qwen3-235b-a22b", "deepseek-v3"}
    assert set(model_names()) == dense | experts
    assert all(load_gpu(name).name == name for name in gpu_names())
    assert all(load_model(name).name == name for name in model_names())


def test_llama_8b_has_its_parameter_counts() -> None:
    """Parameter counts derived from the architecture are the model's published ones."""
    model = load_model("llama-3.1-8b")
    assert model.body_parameters == 6_979_321_856
    assert model.head_parameters == 525_336_576
    assert model.kv_bytes_per_token == 131_072


@pytest.mark.parametrize(
    ("name", "billions"), [("llama-3.1-8b", 8.03), ("llama-3.1-70b", 70.6), ("qwen2.5-32b", 32.8)]
)
def test_total_parameters_match_the_model_card(name: str, billions: float) -> None:
    """Body, head and embedding add up to the model card's size (norms and biases are tiny)."""
    model = load_model(name)
    total = model.body_parameters + model.head_parameters + model.embedding_parameters
    assert total / 1e9 == pytest.approx(billions, rel=0.003)


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


def test_model_and_acceptance_files_have_sources() -> None:
    """Model and acceptance data cite where their numbers come from."""
    files = [*(data_dir() / "models").glob("*.json"), data_dir() / "acceptance.json"]
    assert all(json.loads(path.read_text())["source"] for path in files)


def test_unknown_names_are_answered_with_the_allowed_ones() -> None:
    """An unknown GPU or model raises with the list of names."""
    with pytest.raises(InputError, match=r"gpu is 'b200'; it must be one of a100-sxm-40gb"):
        load_gpu("b200")
    with pytest.raises(InputError, match=r"model is 'gpt'; it must be one of deepseek-v3"):
        load_model("gpt")


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
