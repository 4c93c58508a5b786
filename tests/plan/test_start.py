"""Command lines and manifests."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import kubernetes_validate
import pytest
import tyro
import yaml

from jaxserve.gateway.measure.objectives import RequestClasses
from jaxserve.gateway.settings import GatewaySettings
from jaxserve.plan.inputs import PlanInputs, PlanObjective, steady_traffic
from jaxserve.plan.options import engine_options
from jaxserve.plan.play import PlannedDeployment
from jaxserve.plan.start import (
    gateway_command,
    served_model,
    sglang_command,
    start_files,
    vllm_command,
)


def _deployment(
    model: str, weight_format: str, kv_format: str, draft: str | None = None
) -> PlannedDeployment:
    inputs = PlanInputs(
        model,
        *steady_traffic(1, 1000, 100),
        PlanObjective(1.0, 0.05),
        {"h200-sxm-141gb": 3.0},
        formats=(weight_format,),
        kv_formats=(kv_format,),
        draft=draft,
    )
    options, _ = engine_options(inputs)
    option = max(
        [option for option in options if option.draft == draft],
        key=lambda each: (each.tensor_parallel == 2, each.attention_data_parallel),
    )
    return PlannedDeployment(option, 3, 128, 4096)


def test_options_of_the_engines() -> None:
    """Limits, formats and layout are written as the engines call them."""
    words = vllm_command(_deployment("llama-3.1-8b", "fp8", "fp8"), "llama-3.1-8b", 8192)
    text = " ".join(words)
    assert text.startswith("vllm serve meta-llama/Llama-3.1-8B-Instruct --tensor-parallel-size 2")
    assert "--max-num-seqs 128 --max-num-batched-tokens 4096 --max-model-len 8192" in text
    assert "--quantization fp8 --kv-cache-dtype fp8" in text
    words = sglang_command(_deployment("llama-3.1-8b", "bf16", "bf16"), "llama-3.1-8b", 8192)
    assert "--quantization" not in words and "--kv-cache-dtype" not in words


def test_drafts_have_their_depths() -> None:
    """vLLM is told the depth for every number of sequences, or one depth that suits them all;
    SGLang has one depth, and the files say what to fill in."""
    deployment = _deployment("llama-3.1-8b", "bf16", "bf16", "cnn/eagle")
    words = vllm_command(deployment, "llama-3.1-8b", 8192)
    config = json.loads(words[words.index("--speculative-config") + 1])
    ranges = config["num_speculative_tokens_per_batch_size"]
    assert (ranges[0][0], ranges[-1][1]) == (1, 128)
    assert config["num_speculative_tokens"] == max(depth for *_, depth in ranges) == 5
    words = vllm_command(replace(deployment, batch_cap=2), "llama-3.1-8b", 8192)
    assert "per_batch_size" not in words[words.index("--speculative-config") + 1]
    text = " ".join(sglang_command(deployment, "llama-3.1-8b", 8192))
    depth = min(depth for *_, depth in ranges if depth)
    assert f"--speculative-num-steps {depth} --speculative-eagle-topk 1" in text
    files = start_files(deployment, "llama-3.1-8b", 8192, PlanObjective(1.0, 0.05))
    assert "an EAGLE draft of llama-3.1-8b in place of EAGLE-DRAFT" in files["vllm.sh"]
    assert "times differ" in files["sglang.sh"] and "times differ" not in files["vllm.sh"]
    services = yaml.safe_load(files["compose.yaml"])["services"]
    assert json.dumps(config) in services["engine-0"]["command"]


def test_experts_divided_among_gpus() -> None:
    """Each rank has its share of the batch."""
    deployment = _deployment("qwen3-30b-a3b", "bf16", "bf16")
    assert deployment.option.attention_data_parallel
    text = " ".join(vllm_command(deployment, "qwen3-30b-a3b", 8192))
    assert "--data-parallel-size 2 --enable-expert-parallel --max-num-seqs 64" in text


def test_the_gateway_understands_its_line() -> None:
    """Its own settings parse the options and the objectives."""
    words = gateway_command(["a:8000", "b:8000"], PlanObjective(0.5, 0.04), "0.0.0.0")
    settings = tyro.cli(GatewaySettings, args=words[1:])
    settings.check()
    assert settings.engine == ("vllm=http://a:8000", "vllm=http://b:8000")
    assert RequestClasses(settings.slo).slos["default"].tpot_s == 0.04


def test_every_replica_has_gpus_of_its_own() -> None:
    """Compose gives each a service, Kubernetes a pod of a name that the gateway knows."""
    deployment = _deployment("llama-3.1-8b", "bf16", "bf16")
    files = start_files(deployment, "llama-3.1-8b", 8192, PlanObjective(1.0, 0.05))
    services = yaml.safe_load(files["compose.yaml"])["services"]
    devices = [
        service["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"]
        for name, service in services.items()
        if name != "gateway"
    ]
    assert devices == [["0", "1"], ["2", "3"], ["4", "5"]]
    objects = {
        (each["kind"], each["metadata"]["name"]): each
        for each in yaml.safe_load_all(files["kubernetes.yaml"])
    }
    engines = objects["StatefulSet", "engine"]["spec"]
    assert engines["replicas"] == 3
    limits = engines["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {"nvidia.com/gpu": 2}
    arguments = objects["Deployment", "gateway"]["spec"]["template"]["spec"]["containers"][0][
        "args"
    ]
    assert "vllm=http://engine-2.engine:8000" in arguments


def test_manifests_follow_the_schemas_of_kubernetes() -> None:
    """Every object is valid, and a misspelt field is not."""
    files = start_files(
        _deployment("llama-3.1-8b", "bf16", "bf16"), "llama-3.1-8b", 8192, PlanObjective(1.0, 0.05)
    )
    objects = list(yaml.safe_load_all(files["kubernetes.yaml"]))
    assert len(objects) == 4
    for each in objects:
        kubernetes_validate.validate(each, "1.31", strict=True)
    objects[1]["spec"]["replica"] = 3
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(objects[1], "1.31", strict=True)


def test_own_models_are_served_from_their_folder(tmp_path: Path) -> None:
    """The folder of a config.json; packaged models have their repository's name."""
    assert served_model(str(tmp_path / "config.json")) == str(tmp_path.resolve())
    assert served_model("deepseek-v3") == "deepseek-ai/DeepSeek-V3"


def test_four_bit_weights_say_that_they_need_a_checkpoint() -> None:
    """No engine makes them of bf16 weights."""
    deployment = _deployment("llama-3.1-8b", "bf16", "bf16")
    option = replace(deployment.option, weight_format="int4")
    files = start_files(
        replace(deployment, option=option), "llama-3.1-8b", 8192, PlanObjective(1.0, 0.05)
    )
    assert "AWQ or GPTQ checkpoint" in files["vllm.sh"]
