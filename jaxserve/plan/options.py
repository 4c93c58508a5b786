"""Engine options: kinds of GPU, tensor parallelism and number formats that can hold the model."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from functools import cached_property

from jaxserve.errors import InputError
from jaxserve.plan.doubt import Doubt, published_doubt
from jaxserve.plan.inputs import PlanInputs
from jaxserve.sim.machine.acceptance import Drafts, profile_error
from jaxserve.sim.machine.architecture import LargeModel
from jaxserve.sim.machine.cost_model import CostModel
from jaxserve.sim.machine.hardware import EngineSettings, Gpu, LlmModel, gpu_data, load_gpu
from jaxserve.sim.machine.memory import (
    SequenceKv,
    kv_bytes_per_token,
    kv_pool_bytes,
    sequence_kv,
)
from jaxserve.sim.machine.models import load_model
from jaxserve.sim.machine.stack import Stack, load_engine, serve

TENSOR_PARALLEL = (1, 2, 4, 8)
"""Sizes of a tensor-parallel group that are tried."""
_TIERS = ("bf16", "int8", "int4")
"""Formats of the tiers of a GPU whose file has no constants of served formats."""
_ENGINE = "vllm"
LARGEST_CAP = 512
"""Largest batch cap that is tried."""


@dataclass(frozen=True, eq=False)
class EngineOption:
    """One engine: a model in its number formats on a tensor-parallel group of one kind of GPU."""

    gpu: str
    """name of the kind of GPU."""
    tensor_parallel: int
    """GPUs that share every layer."""
    weight_format: str
    """number format of the weights."""
    kv_format: str
    """number format of the KV cache."""
    attention_data_parallel: bool
    """whether each GPU attends for sequences of its own and experts are divided among the GPUs."""
    tier: int
    """tier of ``weight_format`` in ``cost``."""
    cost: CostModel = field(repr=False)
    """times of iterations."""
    usd_per_hour: float
    """rent of the group."""
    doubt: Doubt
    """relative doubt of the times."""
    machine: tuple[Gpu, LlmModel] = field(repr=False)
    """the GPU and the model as served."""
    kind: str = field(repr=False)
    """name or file of the kind of GPU, as the user wrote it."""
    stack: Stack | None = field(repr=False)
    """what serves the model; None where the GPU's file has no constants of served formats."""
    draft: str | None = None
    """acceptance profile of its drafts; None for an engine without speculation."""
    context_tokens: float = 0.0
    """mean KV tokens of a sequence, which the depths of the drafts suit."""

    @cached_property
    def drafts(self) -> Drafts | None:
        """Speculation at the depths of least time per token, for every number of sequences up to
        the largest batch cap; None without."""
        if self.draft is None:
            return None
        return Drafts.fastest(
            self.draft, self.cost, self.context_tokens, self.tier, sequences=LARGEST_CAP
        )

    @property
    def name(self) -> str:
        """Description for people, such as ``h100-sxm-80gb TP2 fp8``."""
        kv = "" if self.kv_format == "bf16" else f", KV {self.kv_format}"
        experts = ", EP" if self.attention_data_parallel else ""
        drafts = "" if self.draft is None else f", drafts {self.draft}"
        return f"{self.gpu} TP{self.tensor_parallel} {self.weight_format}{kv}{experts}{drafts}"

    def kv_tokens(self, batch_cap: int, token_budget: int) -> int:
        """Tokens of the KV pool of an engine with these limits; 0 where nothing is left."""
        gpu, model = self.machine
        limits = EngineSettings(token_budget=token_budget, max_sequences=batch_cap)
        speculating, group = self.draft is not None, self.tensor_parallel
        try:
            pool = kv_pool_bytes(gpu, model, self.tier, speculating, group, limits)
        except InputError:
            return 0
        return int(pool / kv_bytes_per_token(model, speculating, group))

    @property
    def handover_s_per_token(self) -> float:
        """Seconds that the KV of a token takes between engines, each GPU over a link of its own."""
        gpu, model = self.machine
        size = kv_bytes_per_token(model, self.draft is not None, self.tensor_parallel)
        return size / gpu.link_bytes_per_s

    def doubted(self, doubt: Doubt) -> Doubt:
        """A doubt of the times, with that of the acceptance of its drafts."""
        if self.draft is None:
            return doubt
        return doubt.with_error(
            profile_error(self.draft), "acceptance of drafts on other data sets"
        )

    @property
    def sequence_kv(self) -> SequenceKv | None:
        """KV that a sequence holds beside that of its tokens; None for layers of one kind."""
        return sequence_kv(self.machine[1], self.tensor_parallel)

    @property
    def caches_prefixes(self) -> bool:
        """Whether prompts that begin alike share KV; states are not shared."""
        return self.sequence_kv is None or not self.sequence_kv.state_tokens

    def holds(self, tokens: int, pool: float) -> bool:
        """Whether a pool of so many tokens holds a sequence of ``tokens``."""
        beside = self.sequence_kv.beside(tokens) if self.sequence_kv else 0
        return pool >= tokens + beside


@dataclass(frozen=True)
class Excluded:
    """An engine option that cannot serve, and the reason."""

    name: str
    """description of the option."""
    reason: str
    """the reason, a clause."""


def engine_options(inputs: PlanInputs) -> tuple[list[EngineOption], list[Excluded]]:
    """All options that hold the model and its longest request, and those that do not.

    Raises:
      InputError: none does; the message names the nearest.
    """
    options: list[EngineOption] = []
    excluded: list[Excluded] = []
    has_experts = getattr(load_model(inputs.model), "experts", None) is not None
    for kind in inputs.prices:
        served = "served" in gpu_data(kind)
        for weight_format in inputs.formats:
            for kv_format in inputs.kv_formats:
                for size in TENSOR_PARALLEL:
                    for divided in (False, True) if has_experts and size > 1 else (False,):
                        layout = _Layout(kind, size, weight_format, kv_format, divided, served)
                        for draft in dict.fromkeys((None, inputs.draft)):
                            found = _option(inputs, layout, draft)
                            (options if isinstance(found, EngineOption) else excluded).append(found)  # type: ignore[arg-type]
    if not options:
        memory = [each for each in excluded if "memory" in each.reason] or excluded
        raise InputError(
            f"no GPU of {', '.join(inputs.prices)} holds {inputs.model} within --max-gpus "
            f"{inputs.max_gpus}: {memory[-1].name}: {memory[-1].reason}; name a larger GPU, more "
            "GPUs or a smaller --format"
        )
    return options, excluded


@dataclass(frozen=True)
class _Layout:
    """An option before its memory and its times are known."""

    kind: str
    size: int
    weight_format: str
    kv_format: str
    divided: bool
    served: bool

    @property
    def stack(self) -> Stack | None:
        if not self.served:
            return None
        return Stack(
            engine=_ENGINE,
            formats=(self.weight_format, "fp8", "int4"),
            kv_format=self.kv_format,
            attention_data_parallel=self.divided,
        )

    @property
    def name(self) -> str:
        gpu = load_gpu(self.kind).name
        return f"{gpu} TP{self.size} {self.weight_format}, KV {self.kv_format}"


def _option(inputs: PlanInputs, layout: _Layout, draft: str | None) -> EngineOption | Excluded:
    def without(reason: str) -> Excluded:
        return Excluded(layout.name if draft is None else f"{layout.name}, drafts {draft}", reason)

    if layout.size > inputs.max_gpus:
        return without(f"TP {layout.size} is more than {inputs.max_gpus} GPUs")
    try:
        machine, tier = _machine(inputs.model, layout)
        cost = CostModel.of(*machine, layout.size)
    except InputError as error:
        return without(str(error))
    gpu, model = machine
    prompt, output = inputs.mean_lengths
    option = EngineOption(
        gpu=gpu.name,
        tensor_parallel=layout.size,
        weight_format=layout.weight_format,
        kv_format=layout.kv_format,
        attention_data_parallel=layout.divided,
        tier=tier,
        cost=cost,
        usd_per_hour=layout.size * inputs.prices[layout.kind],
        doubt=published_doubt(model, layout.weight_format, layout.size, layout.served),
        machine=machine,
        kind=layout.kind,
        stack=layout.stack,
        draft=draft,
        context_tokens=prompt + output / 2,
    )
    option = dataclasses.replace(option, doubt=option.doubted(option.doubt))
    if option.drafts is not None and not option.drafts.depths[0]:
        return without("a draft takes longer than the tokens that it saves")
    pool = option.kv_tokens(1, 64)
    if not option.holds(inputs.model_length, pool):
        left = f"{pool:,} tokens" if pool else "nothing"
        return without(
            f"its memory leaves {left} for KV, and the longest request has "
            f"{inputs.longest_request:,}"
        )
    return option


def _machine(model: str, layout: _Layout) -> tuple[tuple[Gpu, LlmModel], int]:
    """GPU, model and tier of a layout.

    Raises:
      InputError: the GPU's file has no constants of a format.
    """
    if layout.stack is not None:
        return serve(layout.kind, model, layout.stack), 0
    if layout.weight_format not in _TIERS or layout.kv_format != "bf16":
        raise InputError(
            f"{load_gpu(layout.kind).name} has no measured constants of "
            f"{layout.weight_format} weights with {layout.kv_format} KV"
        )
    gpu, found = serve(layout.kind, model, None)
    if isinstance(found, LargeModel):
        raise InputError(f"{gpu.name} has no measured constants of experts")
    # The time of the host between iterations is the engine's, on whatever GPU it runs.
    gpu = dataclasses.replace(gpu, host_s=load_engine(_ENGINE).host_s)
    return (gpu, found), _TIERS.index(layout.weight_format)
