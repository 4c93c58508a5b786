"""Files that start a split of prefill and decode on one machine: engines of each role, and the
proxy that leads a request through both."""

from __future__ import annotations

import json

from jaxserve.plan.play import PlannedDeployment
from jaxserve.plan.start import (
    GATEWAY_PORT,
    PORT,
    SGLANG_VERSION,
    VLLM_VERSION,
    checkpoint_notes,
    sglang_command,
    shell_lines,
    vllm_command,
)

_VLLM_CHANNEL, _SGLANG_CHANNEL = 5600, 8998
"""Ports of replica 0 through which engines agree on transfers; the next replicas have the next."""
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
    router += ["--host", "127.0.0.1", "--port", str(GATEWAY_PORT)]
    return files | {
        "vllm_proxy.sh": (
            "#!/bin/sh\n# Sends each request to a replica that prefills, then to one that decodes."
            f"\n# tests/v1/kv_connector/nixl_integration/toy_proxy_server.py of vLLM "
            f"{VLLM_VERSION}'s repository\nexec {shell_lines(proxy)}\n"
        ),
        "sglang_router.sh": (
            "#!/bin/sh\n# Leads each request through a replica of both roles (pip install "
            f"sglang-router).\nexec {shell_lines(router)}\n"
        ),
    }


def _numbered(words: list[str]) -> str:
    """A command over several lines, with the port of replica ``$1``."""
    place = words.index("--port")
    rest = words[:place] + words[place + 2 :]
    return f"{shell_lines(rest)} \\\n  --port $(({PORT} + $1))"
