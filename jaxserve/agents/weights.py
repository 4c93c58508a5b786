"""Trained networks on disk: arrays in an .npz, and beside them a .json that says whose they are."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from jaxserve.agents.network import Network, NetworkPolicy, Normaliser, network_for
from jaxserve.agents.rule_advice import AdvisingRule
from jaxserve.checks import JsonObject, refuse
from jaxserve.datafiles import UNREADABLE_ARCHIVE, read_json, write_atomic
from jaxserve.env import ServeEnv
from jaxserve.errors import InputError
from jaxserve.spaces import KNOBS
from jaxserve.tasks.spec import TaskSpec

WEIGHTS_VERSION = 1
_FILE = "weights"


def save_weights(
    directory: Path, policy: NetworkPolicy, spec: TaskSpec, provenance: Mapping[str, Any]
) -> None:
    """Writes ``weights.npz`` and ``weights.json``.

    Args:
      provenance: how they were made: command, seed, revision, score.
    """
    arrays = _by_path(policy.params, policy.normaliser)
    packed = io.BytesIO()
    np.savez(packed, **jax.tree.map(np.asarray, arrays))
    about = {
        "spec_version": WEIGHTS_VERSION,
        "task": spec.name,
        "task_version": spec.version,
        "width": policy.network.width,
        "recurrent": policy.network.recurrent,
        "knobs": _knobs(policy.network),
        "features": list(policy.network.features),
        **({"rule": policy.network.rule.data} if policy.network.rule else {}),
        "provenance": dict(provenance),
    }
    write_atomic(directory / f"{_FILE}.npz", packed.getvalue())
    write_atomic(directory / f"{_FILE}.json", (json.dumps(about, indent=2) + "\n").encode())


def load_weights(directory: Path, env: ServeEnv, task: str) -> NetworkPolicy:
    """The policy of ``save_weights`` for an environment with the same knobs.

    Args:
      task: what errors call the environment.

    Raises:
      InputError: a file is missing or unreadable, of another version, or does not fit the task.
    """
    where = f"{directory / _FILE}.json"
    missing = (
        f"{directory} has no {_FILE}.json, so there are no weights for {task}; "
        "`jaxserve train` makes them, and --weights names its --out"
    )
    about = JsonObject(read_json(Path(where), where, missing), where)
    about.whole("spec_version", WEIGHTS_VERSION, WEIGHTS_VERSION)
    if about.get("features") != list(env.feature_names):
        raise InputError(f"{where}: features are not those of {task} in this version; train again")
    width = about.whole("width", 1, 4096)
    rule = about.get("rule")
    rule = None if rule is None else AdvisingRule.parse(rule, f"{where}: rule")
    network = network_for(env, width=width, recurrent=about.flag("recurrent"), rule=rule)
    knobs = about.inside("knobs")
    if knobs != _knobs(network):
        raise InputError(
            f"{where}: the weights are for other knobs than the task's, {_text(knobs)} and not "
            f"{_text(_knobs(network))} (each with the number of its values)"
        )
    arrays = _read_arrays(directory)
    expected = _by_path(
        jax.eval_shape(network.initial_params, jax.random.key(0)),
        Normaliser.create(len(network.features)),
    )
    shapes = {name: leaf.shape for name, leaf in expected.items()}
    _check_arrays(arrays, shapes, f"{directory / _FILE}.npz", task)
    params = unflatten_dict(jax.tree.map(jnp.asarray, arrays), sep="/")
    return NetworkPolicy(params, Normaliser(**params.pop("normaliser")), network)


def _knobs(network: Network) -> dict[str, int]:
    """Values that the network chooses from, by knob, without knobs that the task locks."""
    return {knob: size for knob, size in zip(KNOBS, network.sizes, strict=True) if size > 1}


def _text(knobs: Mapping[str, Any]) -> str:
    return ", ".join(f"{knob} {size}" for knob, size in knobs.items()) or "none"


def _by_path(params: Any, normaliser: Normaliser) -> dict[str, Any]:
    """Arrays of a policy by their names in the file."""
    return flatten_dict({**params, "normaliser": vars(normaliser)}, sep="/")


def _read_arrays(directory: Path) -> dict[str, np.ndarray]:
    path = directory / f"{_FILE}.npz"
    try:
        # Not np.load, which takes other kinds of files as well.
        with path.open("rb") as file, np.lib.npyio.NpzFile(file) as archive:
            return {name: np.asarray(array) for name, array in archive.items()}
    except FileNotFoundError:
        raise InputError(f"{directory} has no {_FILE}.npz, so it holds no weights") from None
    except UNREADABLE_ARCHIVE as error:
        raise InputError(f"{path} is not a readable .npz file: {error}") from None


def _check_arrays(
    arrays: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[int, ...]], path: str, task: str
) -> None:
    for name in sorted(shapes.keys() | arrays.keys()):
        if name not in arrays or name not in shapes:
            state = "missing" if name not in arrays else "not part of the network"
            raise InputError(f"{path} does not fit {task}: array {name} is {state}")
        if not np.issubdtype(arrays[name].dtype, np.floating):
            refuse(f"{path}: array {name}", arrays[name].dtype, "floats")
        if arrays[name].shape != shapes[name]:
            raise InputError(
                f"{path} does not fit {task}: array {name} has shape {arrays[name].shape}, and the "
                f"task's knobs need {shapes[name]}"
            )
        if not np.isfinite(arrays[name]).all():
            raise InputError(f"{path}: array {name} has values that are not finite")
