"""Command lines of plans, read by the engine that they start."""

from __future__ import annotations

import json
import subprocess

import pytest

from jaxserve.plan.inputs import PlanInputs, PlanObjective, steady_traffic
from jaxserve.plan.options import engine_options
from jaxserve.plan.play import PlannedDeployment
from jaxserve.plan.start import VLLM_VERSION, vllm_command
from jaxserve.plan.start_split import vllm_role_command
from tests.integrations.vllm_environment import VERSION, vllm_python

pytestmark = pytest.mark.deep

_PARSE = """
import json, sys
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
lines = json.load(sys.stdin)
parsed = []
for words in lines:
    arguments = make_arg_parser(FlexibleArgumentParser()).parse_args(words)
    engine = AsyncEngineArgs.from_cli_args(arguments)
    names = ("tensor_parallel_size", "data_parallel_size", "enable_expert_parallel",
             "max_num_seqs", "max_num_batched_tokens", "max_model_len", "quantization",
             "kv_cache_dtype", "gpu_memory_utilization", "speculative_config", "kv_transfer_config")
    values = {name: getattr(engine, name) for name in names}
    transfer = values["kv_transfer_config"]
    values["kv_transfer_config"] = transfer and transfer.kv_role
    parsed.append(values | {"model": arguments.model_tag})
print(json.dumps(parsed))
"""


def test_vllm_reads_every_option() -> None:
    """vLLM's own parser takes the line of every engine of two plans, one of them of a model with
    experts, the other with drafts, and understands each number and format as the plan means it."""
    assert VERSION == VLLM_VERSION
    python = vllm_python()
    deployments = []
    for model in ("llama-3.1-8b", "qwen3-30b-a3b"):
        inputs = PlanInputs(
            model, *steady_traffic(1, 1000, 100), PlanObjective(1.0, 0.05),
            {"h200-sxm-141gb": 3.0}, max_gpus=8,
            draft="cnn/eagle" if model == "llama-3.1-8b" else None,
        )  # fmt: skip
        deployments += [
            (model, PlannedDeployment(option, 2, 128, 4096)) for option in engine_options(inputs)[0]
        ]
    lines = [
        vllm_command(deployment, model, 2048)
        if deployment.option.attention_data_parallel
        else vllm_role_command(deployment, model, 2048, "decode")
        for model, deployment in deployments
    ]
    done = subprocess.run(
        [python, "-c", _PARSE],
        input=json.dumps([words[2:] for words in lines]),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    for (_, deployment), words, found in zip(
        deployments, lines, json.loads(done.stdout.splitlines()[-1]), strict=True
    ):
        option = deployment.option
        divided = option.attention_data_parallel
        ranks = option.tensor_parallel if divided else 1
        drafts = deployment.drafts and {
            "method": "eagle",
            "model": "EAGLE-DRAFT",
            "num_speculative_tokens": deployment.drafts.deepest,
            "num_speculative_tokens_per_batch_size": [*map(list, deployment.drafts.ranges)],
        }
        assert found == {
            "model": words[2],
            "tensor_parallel_size": 1 if divided else option.tensor_parallel,
            "data_parallel_size": ranks,
            "enable_expert_parallel": divided,
            "max_num_seqs": 128 // ranks,
            "max_num_batched_tokens": 4096,
            "max_model_len": 2048,
            "quantization": "fp8" if option.weight_format == "fp8" else None,
            "kv_cache_dtype": "fp8" if option.kv_format == "fp8" else "auto",
            "gpu_memory_utilization": 0.92,
            "speculative_config": drafts,
            "kv_transfer_config": None if divided else "kv_consumer",
        }
