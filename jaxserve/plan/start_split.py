"""Files that start a split of prefill and decode on one machine: engines of each role, and the
proxy that leads a request through both.

KV travels between GPUs that see each other, so that a container has all engines of the split, and
compose file and manifests have one container: that of SGLang, whose image brings NIXL and the
router.
"""

from __future__ import annotations

import json
from typing import Any

from jaxserve.plan.play import PlannedDeployment
from jaxserve.plan.start import (
    COMPOSE_ENVIRONMENT,
    COMPOSE_VOLUME,
    GATEWAY_PORT,
    PORT,
    SGLANG_VERSION,
    SHARED_MEMORY,
    SHARED_MEMORY_MOUNT,
    TOKEN_OF_SECRET,
    VLLM_VERSION,
    checkpoint_notes,
    kubernetes_object,
    sglang_command,
    shell_lines,
    vllm_command,
    yaml_text,
)

_VLLM_CHANNEL, _SGLANG_CHANNEL = 5600, 8998
"""Ports of replica 0 through which engines agree on transfers; the next replicas have the next."""
_IMAGE = f"lmsysorg/sglang:v{SGLANG_VERSION}"
_ALL = "sglang_all.sh"
"""Script that starts every process of the split."""
_MOUNTED = "/plan"
"""Folder of the scripts in a container."""
_HOST = "ROUTER_HOST"
"""Variable with the router's address; the loopback without it."""
_ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}


def vllm_role_command(
    deployment: PlannedDeployment, model: str, model_length: int, role: str
) -> list[str]:
    """Arguments of ``vllm serve`` for one replica that only does ``role``, prefill or decode."""
    transfer = {"kv_connector": "NixlConnector", "kv_role": _ROLES[role]}
    words = vllm_command(deployment, model, model_length)
    return [*words, "--kv-transfer-config", json.dumps(transfer)]


def split_files(deployment: PlannedDeployment, model: str, model_length: int) -> dict[str, str]:
    """Texts of the files by name; scripts of engines take the number of their replica."""
    prefill, replicas = deployment.prefill, deployment.replicas
    notes = "".join(f"# {note}.\n" for note in checkpoint_notes(deployment, model))
    spans = {"prefill": (0, prefill - 1), "decode": (prefill, replicas - 1)}
    files = {}
    for role, (first, last) in spans.items():
        head = (
            f"#!/bin/sh\n# {deployment.name}\n# Argument: number of the replica that is to "
            f"{role}, {first} to {last}. Name its {deployment.option.tensor_parallel} x "
            f"{deployment.option.gpu} by CUDA_VISIBLE_DEVICES.\n{notes}"
        )
        vllm = vllm_role_command(deployment, model, model_length, role)
        sglang = sglang_command(deployment, model, model_length)
        sglang += ["--disaggregation-mode", role, "--disaggregation-transfer-backend", "nixl"]
        files[f"vllm_{role}.sh"] = (
            f"{head}# vLLM {VLLM_VERSION} with NIXL (pip install nixl)\n"
            f"export VLLM_NIXL_SIDE_CHANNEL_PORT=$(({_VLLM_CHANNEL} + $1))\n"
            f"exec {_numbered(vllm)}\n"
        )
        files[f"sglang_{role}.sh"] = (
            f"{head}# SGLang {SGLANG_VERSION} with NIXL (pip install nixl)\nexec "
            f"{_numbered(sglang)} \\\n  --disaggregation-bootstrap-port "
            f"$(({_SGLANG_CHANNEL} + $1))\n"
        )
    ports = [str(PORT + place) for place in range(replicas)]
    proxy = ["python", "toy_proxy_server.py", "--port", str(GATEWAY_PORT)]
    for name, own in (("prefiller", ports[:prefill]), ("decoder", ports[prefill:])):
        proxy += [f"--{name}-hosts", *["127.0.0.1"] * len(own), f"--{name}-ports", *own]
    router = ["python", "-m", "sglang_router.launch_router", "--pd-disaggregation"]
    for place, port in enumerate(ports):
        channel = [str(_SGLANG_CHANNEL + place)] if place < prefill else []
        role = "prefill" if place < prefill else "decode"
        router += [f"--{role}", f"http://127.0.0.1:{port}", *channel]
    router += ["--port", str(GATEWAY_PORT)]
    files |= {
        "vllm_proxy.sh": (
            "#!/bin/sh\n# Sends each request to a replica that prefills, then to one that decodes."
            f"\n# tests/v1/kv_connector/nixl_integration/toy_proxy_server.py of vLLM "
            f"{VLLM_VERSION}'s repository\nexec {shell_lines(proxy)}\n"
        ),
        "sglang_router.sh": (
            "#!/bin/sh\n# Leads each request through a replica of both roles (pip install "
            f"sglang-router).\nexec {shell_lines(router)} \\\n  --host ${{{_HOST}:-127.0.0.1}}\n"
        ),
        _ALL: _all_processes(deployment),
    }
    scripts = {name: text for name, text in files.items() if name.startswith("sglang")}
    return files | {
        "compose.yaml": yaml_text([_compose(deployment)]),
        "kubernetes.yaml": yaml_text(_manifests(deployment, scripts)),
    }


def _all_processes(deployment: PlannedDeployment) -> str:
    """Script that starts all engines and the router, and ends when one of them ends."""
    size = deployment.option.tensor_parallel
    lines = [
        "#!/bin/bash",
        f"# {deployment.name}",
        "# All engines and the router of SGLang, until one of them ends.",
        'cd "$(dirname "$0")"',
        "trap 'kill $(jobs -p) 2>/dev/null' EXIT",
        "trap 'exit 143' INT TERM  # the first process of a container has no default action",
    ]
    for place in range(deployment.replicas):
        role = "prefill" if place < deployment.prefill else "decode"
        gpus = ",".join(str(place * size + gpu) for gpu in range(size))
        lines.append(f"CUDA_VISIBLE_DEVICES={gpus} sh sglang_{role}.sh {place} &")
    return "\n".join([*lines, "sh sglang_router.sh &", "wait -n", "exit 1", ""])


def _compose(deployment: PlannedDeployment) -> dict[str, Any]:
    count = deployment.replicas * deployment.option.tensor_parallel
    ids = [str(gpu) for gpu in range(count)]
    reservation = {"driver": "nvidia", "device_ids": ids, "capabilities": ["gpu"]}
    split = {
        "image": _IMAGE,
        "command": ["bash", f"{_MOUNTED}/{_ALL}"],
        "ipc": "host",
        "environment": COMPOSE_ENVIRONMENT | {_HOST: "0.0.0.0"},
        "volumes": [COMPOSE_VOLUME, f".:{_MOUNTED}:ro"],
        "deploy": {"resources": {"reservations": {"devices": [reservation]}}},
        "ports": [f"127.0.0.1:{GATEWAY_PORT}:{GATEWAY_PORT}"],
        "restart": "unless-stopped",
    }
    return {"services": {"split": split}, "volumes": {"huggingface": {}}}


def _manifests(deployment: PlannedDeployment, scripts: dict[str, str]) -> list[dict[str, Any]]:
    """The scripts, a deployment of one pod with all engines, and the router's service."""
    app = {"app": "split"}
    count = deployment.replicas * deployment.option.tensor_parallel
    container = {
        "name": "sglang",
        "image": _IMAGE,
        "command": ["bash", f"{_MOUNTED}/{_ALL}"],
        "ports": [{"containerPort": GATEWAY_PORT}],
        "env": [{"name": _HOST, "value": "0.0.0.0"}, TOKEN_OF_SECRET],
        "resources": {"limits": {"nvidia.com/gpu": count}},
        # The router is ready when engines of both roles are.
        "readinessProbe": {"httpGet": {"path": "/readiness", "port": GATEWAY_PORT}},
        "volumeMounts": [
            SHARED_MEMORY_MOUNT,
            {"name": "plan", "mountPath": _MOUNTED, "readOnly": True},
        ],
    }
    volumes = [SHARED_MEMORY, {"name": "plan", "configMap": {"name": "split"}}]
    template = {
        "metadata": {"labels": app},
        "spec": {"containers": [container], "volumes": volumes},
    }
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "split"},
        "data": scripts,
    }
    return [
        config,
        kubernetes_object("apps/v1", "Deployment", "split", {
            "replicas": 1, "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": app}, "template": template}),
        kubernetes_object("v1", "Service", "gateway", {
            "selector": app, "ports": [{"port": GATEWAY_PORT}]}),
    ]  # fmt: skip


def _numbered(words: list[str]) -> str:
    """A command over several lines, with the port of replica ``$1``."""
    place = words.index("--port")
    rest = words[:place] + words[place + 2 :]
    return f"{shell_lines(rest)} \\\n  --port $(({PORT} + $1))"
