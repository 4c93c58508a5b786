"""The engine behind a user's trace: of a latency table, a model on a GPU, or a layer profile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxserve import checks
from jaxserve.errors import InputError
from jaxserve.sim.fit.kernel_files import read_kernels
from jaxserve.sim.fit.layer_profile import ProfileTimer
from jaxserve.sim.machine.architecture import LargeModel
from jaxserve.sim.machine.cost_model import CostModel, IterationTimer
from jaxserve.sim.machine.memory import SequenceKv, kv_capacity_tokens, sequence_kv
from jaxserve.sim.machine.models import load_model
from jaxserve.sim.machine.stack import Stack, load_engine, serve
from jaxserve.sim.reference.settings import SchedulerSettings
from jaxserve.sim.table.build import build
from jaxserve.sim.table.extent import Extent
from jaxserve.sim.table.file import TableMetadata, read_table_file

_PROFILED = "vllm"
"""Engine of layer profiles, whose host time is added to the profiled kernels."""


@dataclass(frozen=True)
class OwnEngine:
    """Constants of an engine."""

    timer: IterationTimer
    """times of its iterations."""
    token_budget: int
    """tokens of an iteration, unless the user says otherwise."""
    hardware: str | None
    """name or file of the GPU, which may be known to a latency table alone; None where nothing
    names it."""
    model: str
    """name or file of the model, likewise."""
    tensor_parallel: int = 1
    """GPUs that share every layer."""
    stack: Stack | None = None
    """serving stack of a latency table."""
    measured: Extent | None = None
    """extent of the load test that a latency table was fitted to."""
    from_constants: bool = False
    """whether times follow from the constants of the GPU's file alone."""

    @classmethod
    def of_table(
        cls, metadata: TableMetadata, hardware: str | None, model: str | None
    ) -> OwnEngine:
        """The engine of a latency table; a GPU or a model that is named stands for the table's."""
        return cls(
            metadata.cost_model,
            metadata.token_budget,
            hardware or metadata.hardware,
            model or metadata.model,
            metadata.tensor_parallel,
            metadata.stack,
            metadata.measured,
            metadata.fit_error is None,
        )

    @property
    def context_tokens(self) -> int | None:
        """Context length of the model; None where it, or the model, is not known."""
        try:
            return load_model(self.model).context_tokens
        except InputError:  # known to the latency table alone
            return None

    def kv_tokens(self, tier: int) -> int:
        """Capacity of the KV pool: tokens that fit beside the weights of a tier.

        Raises:
          InputError: GPU or model is unknown.
        """
        if self.hardware is None:
            raise InputError("name --kv-tokens, which the engine says at its start, or --hardware")
        served = serve(self.hardware, self.model, self.stack)
        return int(kv_capacity_tokens(*served, tier, 1.0, False, self.tensor_parallel))

    @property
    def sequence_kv(self) -> SequenceKv | None:
        """KV of a sequence beside its tokens'; None for layers of one kind.

        Raises:
          InputError: the model, known to the latency table alone, has layers of several kinds.
        """
        try:
            model = load_model(self.model)
            if isinstance(model, LargeModel) and self.hardware is not None:
                _, model = serve(self.hardware, self.model, self.stack)
        except InputError:
            beyond = self.timer.beyond if isinstance(self.timer, CostModel) else None
            if beyond is not None and (beyond.window_layers or beyond.mixers is not None):
                raise InputError(
                    f"{self.model} has layers of several kinds, whose KV only its file tells; name "
                    "the file as --model"
                ) from None
            return None
        return sequence_kv(model, self.tensor_parallel)

    def check_limits(self, batch_cap: int, token_budget: int, tier: int) -> None:
        """Refuses settings of which a layer profile says nothing.

        Raises:
          InputError: iterations may have more tokens or sequences than were profiled, or another
            tier than FP16.
        """
        if isinstance(self.timer, ProfileTimer):
            checks.whole("--token-budget with --profile", token_budget, 1, self.timer.most_tokens)
            checks.whole("--batch-cap with --profile", batch_cap, 1, self.timer.most_sequences)
            checks.whole("--tier with --profile", tier, 0, 0)


def own_engine(
    table: str | None,
    hardware: str | None,
    model: str | None,
    tensor_parallel: int,
    profile: Sequence[Path] | None = None,
) -> OwnEngine:
    """The engine of a latency table, of a model on a GPU, or of a layer profile.

    Args:
      table: name or path of a table.
      hardware: name or file of a GPU; with a table, in place of the table's GPU.
      model: name or file of a model, likewise.
      tensor_parallel: GPUs that share every layer, without a table.
      profile: the three files of a layer profile, between whose points times are interpolated.

    Raises:
      InputError: the arguments do not go together, or one of them is unknown.
    """
    if table is not None:
        if tensor_parallel != 1:
            raise InputError("--tensor-parallel goes with --hardware; a --table has its own")
        if profile is not None:
            raise InputError("name either --table or --profile; both have the times of an engine")
        return OwnEngine.of_table(read_table_file(table).metadata, hardware, model)
    if profile is not None:
        if model is None:
            raise InputError("a --profile does not name its model; name it as --model")
        return _profiled(profile, hardware, model, tensor_parallel)
    if hardware is not None and model is not None:
        built = build(hardware, model, tensor_parallel=tensor_parallel)
        return OwnEngine.of_table(built.metadata, hardware, model)
    raise InputError("name either --table, or --hardware and --model, or --profile and --model")


def _profiled(
    files: Sequence[Path], hardware: str | None, model: str, tensor_parallel: int
) -> OwnEngine:
    llm = load_model(model)
    if isinstance(llm, LargeModel):
        raise InputError(
            f"{llm.name} is not a dense model with full attention; its profile is not read"
        )
    profile = read_kernels(files, llm, tensor_parallel).profile
    if profile is None:
        raise InputError("--profile takes the three files of a layer profile, not single kernels")
    timer = ProfileTimer(profile, llm.layers, load_engine(_PROFILED).host_s)
    budget = min(SchedulerSettings.token_budget, timer.most_tokens)
    return OwnEngine(timer, budget, hardware, model, tensor_parallel)
