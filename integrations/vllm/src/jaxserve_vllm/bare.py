# pyright: reportMissingImports=false
"""vLLM's scheduler alone, without a model, a worker or a server: steps take no time."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    SpeculativeConfig,
    VllmConfig,
)
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from jaxserve_vllm.scheduler import ControlledScheduler

TOKEN = 5
"""Id of every sampled and every drafted token."""
_MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 65536,
    "torch_dtype": "float32",
}


@dataclass(frozen=True)
class BareSettings:
    """Settings of a scheduler."""

    blocks: int = 128
    """KV blocks for requests."""
    block_tokens: int = 16
    """tokens of one KV block."""
    max_length: int = 512
    """longest request, prompt and output."""
    max_seqs: int = 16
    """most running sequences."""
    token_budget: int = 512
    """most tokens of a step."""
    policy: str = "priority"
    """``fcfs`` or ``priority``."""
    chunked: bool = True
    """whether prompts may be prefilled in chunks."""
    caching: bool = False
    """whether prefixes are cached."""
    watermark: float = 0.0
    """share of the blocks that admission keeps free."""
    speculation: Mapping[str, Any] | None = None
    """fields of a ``SpeculativeConfig``; empty or None for no drafts."""


class BareEngine:
    """A scheduler whose steps take no time."""

    def __init__(self, settings: BareSettings, scheduler: type = ControlledScheduler) -> None:
        """Args: settings of the scheduler, and its class."""
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(json.dumps(_MODEL))
            model = ModelConfig(
                model=folder, max_model_len=settings.max_length, skip_tokenizer_init=True
            )
        cache = CacheConfig(
            block_size=settings.block_tokens, enable_prefix_caching=settings.caching
        )
        cache.num_gpu_blocks = settings.blocks + 1  # vLLM hands out no block 0
        drafts: dict[str, Any] = {}
        if settings.speculation:
            drafts["speculative_config"] = SpeculativeConfig(
                **settings.speculation,
                target_model_config=model,
                target_parallel_config=ParallelConfig(),
            )
        config = VllmConfig(
            model_config=model,
            device_config=DeviceConfig("cpu"),
            scheduler_config=SchedulerConfig(
                max_num_seqs=settings.max_seqs,
                max_num_batched_tokens=settings.token_budget,
                max_model_len=settings.max_length,
                is_encoder_decoder=False,
                enable_chunked_prefill=settings.chunked,
                policy=settings.policy,
                watermark=settings.watermark,
                async_scheduling=False,
            ),
            cache_config=cache,
            **drafts,
        )
        spec = FullAttentionSpec(
            block_size=settings.block_tokens, num_kv_heads=2, head_size=32, dtype=torch.float32
        )
        self._hasher = None
        if settings.caching:
            init_none_hash(sha256)
            self._hasher = get_request_block_hasher(settings.block_tokens, sha256)
        self.scheduler = scheduler(
            vllm_config=config,
            kv_cache_config=KVCacheConfig(
                num_blocks=settings.blocks + 1,
                kv_cache_tensors=[],
                kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
            ),
            structured_output_manager=StructuredOutputManager(config),
            block_size=settings.block_tokens,
            log_stats=True,
        )
        self.finished: dict[str, int] = {}
        """output tokens of each request so far."""
        self.first: list[str] = []
        """requests in the order of their first tokens."""

    def add(
        self, name: str, prompt: list[int], output: int, priority: int, arrival_s: float
    ) -> None:
        """Adds a request."""
        self.scheduler.add_request(
            Request(
                request_id=name,
                prompt_token_ids=prompt,
                sampling_params=SamplingParams(max_tokens=output, ignore_eos=True),
                pooling_params=None,
                arrival_time=arrival_s,
                priority=priority,
                block_hasher=self._hasher,
            )
        )

    def step(self) -> Any:
        """Runs one step, in which all drafts are right; returns the ``SchedulerOutput``."""
        scheduler = self.scheduler
        output = scheduler.schedule()
        names = list(output.num_scheduled_tokens)
        drafts = output.scheduled_spec_decode_tokens
        tokens = [
            []
            if scheduler.requests[name].is_prefill_chunk
            else [TOKEN] * (1 + len(drafts.get(name, ())))
            for name in names
        ]
        results = scheduler.update_from_output(
            output,
            ModelRunnerOutput(
                req_ids=names,
                req_id_to_index={name: i for i, name in enumerate(names)},
                sampled_token_ids=tokens,
                logprobs=None,
                prompt_logprobs_dict={},
                pooler_output=[],
            ),
        )
        for result in results.get(0).outputs if results else ():
            if result.request_id not in self.finished:
                self.first.append(result.request_id)
            count = self.finished.get(result.request_id, 0) + len(result.new_token_ids)
            self.finished[result.request_id] = count
        depth = output.num_spec_tokens_to_schedule
        if scheduler.num_spec_tokens:
            going = [name for name in names if name in scheduler.requests]
            scheduler.update_draft_token_ids(DraftTokenIds(going, [[TOKEN] * depth for _ in going]))
        return output

    def put(self, lease_s: float = 3600.0, **knobs: float) -> dict[str, Any]:
        """Turns knobs of a ``ControlledScheduler``."""
        return self.scheduler.answer({"ask": "put", "lease_s": lease_s, "knobs": knobs})
