"""The machine under the scheduler: GPUs, memory, delays and prices of one deployment."""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax
import numpy as np

from jaxserve import checks
from jaxserve.arrays.convert import on_device
from jaxserve.fields import MAX_GPUS, Tier
from jaxserve.sim.machine.energy import (
    JOULES_PER_KWH,
    SECONDS_PER_HOUR,
    body_bytes,
    iteration_flops,
)
from jaxserve.sim.machine.fleet import Fleet, FleetSettings
from jaxserve.sim.machine.hardware import GIB, EngineSettings, Gpu, LlmModel
from jaxserve.sim.machine.memory import (
    SequenceKv,
    activation_bytes,
    check_prefix_caching,
    draft_bytes,
    kv_bytes_per_token,
    kv_pool_bytes,
    sequence_kv,
    weights_bytes,
)
from jaxserve.sim.machine.stack import Stack

MAX_KV_POOL_TOKENS = 1_000_000_000


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Deployment:
    """``num_gpus`` identical replicas of one model. Leaves may be stacked under vmap.

    Arrays indexed ``[tier]`` have length 3 (FP16, INT8, INT4), ``[tier, drafting]`` shape (3, 2)
    with drafting = 1 when a draft model is resident.
    """

    num_gpus: jax.Array
    """float32, GPUs (tensor-parallel groups count as one), 1..8."""
    token_budget: jax.Array
    """float32, tokens one iteration may process (chunked prefill), tokens."""
    queue_capacity: jax.Array
    """float32, requests that may wait; more are rejected."""
    weights_gib: jax.Array
    """float32[3], weights of one GPU, GiB."""
    draft_gib: jax.Array
    """float32, draft model, GiB."""
    kv_pool_gib: jax.Array
    """float32[3, 2], memory left for KV at fraction 1, GiB."""
    kv_pool_tokens: jax.Array
    """float32[3, 2], the same in tokens."""
    activation_base_gib: jax.Array
    """float32, workspace that does not depend on the iteration, GiB."""
    activation_gib_per_token: jax.Array
    """float32, activations per token in the iteration, GiB."""
    logits_gib_per_row: jax.Array
    """float32, sampling buffers per verified position, GiB."""
    device_gib: jax.Array
    """float32, memory of the device; more is an out-of-memory restart, GiB."""
    restart_s: jax.Array
    """float32, seconds one GPU is away to reload weights."""
    rerole_s: jax.Array
    """float32, seconds one GPU is away to change between prefill and decode."""
    oom_restart_s: jax.Array
    """float32, seconds all GPUs are away after an out-of-memory crash."""
    kv_transfer_s_per_token: jax.Array
    """float32, seconds to move one token's KV between pools."""
    prefix_caching: jax.Array
    """bool, full KV blocks are kept for prompts that begin alike until others need the room."""
    frontend_s: jax.Array
    """float32, mean front-end delay that is part of TTFT, s."""
    frontend_tail_s: jax.Array
    """float32, scale of its exponential tail, s."""
    idle_w: jax.Array
    """float32, power of an idle GPU, W."""
    max_w: jax.Array
    """float32, power limit of a GPU, W."""
    joule_per_token: jax.Array
    """float32[3], arithmetic energy of one token through the linear layers at each tier, J."""
    joule_per_weight_pass: jax.Array
    """float32[3], energy of streaming the weights once at each tier, J."""
    joule_per_kv_token: jax.Array
    """float32, energy of reading one token's KV, J."""
    usd_per_gpu_s: jax.Array
    """float32, US dollars per GPU second."""
    usd_per_joule: jax.Array
    """float32, US dollars per joule of electricity."""
    sequence_kv: SequenceKv | None = None
    """float32 each, KV of a sequence beside that of its tokens; None for layers of one kind."""
    fleet: Fleet | None = None
    """start-up and draining of replicas; None where all replicas serve all the time."""

    def kv_of(self, context: jax.Array) -> jax.Array:
        """KV of a sequence of ``context`` tokens, in tokens of the pool."""
        return context if self.sequence_kv is None else context + self.sequence_kv.beside(context)

    def energy_j(
        self,
        seconds: float | jax.Array,
        work_j: float | jax.Array,
        rented: float | jax.Array | None = None,
    ) -> jax.Array:
        """Joules of ``rented`` GPUs, all by default: idle power and ``work_j``, at most the power
        limit."""
        gpus = self.num_gpus if rented is None else rented
        power_w = self.idle_w + work_j / (gpus * seconds)
        return gpus * seconds * power_w.clip(max=self.max_w)

    def cost_usd(
        self,
        seconds: float | jax.Array,
        energy_j: float | jax.Array,
        rented: float | jax.Array | None = None,
    ) -> jax.Array:
        """US dollars of ``rented`` GPUs, all by default, and their electricity."""
        gpus = self.num_gpus if rented is None else rented
        return gpus * seconds * self.usd_per_gpu_s + energy_j * self.usd_per_joule

    def on_host(self) -> Deployment:
        """The deployment with float64 NumPy leaves."""
        return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), self)


@dataclass(frozen=True)
class DeploymentSettings:
    """Choices of an operator that last for an episode. Delays in seconds."""

    num_gpus: int = 1
    tensor_parallel: int = 1
    queue_capacity: int = EngineSettings.queue_capacity
    memory_utilization: float = EngineSettings.memory_utilization
    token_budget: int | None = None
    """tokens one iteration may process; None for those of the latency table."""
    kv_pool_tokens: int | None = None
    """KV tokens that one GPU has room for, whatever the tier; None for those of the engine that the
    latency table was calibrated on, or else what weights and activations leave."""
    prefix_caching: bool = False
    """whether full KV blocks are kept for prompts that begin alike until others need the room; only
    traces with ``hash_ids`` say which prompts do."""
    restart_s: float = EngineSettings.restart_s
    rerole_s: float = EngineSettings.rerole_s
    oom_restart_s: float = EngineSettings.oom_restart_s
    frontend_s: float = 0.010
    """assumption, as is the tail: docs/simulator.md says what was measured."""
    frontend_tail_s: float = 0.008
    fleet: FleetSettings | None = None
    """start-up and draining of replicas; None where all replicas serve all the time."""
    stack: Stack | None = None
    """engine, layout and the formats that tiers 0, 1 and 2 are; None for those of the latency
    table."""

    def __post_init__(self) -> None:
        checks.whole("num_gpus", self.num_gpus, 1, MAX_GPUS)

    def gpus_text(self, hardware: str) -> str:
        """All GPUs of the deployment, such as ``16 x h100-sxm-80gb, TP 2``."""
        groups = "" if self.tensor_parallel == 1 else f", TP {self.tensor_parallel}"
        return f"{self.num_gpus * self.tensor_parallel} x {hardware}{groups}"


def build_deployment(gpu: Gpu, model: LlmModel, settings: DeploymentSettings) -> Deployment:
    """Resolves hardware, model and settings into the constants of the simulators.

    With tensor parallelism a replica is a group of GPUs: memory is that of one member, power and
    price those of the group.

    Raises:
      InputError: the model does not fit, or its states cannot be found by prompts that begin alike.
    """
    tp = settings.tensor_parallel
    sequence = sequence_kv(model, tp)
    check_prefix_caching(settings.prefix_caching, sequence)
    group = tp * model.pipeline_parallel
    engine = replace(
        EngineSettings(),
        memory_utilization=settings.memory_utilization,
        token_budget=settings.token_budget or EngineSettings.token_budget,
    )

    pool = [
        [kv_pool_bytes(gpu, model, tier, drafting, tp, engine) for drafting in (False, True)]
        for tier in Tier
    ]
    tokens = [
        [
            pool[tier][drafting] / kv_bytes_per_token(model, drafting, tp)
            for drafting in (False, True)
        ]
        for tier in Tier
    ]
    if settings.kv_pool_tokens is not None:
        told = settings.kv_pool_tokens
        # A pool larger than what is left would be an engine that is out of memory all the time.
        pool = [
            [min(left, told * left / held) for left, held in zip(*columns, strict=True)]
            for columns in zip(pool, tokens, strict=True)
        ]
        tokens = [[told, told] for _ in Tier]
    flop = np.array([iteration_flops(gpu, model, tier, 1, 0, 0) for tier in Tier], np.float32)
    weight_bytes = np.array([body_bytes(gpu, model, tier) for tier in Tier], np.float32)
    return Deployment(
        num_gpus=on_device(settings.num_gpus),
        token_budget=on_device(engine.token_budget),
        queue_capacity=on_device(settings.queue_capacity),
        weights_gib=on_device([weights_bytes(model, tier, tp) / GIB for tier in Tier]),
        draft_gib=on_device(draft_bytes(model, tp) / GIB),
        kv_pool_gib=on_device(np.asarray(pool) / GIB),
        kv_pool_tokens=on_device(tokens),
        activation_base_gib=on_device(engine.runtime_bytes / GIB),
        activation_gib_per_token=on_device(activation_bytes(model, 1, 0, tp) / GIB),
        logits_gib_per_row=on_device(activation_bytes(model, 0, 1, tp) / GIB),
        device_gib=on_device(gpu.memory_bytes / GIB),
        restart_s=on_device(settings.restart_s),
        rerole_s=on_device(settings.rerole_s),
        oom_restart_s=on_device(settings.oom_restart_s),
        kv_transfer_s_per_token=on_device(model.kv_bytes_per_token / gpu.link_bytes_per_s),
        prefix_caching=on_device(settings.prefix_caching, np.bool_),
        frontend_s=on_device(settings.frontend_s),
        frontend_tail_s=on_device(settings.frontend_tail_s),
        idle_w=on_device(gpu.idle_w * group),
        max_w=on_device(gpu.max_w * group),
        joule_per_token=on_device(flop * np.float32(gpu.joules_per_flop)),
        joule_per_weight_pass=on_device(weight_bytes * np.float32(gpu.joules_per_byte)),
        joule_per_kv_token=on_device(model.kv_bytes_per_token * gpu.joules_per_byte),
        usd_per_gpu_s=on_device(gpu.price_usd_per_hour * group / SECONDS_PER_HOUR),
        usd_per_joule=on_device(gpu.electricity_usd_per_kwh / JOULES_PER_KWH),
        sequence_kv=None if sequence is None else SequenceKv(*map(on_device, sequence)),
        fleet=None if settings.fleet is None else settings.fleet.on_device(settings.num_gpus),
    )
