"""Serving stack of a model: formats of the tiers, layout over GPUs, engine and version.

A table without a stack describes one dense model with the constants of its GPU's file alone, and
its tiers are FP16, INT8 and INT4. With a stack the tiers are the formats that it names, and times
come from the ``served`` group of the GPU's file and from ``data/engines/<name>.json``.
"""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxserve import checks
from jaxserve.checks import JsonObject
from jaxserve.datafiles import data_dir, load_json
from jaxserve.errors import InputWarning
from jaxserve.sim.machine.architecture import LargeModel, large_model
from jaxserve.sim.machine.collectives import AllReduce
from jaxserve.sim.machine.formats import DEFAULT_FORMATS, KV_FORMATS, parse_formats, rest_of
from jaxserve.sim.machine.hardware import Gpu, LinearFit, LlmModel, block, gpu_data, load_gpu
from jaxserve.sim.machine.models import load_model

MAX_GROUPS = 16


@dataclass(frozen=True)
class Stack:
    """Serving stack of a model."""

    engine: str = "vllm"
    """name of a file in ``data/engines``."""
    version: str | None = None
    """version of the engine; None for the engine's constants where no version is known."""
    formats: tuple[str, str, str] = DEFAULT_FORMATS
    """number format of the weights in tiers 0, 1 and 2."""
    kv_format: str = "bf16"
    """number format of the KV cache."""
    pipeline_parallel: int = 1
    """groups of GPUs that share the layers among them."""
    attention_data_parallel: bool = False
    """each GPU attends for sequences of its own, and experts are divided among the GPUs."""
    expert_parallel: bool = False
    """each GPU has some experts whole also where all attend together, not a part of each."""

    @classmethod
    def from_dict(cls, data: Any, where: str) -> Stack:
        """Parses a stack from a JSON object; fields left out keep their default.

        Raises:
          InputError: a field is unknown or out of range.
        """
        item = JsonObject(data, where, [field.name for field in dataclasses.fields(cls)])
        values: dict[str, Any] = {}
        if "engine" in item:
            values["engine"] = item.one_of("engine", engine_names())
        if item.get("version") is not None:
            values["version"] = item.text("version")
        if "formats" in item:
            values["formats"] = parse_formats(item.name("formats"), item["formats"])
        if "kv_format" in item:
            values["kv_format"] = item.one_of("kv_format", KV_FORMATS)
        if "pipeline_parallel" in item:
            values["pipeline_parallel"] = item.whole("pipeline_parallel", 1, MAX_GROUPS)
        if "attention_data_parallel" in item:
            values["attention_data_parallel"] = item.flag("attention_data_parallel")
        if "expert_parallel" in item:
            values["expert_parallel"] = item.flag("expert_parallel")
        return cls(**values)


@dataclass(frozen=True)
class EngineTimes:
    """Seconds that an engine adds to the kernels."""

    name: str
    """name of the engine's file."""
    host_s: float
    """seconds per iteration outside the kernels: scheduler, launch, sampling."""
    sequence_s: float
    """seconds for each sequence that an iteration gives a token: sampling, detokenising, sending;
    a sequence whose drafts are verified counts once."""
    expert_layer_s: float
    """seconds per layer of experts outside their products: routing, permutation, their sum."""
    draft_pass_s: float
    """seconds outside the kernels of each pass through layers that draft."""
    captured_tokens: float
    """most tokens of an iteration with prompt tokens whose kernels the engine replays as a recorded
    graph; 0 where it records graphs of decoding alone."""
    eager_layer_s: float
    """least seconds per layer of an iteration with prompt tokens and more than ``captured_tokens``
    in all, whose kernels the host launches one by one."""
    eager_expert_layer_s: float
    """least seconds per layer of experts of such an iteration; its kernels are others."""
    prefill_first: bool
    """prompts have iterations of their own, and running sequences wait for them."""


@dataclass(frozen=True)
class ServedGpu(Gpu):
    """A GPU with the constants of a stack; ``linear`` has the formats of its tiers."""

    expert_linear: tuple[LinearFit, LinearFit, LinearFit]
    """products of routed experts in the format of each tier."""
    moved_bytes: tuple[float, float, float]
    """bytes that experts in the format of each tier move for each number of a token's row, of which
    every expert of the token takes one: gathered, quantised, written and summed."""
    routing_spread: float
    """exponent of the tokens in the share of experts that a batch touches: 1 where every token
    picks at random, less where tokens of one iteration pick alike."""
    latent_flops_efficiency: float
    """reached share of the bf16 rate where latent attention decodes."""
    all_reduce: AllReduce  # always measured
    engine: EngineTimes
    """times of the engine."""


def engine_names() -> tuple[str, ...]:
    """Names that ``load_engine`` accepts."""
    return tuple(sorted(path.stem for path in (data_dir() / "engines").glob("*.json")))


def load_engine(name: str, version: str | None = None) -> EngineTimes:
    """Engine ``name`` from ``data/engines``, with what was measured of ``version``.

    A version that was not measured has the constants of the newest one before it, and an
    ``InputWarning`` says so.

    Raises:
      InputError: unknown engine, or a version before all that were measured.
    """
    where = f"engines/{checks.one_of('engine', name, engine_names())}.json"
    data = JsonObject(load_json(where), where)
    versions = data.inside("versions")
    times = dict(data)
    if version is not None:
        times |= versions.inside(_measured_version(name, version, list(versions)))
    item = JsonObject(times, where)
    return EngineTimes(
        name=name,
        host_s=item.number("host_s", 0),
        sequence_s=item.number("sequence_s", 0),
        expert_layer_s=item.number("expert_layer_s", 0),
        draft_pass_s=item.number("draft_pass_s", 0),
        captured_tokens=item.number("captured_tokens", 0),
        eager_layer_s=item.number("eager_layer_s", 0),
        eager_expert_layer_s=item.number("eager_expert_layer_s", 0),
        prefill_first=item.flag("prefill_first"),
    )


def _measured_version(name: str, version: str, measured: Sequence[str]) -> str:
    """The version itself, or the newest measured one before it."""
    before = [each for each in measured if _release(each) and _release(each) <= _release(version)]
    if version in measured or not before:
        return checks.one_of(f"version of {name}", version, measured)
    newest = max(reversed(before), key=_release)
    warnings.warn(
        f"{name} {version} was not measured; its host times are those of {newest}",
        InputWarning,
        stacklevel=4,
    )
    return newest


def _release(version: str) -> tuple[int, ...]:
    """Leading numbers of a version; empty where it begins otherwise."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in found.group().split(".")) if found else ()


def serve(gpu_name: str, model_name: str, stack: Stack | None) -> tuple[Gpu, LlmModel]:
    """GPU and model as they are without a stack, or in the form in which ``stack`` serves them.

    A model with experts needs one; None stands for the default stack there.

    Raises:
      InputError: unknown name, or a format that the GPU's file has no constants of.
    """
    model = load_model(model_name)
    if stack is None and not isinstance(model, LargeModel):
        return load_gpu(gpu_name), model
    stack = stack or Stack()
    layout = {
        "formats": stack.formats,
        "kv_format": stack.kv_format,
        "pipeline_parallel": stack.pipeline_parallel,
        "attention_data_parallel": stack.attention_data_parallel,
        "expert_parallel": stack.expert_parallel,
    }
    if isinstance(model, LargeModel):
        model = dataclasses.replace(model, **layout)
    else:
        model = large_model(model, **layout)
    return _served_gpu(gpu_name, model, stack), model


def _served_gpu(name: str, model: LargeModel, stack: Stack) -> ServedGpu:
    data = gpu_data(name)
    if "served" not in data:
        allowed = f"one with constants of served formats: {', '.join(_served_names())}"
        checks.refuse("gpu", Path(name).stem, allowed)
    served = data.inside("served")

    def fits(group: str, names: list[str]) -> tuple[LinearFit, LinearFit, LinearFit]:
        dense = model.experts is None
        products = served_products(served, group, stack.engine, dense)
        known = [key for key in products if key != "source"]
        first, second, third = (
            block(LinearFit, products, checks.one_of(f"format on {Path(name).stem}", each, known))
            for each in names
        )
        return first, second, third

    def moved(number_format: str) -> float:
        products = served_products(served, "experts", stack.engine)
        known = model.experts is not None and "moved_bytes" in products.get(number_format, {})
        return products.inside(number_format).number("moved_bytes", 0) if known else 0.0

    body = [rest_of(each) if model.experts else each for each in stack.formats]
    engine = load_engine(stack.engine, stack.version)
    gpu = load_gpu(name)
    values = {field.name: getattr(gpu, field.name) for field in dataclasses.fields(Gpu)}
    values |= {
        "linear": fits("formats", body),
        "expert_linear": fits("experts", list(stack.formats)) if model.experts else gpu.linear,
        "moved_bytes": tuple(moved(each) for each in stack.formats),
        "routing_spread": served.inside("experts").positive("routing_spread"),
        "latent_flops_efficiency": served.inside("latent").positive("flops_efficiency"),
        "all_reduce": block(AllReduce, served, "all_reduce"),
        "host_s": engine.host_s,
        "engine": engine,
    }
    return ServedGpu(**values)


def served_products(served: JsonObject, group: str, engine: str, dense: bool = False) -> JsonObject:
    """Constants of products by format: those of the GPU's file, and in their place what the kernels
    of the engine reach on GPUs of its family.

    Args:
      served: group ``served`` of the GPU's file.
      group: ``formats`` or ``experts``.
      engine: name of the engine.
      dense: whether they are of a dense model, which the engine's group ``dense`` was fitted to.
    """
    where = f"engines/{engine}.json"
    data = JsonObject(load_json(where), where)
    family = data.inside("products").inside(served.text("family"))
    groups = [family.get(each, {}) for each in ((group, "dense") if dense else (group,))]
    shared = served.inside(group)
    own = {
        name: {key: value for each in groups for key, value in each.get(name, {}).items()}
        for name in shared
    }
    merged = dict(shared)
    for name, constants in own.items():
        if constants:
            merged[name] = {**shared.inside(name), **constants, "source": data.text("source")}
    if "int8" in shared and own.get("fp8"):  # assumed to run as fp8 does, as its source says
        merged["int8"] = {**shared.inside("int8"), **own["fp8"]}
    return JsonObject(merged, shared.where)


def _served_names() -> list[str]:
    names = sorted(path.stem for path in (data_dir() / "hardware").glob("*.json"))
    return [name for name in names if "served" in load_json(f"hardware/{name}.json")]
