"""What a study says of the engine that it ran."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jaxserve.errors import InputError
from jaxserve.studies.live.plan import load_study, study_path
from jaxserve.studies.live.servers import engine_name

SERVERS = {server.name: server for server in load_study(study_path()).servers}
H100, CPU = SERVERS["h100"], SERVERS["cpu"]


def environment(folder: Path, script: str) -> Path:
    """One whose Python is a shell script."""
    python = folder / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    return folder


def test_the_version_is_asked_once(tmp_path: Path) -> None:
    """And kept with the episodes: the environment may be another one later."""
    folder = tmp_path / "h100"
    folder.mkdir()
    vllm = environment(tmp_path / "v", "echo 0.32.0+cpu")
    expected = "a real vLLM 0.32.0+cpu with an emulated device"
    assert engine_name(H100, folder, vllm) == expected
    assert json.loads((folder / "engine.json").read_text()) == {"vllm": "0.32.0+cpu"}
    assert engine_name(H100, folder, environment(tmp_path / "w", "exit 1")) == expected
    assert engine_name(H100, tmp_path, None) == "the mock engine"


def test_a_server_that_computes(tmp_path: Path) -> None:
    """Is told from one that emulates, and nothing stands in for it."""
    vllm = environment(tmp_path / "v", "echo 0.32.0+cpu")
    expected = "a real vLLM 0.32.0+cpu that computes on the host"
    assert engine_name(CPU, tmp_path, vllm) == expected
    with pytest.raises(InputError, match="cpu computes its model; name an environment of vLLM"):
        engine_name(CPU, tmp_path, None)


def test_an_environment_without_vllm(tmp_path: Path) -> None:
    """Is named."""
    with pytest.raises(InputError, match="in which no vLLM is installed"):
        engine_name(H100, tmp_path, environment(tmp_path / "v", "exit 1"))
    with pytest.raises(InputError, match="cannot be started: No such file"):
        engine_name(H100, tmp_path, tmp_path / "nowhere")
