"""Files that start a deployment: command lines of vLLM and SGLang, compose, Kubernetes, gateway."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from jaxserve.datafiles import load_json
from jaxserve.plan.inputs import PlanObjective
from jaxserve.plan.play import PlannedDeployment
from jaxserve.sim.machine.hardware import EngineSettings
from jaxserve.sim.machine.models import model_names

VLLM_VERSION = "0.32.0"
"""Version of vLLM whose options are written."""
SGLANG_VERSION = "0.5.23"
"""Version of SGLang whose options are written."""
PORT, GATEWAY_PORT = 8000, 9000
"""Ports of replica 0, whose next replicas have the next ports on one machine, and of what is in
front of the replicas."""
COMPOSE_ENVIRONMENT = {"HF_TOKEN": "${HF_TOKEN:-}", "HF_HOME": "/huggingface"}
COMPOSE_VOLUME = "huggingface:/huggingface"
"""Environment of an engine in a compose file, and the volume of its checkpoints."""
TOKEN_OF_SECRET = {
    "name": "HF_TOKEN",
    "valueFrom": {"secretKeyRef": {"name": "huggingface", "key": "token", "optional": True}},
}
SHARED_MEMORY = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}}
SHARED_MEMORY_MOUNT = {"name": "shm", "mountPath": "/dev/shm"}
"""Parts of an engine's pod: the token of its checkpoints, and memory that its processes share."""
_CHECKPOINTS = {"int8": "W8A8", "int4": "AWQ or GPTQ", "fp4": "NVFP4"}
_DRAFT = "EAGLE-DRAFT"
_MEMORY = str(EngineSettings.memory_utilization)


def served_model(model: str) -> str:
    """Name or path under which an engine loads a model: its repository on Hugging Face, or the
    folder of a config.json."""
    if model not in model_names():
        return str(Path(model).resolve().parent)
    source = str(load_json(f"models/{model}.json").get("source", ""))
    found = re.search(r"config\.json of ([\w.-]+/[\w.-]+)", source)
    return found[1].rstrip(".") if found else model


def checkpoint_notes(deployment: PlannedDeployment, model: str) -> list[str]:
    """Advice on checkpoints that the lines cannot name: weights in their own format, drafts."""
    notes = []
    kind = _CHECKPOINTS.get(deployment.option.weight_format)
    if kind is not None:
        notes.append(f"name a {kind} checkpoint of {model} in place of {served_model(model)}")
    if deployment.drafts is not None:
        notes.append(
            f"name an EAGLE draft of {model} in place of {_DRAFT} (methods eagle3 of vLLM and "
            "EAGLE3 of SGLang for an EAGLE-3 draft)"
        )
    return notes


def vllm_command(deployment: PlannedDeployment, model: str, model_length: int) -> list[str]:
    """Arguments of ``vllm serve`` for one replica."""
    option = deployment.option
    cap = deployment.batch_cap
    words = ["vllm", "serve", served_model(model)]
    if option.attention_data_parallel:
        # Every rank has a scheduler of its own, with its share of the batch.
        cap = max(-(-cap // option.tensor_parallel), 1)
        words += ["--data-parallel-size", str(option.tensor_parallel), "--enable-expert-parallel"]
    else:
        words += ["--tensor-parallel-size", str(option.tensor_parallel)]
    words += ["--max-num-seqs", str(cap)]
    words += ["--max-num-batched-tokens", str(deployment.token_budget)]
    words += ["--max-model-len", str(model_length), "--gpu-memory-utilization", _MEMORY]
    if option.weight_format == "fp8":
        words += ["--quantization", "fp8"]
    if option.kv_format == "fp8":
        words += ["--kv-cache-dtype", "fp8"]
    if not option.caches_prefixes:
        words.append("--no-enable-prefix-caching")
    drafts = deployment.drafts
    if drafts is not None:
        config = {"method": "eagle", "model": _DRAFT, "num_speculative_tokens": drafts.deepest}
        if len(drafts.ranges) > 1:
            config["num_speculative_tokens_per_batch_size"] = drafts.ranges
        words += ["--speculative-config", json.dumps(config)]
    return [*words, "--host", "0.0.0.0", "--port", str(PORT)]


def sglang_command(deployment: PlannedDeployment, model: str, model_length: int) -> list[str]:
    """Arguments of SGLang's server for one replica. Drafts have the smallest depth of the plan at
    any number of sequences."""
    option = deployment.option
    words = ["python", "-m", "sglang.launch_server", "--model-path", served_model(model)]
    words += ["--tp-size", str(option.tensor_parallel)]
    if option.attention_data_parallel:
        words += ["--dp-size", str(option.tensor_parallel), "--enable-dp-attention"]
        words += ["--ep-size", str(option.tensor_parallel)]
    words += ["--max-running-requests", str(deployment.batch_cap)]
    words += ["--chunked-prefill-size", str(deployment.token_budget)]
    if deployment.drafts is None and not deployment.prefill:
        words += ["--enable-mixed-chunk"]
    if deployment.drafts is not None:
        depth = min(depth for depth in deployment.drafts.depths if depth)
        words += ["--speculative-algorithm", "EAGLE", "--speculative-draft-model-path", _DRAFT]
        words += ["--speculative-num-steps", str(depth), "--speculative-eagle-topk", "1"]
        words += ["--speculative-num-draft-tokens", str(depth + 1)]
    words += ["--context-length", str(model_length)]
    if option.weight_format == "fp8":
        words += ["--quantization", "fp8"]
    if option.kv_format == "fp8":
        words += ["--kv-cache-dtype", "fp8_e4m3"]
    if not option.caches_prefixes:
        words.append("--disable-radix-cache")
    return [*words, "--host", "0.0.0.0", "--port", str(PORT)]


def gateway_command(hosts: Sequence[str], objective: PlanObjective, host: str) -> list[str]:
    """Arguments of ``jaxserve gateway`` in front of engines."""
    words = ["gateway"]
    for each in hosts:
        words += ["--engine", f"vllm=http://{each}"]
    slo = f"default:ttft={objective.ttft_s:g},tpot={objective.tpot_s:g}"
    return [*words, "--slo", slo, "--host", host, "--port", str(GATEWAY_PORT)]


def start_files(
    deployment: PlannedDeployment, model: str, model_length: int, objective: PlanObjective
) -> dict[str, str]:
    """Texts of the files by name."""
    vllm = vllm_command(deployment, model, model_length)
    sglang = sglang_command(deployment, model, model_length)
    notes = "".join(f"# {note}.\n" for note in checkpoint_notes(deployment, model))
    head = f"#!/bin/sh\n# {deployment.name}\n"
    each = f"# One of {deployment.replicas} replicas, each on {deployment.option.tensor_parallel} "
    each += f"x {deployment.option.gpu}.\n{notes}"
    fixed = ""
    if deployment.drafts is not None:
        fixed = (
            "# One depth of drafts at any number of sequences, and prompts in iterations of their "
            "own: times differ from the plan's.\n"
        )
    local = [f"127.0.0.1:{PORT + place}" for place in range(deployment.replicas)]
    return {
        "vllm.sh": f"{head}{each}# vLLM {VLLM_VERSION}\nexec {shell_lines(vllm)}\n",
        "sglang.sh": f"{head}{each}# SGLang {SGLANG_VERSION}\n{fixed}exec {shell_lines(sglang)}\n",
        "gateway.sh": (
            f"{head}# The gateway spreads requests over replicas on ports {PORT} and up.\n"
            f"exec {shell_lines(['jaxserve', *gateway_command(local, objective, '127.0.0.1')])}\n"
        ),
        "compose.yaml": yaml_text([_compose(deployment, vllm, objective)]),
        "kubernetes.yaml": yaml_text(_manifests(deployment, vllm, objective)),
    }


def shell_lines(words: Sequence[str]) -> str:
    """A command over several lines, each option with its value on one."""
    text = ""
    for word in words:
        text += (" \\\n  " if word.startswith("--") else " ") + shlex.quote(word)
    return text.strip()


def _compose(
    deployment: PlannedDeployment, vllm: list[str], objective: PlanObjective
) -> dict[str, Any]:
    size = deployment.option.tensor_parallel
    services: dict[str, Any] = {}
    for place in range(deployment.replicas):
        ids = [str(place * size + gpu) for gpu in range(size)]
        reservation = {"driver": "nvidia", "device_ids": ids, "capabilities": ["gpu"]}
        services[f"engine-{place}"] = {
            "image": f"vllm/vllm-openai:v{VLLM_VERSION}",
            "command": vllm[2:],
            "ipc": "host",
            "environment": COMPOSE_ENVIRONMENT,
            "volumes": [COMPOSE_VOLUME],
            "deploy": {"resources": {"reservations": {"devices": [reservation]}}},
            "restart": "unless-stopped",
        }
    hosts = [f"{name}:{PORT}" for name in services]
    gateway = {
        "image": "jaxserve",
        "command": ["python", "-m", "jaxserve.cli", *gateway_command(hosts, objective, "0.0.0.0")],
        "ports": [f"127.0.0.1:{GATEWAY_PORT}:{GATEWAY_PORT}"],
        "depends_on": list(services),
        "restart": "unless-stopped",
    }
    return {"services": services | {"gateway": gateway}, "volumes": {"huggingface": {}}}


def _manifests(
    deployment: PlannedDeployment, vllm: list[str], objective: PlanObjective
) -> list[dict[str, Any]]:
    """A stateful set of engines, whose pods have names of their own, and a gateway."""
    engine, gateway = {"app": "engine"}, {"app": "gateway"}
    hosts = [f"engine-{place}.engine:{PORT}" for place in range(deployment.replicas)]
    probe = {
        "httpGet": {"path": "/health", "port": PORT},
        "periodSeconds": 5,
        "failureThreshold": 360,
    }
    pod = {
        "containers": [
            {
                "name": "vllm",
                "image": f"vllm/vllm-openai:v{VLLM_VERSION}",
                "args": vllm[2:],
                "ports": [{"containerPort": PORT}],
                "env": [TOKEN_OF_SECRET],
                "resources": {"limits": {"nvidia.com/gpu": deployment.option.tensor_parallel}},
                "startupProbe": probe,
                "readinessProbe": {"httpGet": {"path": "/health", "port": PORT}},
                "volumeMounts": [SHARED_MEMORY_MOUNT],
            }
        ],
        "volumes": [SHARED_MEMORY],
    }
    front = {
        "containers": [
            {
                "name": "gateway",
                "image": "jaxserve",
                "command": ["python", "-m", "jaxserve.cli"],
                "args": gateway_command(hosts, objective, "0.0.0.0"),
                "ports": [{"containerPort": GATEWAY_PORT}],
            }
        ]
    }
    engine_ports, gateway_ports = ([{"port": port}] for port in (PORT, GATEWAY_PORT))
    return [
        kubernetes_object("v1", "Service", "engine", {"clusterIP": "None", "selector": engine,
                "ports": engine_ports, "publishNotReadyAddresses": True}),
        kubernetes_object("apps/v1", "StatefulSet", "engine", {"serviceName": "engine",
                "replicas": deployment.replicas, "podManagementPolicy": "Parallel",
                "selector": {"matchLabels": engine},
                "template": {"metadata": {"labels": engine}, "spec": pod}}),
        kubernetes_object("v1", "Service", "gateway", {
                "selector": gateway, "ports": gateway_ports}),
        kubernetes_object("apps/v1", "Deployment", "gateway", {"replicas": 1,
                "selector": {"matchLabels": gateway},
                "template": {"metadata": {"labels": gateway}, "spec": front}}),
    ]  # fmt: skip


def kubernetes_object(version: str, kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    """A manifest."""
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}


def yaml_text(documents: list[dict[str, Any]]) -> str:
    """YAML of objects; a copy of each, because shared values would be written as references."""
    return yaml.safe_dump_all(json.loads(json.dumps(documents)), sort_keys=False)
