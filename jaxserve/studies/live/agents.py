"""Task and latency table of a deployment, and its agents from the simulator.

The folder of the server keeps every file, and later calls use the files again.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxserve.agents.heuristic import HeuristicPolicy
from jaxserve.agents.open_loop import StaticPolicy, default_policy
from jaxserve.agents.panel import find_best_static
from jaxserve.agents.policy import Policy
from jaxserve.agents.progress import Progress
from jaxserve.agents.task_setup import TaskSetup, load_setup
from jaxserve.agents.weights import load_weights
from jaxserve.datafiles import read_json, write_atomic
from jaxserve.errors import InputError
from jaxserve.grids import action_at
from jaxserve.learning.run_options import config_for
from jaxserve.learning.training import train
from jaxserve.live.calibration.calibrate import Deployed, calibrate, report_sentences
from jaxserve.live.engine_client import Target
from jaxserve.live.gateway_client import GatewayClient, GatewayError
from jaxserve.live.guard import as_values
from jaxserve.live.live_task import derive
from jaxserve.live.readings import parse_engine_state
from jaxserve.sim.machine.cost_model import CostModel
from jaxserve.sim.table.file import Calibration, read_table_file, write_table_file
from jaxserve.spaces import make_action
from jaxserve.studies.live.dilation import dilated_table, dilated_task
from jaxserve.studies.live.plan import Server, Study, setting_name
from jaxserve.studies.live.servers import Running

_ENVIRONMENTS = 512
_LEARNING_RATE = 2e-3


@dataclass(frozen=True)
class Prepared:
    """A deployment and its agents."""

    setup: TaskSetup
    """live task and environment."""
    cost: CostModel
    """iteration times of the deployment in the simulators."""
    policies: Mapping[str, Policy]
    """policies by the names in ``Server.agents``."""
    static: Mapping[str, float]
    """knobs of the best static setting."""
    calibration: tuple[str, ...]
    """sentences of the calibration; none for a known table."""


async def live_task(
    server: Server, running: Running, folder: Path, calibration: Calibration | None
) -> Path:
    """Writes the task file of the running deployment, with the deployment's time dilation.

    Args:
      server: server of the study.
      running: addresses of the deployment.
      folder: folder of the server.
      calibration: measurements behind the table; None for a known table.

    Raises:
      InputError: the deployment does not answer, or differs from that of an earlier call.
    """
    base = dilated_task(server.task, server.time_dilation)
    async with GatewayClient(running.control_url) as gateway:
        try:
            knobs, read = await gateway.knobs(), await gateway.engines()
        except GatewayError as error:
            raise InputError(str(error)) from None
    path = folder / "task.json"
    content = derive(base, path.stem, knobs, parse_engine_state(read, knobs), calibration)
    text = f"{json.dumps(content, indent=2)}\n"
    if path.is_file() and path.read_text() != text:
        raise InputError(f"{path} is of another deployment than the one that runs now")
    write_atomic(path, text.encode())
    return path


def table(server: Server, running: Running, folder: Path, known: bool, progress: Progress) -> Path:
    """Writes the latency table of the deployment, calibrated or known.

    Args:
      server: server of the study.
      running: addresses of the deployment.
      folder: folder of the server.
      known: whether the engine takes its times from the cost model.
      progress: called during the calibration.

    Raises:
      InputError: see ``calibrate``.
    """
    path = folder / "table.parquet"
    if path.is_file():
        return path
    spec = server.spec
    group = spec.deployment.tensor_parallel
    if known:
        made = dilated_table(spec.hardware, spec.model, group, server.time_dilation)
    else:
        deployed = Deployed(spec.hardware, spec.model, group)
        # On the host's own cores, gateway and clients slow the engine down.
        gateway_url = running.gateway_url if server.computes else None
        target = Target(running.engine_url, gateway_url=gateway_url)
        report = calibrate(target, server.calibration, deployed, progress)
        sentences = json.dumps(report_sentences(report))
        write_atomic(folder / "calibration.json", f"{sentences}\n".encode())
        made = report.table
    write_table_file(path, made)
    return path


def prepare(
    study: Study, server: Server, task: Path, table: Path, folder: Path, progress: Progress
) -> Prepared:
    """Searches and trains the agents that the folder lacks.

    Raises:
      InputError: a file of an earlier call does not fit, or training diverges.
    """
    setup = load_setup(str(task), table=str(table))
    env = setup.env
    static = _best_static(setup, folder / "best_static.json", progress)
    weights = folder / "ppo"
    if not (weights / "weights.json").is_file():
        config = config_for(env, study.train_windows, 0, 1, _ENVIRONMENTS, _LEARNING_RATE)
        total = config.updates * config.windows

        def watch(status: Any) -> None:
            progress("training", status.windows, total)

        train(setup, config, (0,), weights, resume=weights.is_dir(), watch=watch)
    policies: dict[str, Policy] = {
        "default": default_policy(env),
        "best_static": StaticPolicy(make_action(**static)),
        "heuristic": HeuristicPolicy(),
        "ppo": load_weights(weights, env, setup.spec.name),
    }
    for setting in server.settings:
        action = make_action(**as_values(env.locked) | dict(setting))
        policies[setting_name(setting)] = StaticPolicy(action)
    said = folder / "calibration.json"
    return Prepared(
        setup=setup,
        cost=read_table_file(table).metadata.cost_model,
        policies=policies,
        static={name: static[name] for name in setup.spec.knobs},
        calibration=tuple(read_json(said, str(said))) if said.is_file() else (),
    )


def _best_static(setup: TaskSetup, path: Path, progress: Progress) -> dict[str, float]:
    """Knobs of the best static setting in the simulator, on training episodes."""
    env = setup.env
    if not path.is_file():
        found = find_best_static(setup, progress).setting
        action = jax.tree.map(np.asarray, env.effective_action(action_at(jnp.asarray(found))))
        write_atomic(path, f"{json.dumps(as_values(action))}\n".encode())
    return dict(dataclasses.asdict(make_action(**read_json(path, str(path)))))
