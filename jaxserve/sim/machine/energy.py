"""Energy and money of an engine iteration.

    energy = min(idle_w t + e_flop flops + e_byte bytes, max_w t)

Functions are plain arithmetic on numbers, NumPy arrays or JAX arrays. Flops and bytes are of the
whole model: a tensor-parallel group passes ``energy_j`` its share and multiplies by its GPUs.
"""

from typing import Any

from jaxserve.sim.machine.architecture import LargeModel
from jaxserve.sim.machine.hardware import Gpu, LlmModel
from jaxserve.sim.machine.stack import ServedGpu

JOULES_PER_KWH = 3.6e6
SECONDS_PER_HOUR = 3600.0


def iteration_flops(
    gpu: Gpu, model: LlmModel, tier: int, tokens: Any, logits_rows: Any, attended_pairs: Any
) -> Any:
    """Arithmetic of an iteration in bf16-equivalent FLOP.

    Args:
      gpu: where it runs; arithmetic in a format that runs at n times the bf16 rate counts 1/n.
      model: what runs.
      tier: format of the linear layers.
      tokens: tokens through the body, rejected drafts included.
      logits_rows: rows through the output head.
      attended_pairs: (query, key) pairs of all attention, in each layer.
    """
    rate = gpu.linear[tier].flops_per_s / gpu.linear[0].flops_per_s
    states = model.linear.layers if isinstance(model, LargeModel) and model.linear else 0
    attention = 4 * (model.layers - states) * model.attention_width * attended_pairs
    body = 2 * model.active_parameters * tokens / rate
    return body + 2 * model.head_parameters * logits_rows + attention


def iteration_bytes(gpu: Gpu, model: LlmModel, tier: int, kv_tokens: Any) -> Any:
    """Memory traffic of an iteration: all weights once and the KV of ``kv_tokens``."""
    weights = body_bytes(gpu, model, tier) + 2 * model.head_parameters
    return weights + model.kv_bytes_per_token * kv_tokens


def body_bytes(gpu: Gpu, model: LlmModel, tier: int) -> float:
    """Bytes of the weights of all layers as an iteration reads them; all experts, as a full batch
    does."""
    weights = model.body_parameters * gpu.linear[tier].weight_bytes
    if isinstance(model, LargeModel) and isinstance(gpu, ServedGpu):
        weights += model.expert_parameters * gpu.expert_linear[tier].weight_bytes
    return weights


def energy_j(gpu: Gpu, duration_s: Any, flops: Any, traffic_bytes: Any) -> Any:
    """Joules of ``duration_s`` seconds with that much work, at most the GPU's power limit."""
    work_j = gpu.joules_per_flop * flops + gpu.joules_per_byte * traffic_bytes
    headroom_j = (gpu.max_w - gpu.idle_w) * duration_s
    # The smaller of two numbers without a branch or an array library.
    limited_j = (work_j + headroom_j - abs(work_j - headroom_j)) / 2
    return gpu.idle_w * duration_s + limited_j


def dollars(gpu: Gpu, gpu_seconds: Any, energy_joules: Any) -> Any:
    """US dollars of rented GPU time and the electricity it used."""
    rent = gpu_seconds / SECONDS_PER_HOUR * gpu.price_usd_per_hour
    return rent + energy_joules / JOULES_PER_KWH * gpu.electricity_usd_per_kwh
