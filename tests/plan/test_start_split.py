"""Scripts of a split of prefill and decode."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import kubernetes_validate
import psutil
import pytest
import yaml

from jaxserve.plan.inputs import PlanInputs, PlanObjective, steady_traffic
from jaxserve.plan.options import engine_options
from jaxserve.plan.play import PlannedDeployment
from jaxserve.plan.start_split import split_files
from tests.patience import wait_until


@pytest.fixture(scope="module")
def files() -> dict[str, str]:
    """Of one replica that prefills and two that decode."""
    traffic = steady_traffic(1, 1000, 100)
    inputs = PlanInputs("llama-3.1-8b", *traffic, PlanObjective(1.0, 0.05), {"l40s-48gb": 1.0})
    option = engine_options(inputs)[0][0]
    return split_files(PlannedDeployment(option, 3, 64, 8192, prefill=1), "llama-3.1-8b", 2048)


def _run(text: str, argument: str, folder: Path) -> list[str]:
    """What a script would start, and the port of its side channel."""
    for name in ("vllm", "python"):
        program = folder / name
        program.write_text('#!/bin/sh\nprintf "%s\\n" "$@" "$VLLM_NIXL_SIDE_CHANNEL_PORT"\n')
        program.chmod(0o755)
    done = subprocess.run(
        ["sh", "-c", text, "script", argument],
        env={"PATH": f"{folder}:{os.defpath}"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_each_replica_has_its_role_and_its_ports(files: dict[str, str], tmp_path: Path) -> None:
    """The shell computes them from the replica's number; the proxies name the same ones."""
    for role, place, kind in (("prefill", 0, "producer"), ("decode", 2, "consumer")):
        vllm = _run(files[f"vllm_{role}.sh"], str(place), tmp_path)
        assert vllm[vllm.index("--port") + 1] == str(8000 + place)
        assert f'"kv_role": "kv_{kind}"' in vllm[vllm.index("--kv-transfer-config") + 1]
        assert vllm[-1] == str(5600 + place)
        sglang = _run(files[f"sglang_{role}.sh"], str(place), tmp_path)
        assert sglang[sglang.index("--disaggregation-mode") + 1] == role
        assert sglang[sglang.index("--disaggregation-bootstrap-port") + 1] == str(8998 + place)
    proxy = _run(files["vllm_proxy.sh"], "", tmp_path)
    decoders = proxy.index("--decoder-ports")
    assert proxy[proxy.index("--prefiller-ports") + 1] == "8000"
    assert proxy[decoders + 1 : decoders + 3] == ["8001", "8002"]
    router = _run(files["sglang_router.sh"], "", tmp_path)
    prefill = router.index("--prefill")
    assert router[prefill + 1 : prefill + 3] == ["http://127.0.0.1:8000", "8998"]
    assert router.count("--decode") == 2


def test_all_processes_start_and_end_together(files: dict[str, str], tmp_path: Path) -> None:
    """Every replica has its own GPUs; whatever ends first ends the others."""
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    program = tmp_path / "python"
    # The router ends once the engines are up; they would go on.
    program.write_text(
        '#!/bin/sh\ncase "$*" in *launch_router*)\n'
        f"until [ $(ls {tmp_path}/up.* 2>/dev/null | wc -l) = 3 ]; do sleep 0.05; done; exit 7;;\n"
        f'*) echo "$CUDA_VISIBLE_DEVICES" > {tmp_path}/up.$$; exec sleep 600;;\nesac\n'
    )
    program.chmod(0o755)
    done = subprocess.run(
        ["bash", str(tmp_path / "sglang_all.sh")],
        env={"PATH": f"{tmp_path}:{os.defpath}"},
        check=False,
    )
    assert done.returncode == 1
    gpus = sorted(file.read_text().strip() for file in tmp_path.glob("up.*"))
    assert gpus == ["0", "1", "2"]
    wait_until(lambda: not any(map(_lives, tmp_path.glob("up.*"))), "the end of the engines")


def _lives(file: Path) -> bool:
    return psutil.pid_exists(int(file.suffix[1:]))


def test_containers_run_the_scripts(files: dict[str, str]) -> None:
    """One container with all GPUs; manifests follow Kubernetes' schema, and have the scripts."""
    objects = list(yaml.safe_load_all(files["kubernetes.yaml"]))
    for each in objects:
        kubernetes_validate.validate(each, "1.31", strict=True)
    config, deployment, service = objects
    assert config["data"] == {name: files[name] for name in files if name.startswith("sglang")}
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 3}
    assert container["command"][1].rpartition("/")[2] in config["data"]
    assert service["spec"]["ports"] == [{"port": 9000}]
    (split,) = yaml.safe_load(files["compose.yaml"])["services"].values()
    (device,) = split["deploy"]["resources"]["reservations"]["devices"]
    assert device["device_ids"] == ["0", "1", "2"]
    assert split["environment"]["ROUTER_HOST"] == "0.0.0.0"
    assert "--host ${ROUTER_HOST:-127.0.0.1}" in files["sglang_router.sh"]
