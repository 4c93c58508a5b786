"""Trained networks on disk: arrays in an .npz, and beside them a .json that says whose they are."""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from jaxserve.agents.network import NetworkPolicy, Normaliser, network_for
from jaxserve.datafiles import read_json, write_atomic
from jaxserve.env import FEATURE_NAMES, ServeEnv
from jaxserve.errors import InputError
from jaxserve.tasks import checks
from jaxserve.tasks.spec import TaskSpec

WEIGHTS_VERSION = 1
_FILE = "weights"
# What a damaged archive raises, depending on where the damage is.
_UNREADABLE = (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)


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
        "features": list(FEATURE_NAMES),
        "provenance": dict(provenance),
    }
    write_atomic(directory / f"{_FILE}.npz", packed.getvalue())
    write_atomic(directory / f"{_FILE}.json", (json.dumps(about, indent=2) + "\n").encode())


def load_weights(directory: Path, env: ServeEnv) -> NetworkPolicy:
    """The policy of ``save_weights`` for an environment with the same knobs.

    Raises:
      InputError: a file is missing or unreadable, of another version, or does not fit the task.
    """
    where = f"{directory / _FILE}.json"
    missing = (
        f"{directory} has no {_FILE}.json, so there are no weights for {env.name}; "
        "`jaxserve train` makes them, and --weights names its --out"
    )
    about = checks.mapping(read_json(Path(where), where, missing), where)
    checks.whole(about, "spec_version", where, WEIGHTS_VERSION, WEIGHTS_VERSION)
    if about.get("features") != list(FEATURE_NAMES):
        raise InputError(f"{where}: features are not those of this version; train again")
    width = checks.whole(about, "width", where, 1, 4096)
    recurrent = about.get("recurrent")
    if not isinstance(recurrent, bool):
        raise InputError(f"{where}: recurrent is {recurrent!r}; it must be true or false")
    network = network_for(env, width=width, recurrent=recurrent)
    arrays = _read_arrays(directory)
    expected = _by_path(
        jax.eval_shape(network.initial_params, jax.random.key(0)), Normaliser.create()
    )
    shapes = {name: leaf.shape for name, leaf in expected.items()}
    _check_arrays(arrays, shapes, f"{directory / _FILE}.npz", env.name)
    params = unflatten_dict(jax.tree.map(jnp.asarray, arrays), sep="/")
    return NetworkPolicy(params, Normaliser(**params.pop("normaliser")), network)


def _by_path(params: Any, normaliser: Normaliser) -> dict[str, Any]:
    """All arrays of a policy by the name that they have in the file."""
    return flatten_dict({**params, "normaliser": vars(normaliser)}, sep="/")


def _read_arrays(directory: Path) -> dict[str, np.ndarray]:
    path = directory / f"{_FILE}.npz"
    try:
        # Not np.load, which takes other kinds of files as well.
        with path.open("rb") as file, np.lib.npyio.NpzFile(file) as archive:
            return {name: np.asarray(array) for name, array in archive.items()}
    except FileNotFoundError:
        raise InputError(f"{directory} has no {_FILE}.npz, so it holds no weights") from None
    except _UNREADABLE as error:
        raise InputError(f"{path} is not a readable .npz file: {error}") from None


def _check_arrays(
    arrays: Mapping[str, np.ndarray], shapes: Mapping[str, tuple[int, ...]], path: str, task: str
) -> None:
    for name in sorted(shapes.keys() | arrays.keys()):
        if name not in arrays or name not in shapes:
            state = "missing" if name not in arrays else "not part of the network"
            raise InputError(f"{path} does not fit {task}: array {name} is {state}")
        if not np.issubdtype(arrays[name].dtype, np.floating):
            raise InputError(f"{path}: array {name} is {arrays[name].dtype}; it must be floats")
        if arrays[name].shape != shapes[name]:
            raise InputError(
                f"{path} does not fit {task}: array {name} has shape {arrays[name].shape}, and the "
                f"task's knobs need {shapes[name]}"
            )
        if not np.isfinite(arrays[name]).all():
            raise InputError(f"{path}: array {name} has values that are not finite")
