"""Steps of a study; results in its directory are not computed again."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxserve.agents.progress import Progress
from jaxserve.datafiles import write_atomic
from jaxserve.errors import InputError
from jaxserve.live.figures import of_outcomes
from jaxserve.sim.machine.hardware import load_gpu
from jaxserve.sim.machine.models import load_model
from jaxserve.sim.table.file import read_table_file
from jaxserve.studies.live.agents import Prepared, live_task, prepare, table
from jaxserve.studies.live.episode import MeasuredEpisode, PredictedEpisode, play_episode, predict
from jaxserve.studies.live.plan import Server, Study
from jaxserve.studies.live.results import AgentResult, ServerResult
from jaxserve.studies.live.servers import Running, deployment, engine_name


def run_server(
    study: Study, server: Server, folder: Path, vllm: Path | None, progress: Progress
) -> ServerResult:
    """Measures and predicts all agents on one server.

    Args:
      study: plan of the study.
      server: server of the study.
      folder: folder of the server, in the directory of the study.
      vllm: environment of vLLM; None for the mock engine.
      progress: called during each stage.

    Raises:
      InputError: the folder belongs to another study, or a step fails.
    """
    _claim(study, server, folder, vllm)
    known = vllm is None
    engine = engine_name(server, folder, vllm)
    with deployment(server, folder, vllm) as running:
        times = table(server, running, folder, known, progress)
        calibration = read_table_file(times).metadata.calibration
        task = asyncio.run(live_task(server, running, folder, calibration))
        prepared = prepare(study, server, task, times, folder, progress)
        episodes = _play(study, server, prepared, running, folder, progress)
    predicted = _predict(study, server, prepared, folder, progress)
    return _result(study, server, prepared, episodes, predicted, engine)


def order(agents: Sequence[str], repeat: int) -> tuple[str, ...]:
    """Order of the agents in a repeat.

    Each repeat begins with another agent, so that a machine that warms up favours none.
    """
    first = repeat % len(agents)
    return (*agents[first:], *agents[:first])


def _play(
    study: Study,
    server: Server,
    prepared: Prepared,
    running: Running,
    folder: Path,
    progress: Progress,
) -> dict[tuple[str, int], MeasuredEpisode]:
    found: dict[tuple[str, int], MeasuredEpisode] = {}
    for repeat in range(study.repeats):
        for agent in order(server.agents, repeat):
            path = folder / "episodes" / f"{agent}-{repeat}.json"
            if not path.is_file():
                stage = f"{server.name}: {agent}, episode {repeat}"

                def ended(done: int, total: int, stage: str = stage) -> None:
                    progress(stage, done, total)

                path.parent.mkdir(exist_ok=True)
                log = path.with_suffix(".log.jsonl")
                played = asyncio.run(play_episode(prepared, agent, repeat, running, log, ended))
                write_atomic(path, _json(played.to_json()))
            found[agent, repeat] = MeasuredEpisode.from_json(path)
    return found


def _predict(
    study: Study, server: Server, prepared: Prepared, folder: Path, progress: Progress
) -> dict[tuple[str, int], PredictedEpisode]:
    cases = [(agent, repeat) for agent in server.agents for repeat in range(study.repeats)]
    found = {}
    for done, (agent, repeat) in enumerate(cases):
        progress(f"{server.name}: predictions", done, len(cases))
        path = folder / "predictions" / f"{agent}-{repeat}.json"
        if not path.is_file():
            write_atomic(path, _json(dataclasses.asdict(predict(prepared, agent, repeat))))
        found[agent, repeat] = PredictedEpisode.from_json(path)
    return found


def _result(
    study: Study,
    server: Server,
    prepared: Prepared,
    episodes: dict[tuple[str, int], MeasuredEpisode],
    predicted: dict[tuple[str, int], PredictedEpisode],
    engine: str,
) -> ServerResult:
    slow = server.time_dilation
    agents = []
    for agent in server.agents:
        played = [episodes[agent, repeat] for repeat in range(study.repeats)]
        told = [predicted[agent, repeat] for repeat in range(study.repeats)]
        outcomes = [outcome for episode in played for outcome in episode.outcomes]
        agents.append(
            AgentResult(
                agent=agent,
                measured=tuple(
                    of_outcomes(each.outcomes, each.seconds).in_gpu_time(slow) for each in played
                ),
                predicted={
                    "fast": tuple(each.fast.in_gpu_time(slow) for each in told),
                    "reference": tuple(each.reference.in_gpu_time(slow) for each in told),
                },
                steered=sum(each.steered for each in played) / sum(each.windows for each in played),
                errors=sum(outcome.error is not None for outcome in outcomes),
                late_s=float(np.quantile([outcome.late_s for outcome in outcomes], 0.99)),
            )
        )
    loads = [episode.load for episode in episodes.values()]
    static = ", ".join(f"{name} {value:g}" for name, value in prepared.static.items())
    spec = server.spec
    model, hardware = load_model(spec.model).name, load_gpu(spec.hardware).name
    started = f"started with batch_cap {server.batch_cap}"
    if not server.computes:
        started = f"time dilated {slow:g} times, {started}"
    return ServerResult(
        server=server.name,
        title=f"{model} on {hardware}: {spec.title}",
        time_dilation=slow,
        repeats=study.repeats,
        agents=tuple(agents),
        calibration=prepared.calibration,
        notes=(
            f"Engine: {engine}, {started}; best static in the simulator: {static}.",
            f"Host: {platform.machine()}, {os.cpu_count()} cores; load average "
            f"{min(loads):.1f} to {max(loads):.1f} (1 minute, at the end of each episode).",
        ),
    )


def _claim(study: Study, server: Server, folder: Path, vllm: Path | None) -> None:
    """Ties a folder to the inputs of its first call, except the number of repeats."""
    about = {
        "engine": "mock" if vllm is None else "vllm",
        "train_windows": study.train_windows,
        "calibration": dataclasses.asdict(server.calibration),
        "task": server.task,
        "server": [server.time_dilation, server.batch_cap, server.token_budget],
    } | ({"computes": True} if server.computes else {})
    path, text = folder / "study.json", _json(about)
    if path.is_file() and path.read_bytes() != text:
        raise InputError(f"{folder} holds another study; name another --directory")
    write_atomic(path, text)


def _json(content: dict[str, Any]) -> bytes:
    return f"{json.dumps(_finite(content), allow_nan=False)}\n".encode()


def _finite(content: Any) -> Any:
    """Content with null in place of NaN."""
    if isinstance(content, dict):
        return {name: _finite(each) for name, each in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(each) for each in content]
    return None if isinstance(content, float) and np.isnan(content) else content
