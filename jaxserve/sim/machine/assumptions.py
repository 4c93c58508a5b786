"""Times of kernels that were not measured on a GPU, as the sources in its file say."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from jaxserve.checks import JsonObject
from jaxserve.errors import InputError
from jaxserve.fields import Tier
from jaxserve.sim.machine.architecture import LargeModel
from jaxserve.sim.machine.formats import rest_of
from jaxserve.sim.machine.hardware import gpu_data
from jaxserve.sim.machine.models import load_model
from jaxserve.sim.machine.stack import Stack, served_products

_ASSUMED = re.compile(r"assumption[^:;]*: (.+)")


def assumed_times(
    gpu: str | None, model: str, stack: Stack | None, tiers: Iterable[int]
) -> list[str]:
    """Sentences, one for each kind of kernel in these tiers whose times are assumed.

    A latency table may know a GPU or a model that no file describes; of these nothing is said.

    Args:
      gpu: name or file of the GPU.
      model: name or file of the model.
      stack: serving stack; None for the tiers FP16, INT8 and INT4 of a dense model.
      tiers: tiers that an answer rests on.
    """
    try:
        data, sizes = gpu_data(gpu or ""), load_model(model)
    except InputError:
        return []
    kernels = _without_stack(data, tiers) if stack is None else _served(data, sizes, stack, tiers)
    found = ((name, _ASSUMED.search(group.text("source"))) for name, group in kernels)
    return list(
        dict.fromkeys(
            f"times of {name} on {gpu} are an assumption: {assumed.group(1)}"
            for name, assumed in found
            if assumed
        )
    )


def _without_stack(data: JsonObject, tiers: Iterable[int]) -> Iterator[tuple[str, JsonObject]]:
    for tier in tiers:
        name = Tier(tier).name
        yield f"{name} products", data.inside("linear").inside(name.lower())


def _served(
    data: JsonObject, model: object, stack: Stack, tiers: Iterable[int]
) -> Iterator[tuple[str, JsonObject]]:
    served = data.inside("served")
    experts = isinstance(model, LargeModel) and model.experts is not None
    for name in (stack.formats[tier] for tier in tiers):
        body = rest_of(name) if experts else name
        products = served_products(served, "formats", stack.engine, dense=not experts)
        yield f"{body} products", products.inside(body)
        if experts:
            products = served_products(served, "experts", stack.engine)
            yield f"{name} experts", products.inside(name)
    if isinstance(model, LargeModel) and model.latent is not None:
        yield "decoding with latent attention", served.inside("latent")
