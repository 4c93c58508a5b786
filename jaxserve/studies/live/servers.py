"""Processes of a study: an engine and its gateway."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from jaxserve.checks import JsonObject
from jaxserve.datafiles import read_json, write_atomic
from jaxserve.errors import InputError
from jaxserve.gateway.settings import CONTROL_TOKEN_VARIABLE, TOKEN_VARIABLE
from jaxserve.runtime.child_processes import child_server, free_ports
from jaxserve.sim.machine.cost_model import CostModel
from jaxserve.sim.machine.hardware import load_gpu
from jaxserve.sim.machine.memory import kv_bytes_per_token, kv_pool_bytes
from jaxserve.sim.machine.models import load_model
from jaxserve.sim.machine.step_times import CPU_BLOCK_TOKENS, step_times
from jaxserve.studies.live.dilation import dilated_task
from jaxserve.studies.live.plan import Server

_START_S = 600.0  # a busy machine takes minutes to import vLLM
_GRACE_S = 15.0
_LOG_CHARACTERS = 400
_ASK_VERSION = "from importlib.metadata import version; print(version('vllm'))"
_MODEL_MODULE = "jaxserve_vllm.cyclic_model"
# Tokens of the user's own servers; servers of a study listen on loopback without a token.
_USER_TOKENS = (
    CONTROL_TOKEN_VARIABLE,
    TOKEN_VARIABLE,
    "JAXSERVE_CONTROL_TOKEN",
    "JAXSERVE_CONTROL_FILE",
    "JAXSERVE_STATIC",
)


@dataclass(frozen=True)
class Running:
    """Addresses of a running deployment."""

    engine_url: str
    """address of the engine."""
    gateway_url: str
    """address of the gateway for requests."""
    control_url: str
    """address of the gateway for control."""


def engine_name(server: Server, folder: Path, vllm: Path | None) -> str:
    """Name and version of the engine, asked once and kept in ``folder``.

    Args:
      server: server of the study.
      folder: folder of the server.
      vllm: environment of vLLM; None for the mock engine.

    Raises:
      InputError: the environment has no vLLM, a server that computes has no environment, or the
        file is unreadable.
    """
    if vllm is None:
        if server.computes:
            raise InputError(
                f"server {server.name} computes its model; name an environment of vLLM with --vllm"
            )
        return "the mock engine"
    path = folder / "engine.json"
    if not path.is_file():
        version = _vllm_version(vllm)
        write_atomic(path, f"{json.dumps({'vllm': version})}\n".encode())
    version = JsonObject(read_json(path, str(path)), str(path)).text("vllm")
    device = "that computes on the host" if server.computes else "with an emulated device"
    return f"a real vLLM {version} {device}"


def _vllm_version(vllm: Path) -> str:
    """Version of vLLM from the metadata of its distribution; an import would take a minute."""
    asked = [vllm / "bin" / "python", "-c", _ASK_VERSION]
    try:
        told = subprocess.run(asked, capture_output=True, text=True)
    except OSError as error:
        raise InputError(f"{asked[0]} cannot be started: {error.strerror}") from None
    if told.returncode:
        raise InputError(f"--vllm is {vllm}, in which no vLLM is installed")
    return told.stdout.strip()


@contextmanager
def deployment(server: Server, folder: Path, vllm: Path | None) -> Iterator[Running]:
    """Runs an engine and a gateway during the block; ``folder`` keeps their logs.

    Args:
      server: server of the study.
      folder: folder of the server.
      vllm: environment of vLLM and its plug-in; None for the mock engine.

    Raises:
      InputError: the engine or the gateway does not start.
    """
    ports = free_ports(3)
    engine_url, gateway_url, control_url = (f"http://127.0.0.1:{port}" for port in ports)
    if vllm is None:
        command, settings = _mock_engine(server, ports[0]), {}
    else:
        command, settings = _vllm(server, folder, vllm, ports[0])
    with _process(command, settings, folder / "engine.log", f"{engine_url}/health"):
        gateway = _gateway(server, engine_url, *ports[1:])
        with _process(gateway, {}, folder / "gateway.log", f"{gateway_url}/health"):
            yield Running(engine_url, gateway_url, control_url)


def _mock_engine(server: Server, port: int) -> list[str]:
    spec = server.spec
    return [
        *(sys.executable, "-m", "jaxserve.cli", "mock-engine"),
        *("--model", spec.model, "--hardware", spec.hardware, "--port", str(port)),
        *("--tensor-parallel", str(spec.deployment.tensor_parallel)),
        *("--batch-cap", str(server.batch_cap), "--token-budget", str(server.token_budget)),
        *("--max-model-len", str(server.longest), "--speed", str(1 / server.time_dilation)),
    ]


def _vllm(
    server: Server, folder: Path, vllm: Path, port: int
) -> tuple[list[str], Mapping[str, str]]:
    """Command and environment of vLLM; writes the model and the step times."""
    model = folder / "model"
    if not (model / "config.json").is_file():
        sizes = ("--config", server.spec.model) if server.computes else ()
        made = subprocess.run(
            [vllm / "bin" / "python", "-m", _MODEL_MODULE, model, *sizes],
            capture_output=True,
            text=True,
        )
        if made.returncode:
            raise InputError(
                f"--vllm is {vllm}, in which no model can be made: {_last_line(made.stderr)}"
            )
    device, settings = _host() if server.computes else _emulated(server, folder)
    blocks = -(-server.longest // CPU_BLOCK_TOKENS)
    command = [
        *(str(vllm / "bin" / "vllm"), "serve", str(model), "--served-model-name", "tiny"),
        *("--host", "127.0.0.1", "--port", str(port), "--enforce-eager"),
        *("--max-model-len", str(blocks * CPU_BLOCK_TOKENS)),
        *("--max-num-seqs", str(server.batch_cap)),
        *("--max-num-batched-tokens", str(server.token_budget)),
        *("--block-size", str(CPU_BLOCK_TOKENS)),
        *("--no-enable-prefix-caching", "--disable-uvicorn-access-log"),
        *("--scheduler-cls", "jaxserve_vllm.scheduler.ControlledScheduler"),
        *device,
    ]
    of_all = {
        "VLLM_PLUGINS": "jaxserve",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    return command, {**of_all, **settings}


def _host() -> tuple[list[str], Mapping[str, str]]:
    """Arguments and environment of a host that computes: one core serves the model."""
    return ["--dtype", "float32"], {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}


def _emulated(server: Server, folder: Path) -> tuple[list[str], Mapping[str, str]]:
    """Arguments and environment of an emulated GPU: its step times and its KV pool."""
    times = folder / "step_times.json"
    gpu, llm = load_gpu(server.spec.hardware), load_model(server.spec.model)
    group = server.spec.deployment.tensor_parallel
    seconds = step_times(CostModel.of(gpu, llm, group), 0, server.time_dilation)
    times.write_text(json.dumps(seconds, indent=2) + "\n")
    pool_tokens = kv_pool_bytes(gpu, llm, 0, False, group) / kv_bytes_per_token(llm, False, group)
    arguments = [
        *("--num-gpu-blocks-override", str(int(pool_tokens // CPU_BLOCK_TOKENS))),
        *("--worker-cls", "jaxserve_vllm.worker.EmulatedWorker"),
    ]
    return arguments, {"JAXSERVE_EMULATE": str(times)}


def _gateway(server: Server, engine_url: str, port: int, control_port: int) -> list[str]:
    """Command of the gateway, whose windows count good requests by the task's objectives."""
    slow = dilated_task(server.task, server.time_dilation)
    objectives = [
        f"{stream['name']}:ttft={stream['ttft_slo_s']!r},tpot={stream['tpot_slo_s']!r}"
        for stream in slow["streams"]
    ]
    return [
        *(sys.executable, "-m", "jaxserve.cli", "gateway", "--engine", f"vllm={engine_url}"),
        *("--port", str(port), "--control-port", str(control_port)),
        *(word for objective in objectives for word in ("--slo", objective)),
    ]


@contextmanager
def _process(
    command: Sequence[str], variables: Mapping[str, str], log: Path, url: str
) -> Iterator[None]:
    """Runs a server from its first answer to the end of the block."""
    inherited = {name: text for name, text in os.environ.items() if name not in _USER_TOKENS}
    with ExitStack() as end, log.open("wb") as out:
        server = child_server(
            command,
            url,
            start_s=_START_S,
            stop_s=_GRACE_S,
            env=inherited | dict(variables),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
        try:
            end.enter_context(server)
        except OSError as error:
            raise InputError(f"{command[0]} cannot be started: {error.strerror}") from None
        except RuntimeError:
            said = _last_line(log.read_text(errors="replace"))
            raise InputError(f"a server of the study did not start ({said}); see {log}") from None
        yield


def _last_line(text: str) -> str:
    lines = text.strip().splitlines() or ["it said nothing"]
    return lines[-1].strip()[:_LOG_CHARACTERS]
