"""Weights on disk: they come back as they were, and what does not fit is named."""

import functools
import io
import json
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxserve
from jaxserve.agents.network import NetworkPolicy, Normaliser, network_for
from jaxserve.agents.rollout import rollout
from jaxserve.agents.task_setup import packaged_weights
from jaxserve.agents.weights import load_weights, save_weights
from jaxserve.errors import InputError
from jaxserve.seeds import episode_keys
from jaxserve.tasks.spec import load_task, task_names

TASK = "bursty_workload"
ENV = jaxserve.make(TASK)


@functools.cache
def policy() -> NetworkPolicy:
    network = network_for(ENV, width=16)
    params = network.initial_params(jax.random.key(1))
    return NetworkPolicy(params, Normaliser.create(), network)


def npy() -> bytes:
    """A file with one array, which ``np.load`` takes as well as an archive."""
    file = io.BytesIO()
    np.save(file, np.zeros(3))
    return file.getvalue()


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save_weights(tmp_path, policy(), load_task(TASK), {"seed": 3})
    return tmp_path


@pytest.mark.slow
def test_round_trip(saved: Path) -> None:
    """A loaded policy plays as the saved one."""
    keys = episode_keys(2)
    one = rollout(ENV, policy(), keys)
    other = rollout(ENV, load_weights(saved, ENV, TASK), keys)
    np.testing.assert_array_equal(one.timesteps.reward, other.timesteps.reward)
    assert json.loads((saved / "weights.json").read_text())["provenance"] == {"seed": 3}


def test_other_knobs_do_not_fit(saved: Path) -> None:
    """A task with other knobs is refused, also where the arrays would fit by chance: the KV share
    has as many values as depth and routing together."""
    with pytest.raises(InputError, match=r"other knobs than the task's, batch_cap 16, .* and not"):
        load_weights(saved, jaxserve.make("adversarial_multitenant"), "x")
    knobs = ["batch_cap", "kv_budget_fraction"]
    env = jaxserve.make(TASK, overrides={"knobs": knobs})
    network = network_for(env, width=16)
    few = NetworkPolicy(network.initial_params(jax.random.key(1)), Normaliser.create(), network)
    save_weights(saved, few, load_task(TASK), {})
    load_weights(saved, env, TASK)
    other = jaxserve.make(
        TASK, overrides={"knobs": ["batch_cap", "speculation_depth", "priority_routing"]}
    )
    with pytest.raises(InputError, match="batch_cap 16, kv_budget_fraction 11 and not batch_cap"):
        load_weights(saved, other, TASK)


def test_arrays_of_another_width_do_not_fit(saved: Path) -> None:
    """Arrays that are not those of the network that the other file describes are named."""
    path = saved / "weights.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"width": 8}))
    with pytest.raises(InputError, match=r"does not fit bursty_workload: array .* has shape"):
        load_weights(saved, ENV, TASK)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("weights.json", None, "has no weights.json"),
        ("weights.json", b"{", "not readable JSON"),
        ("weights.json", b"[]", "must be"),
        ("weights.npz", None, "has no weights.npz"),
        ("weights.npz", b"nonsense", "not a readable .npz file"),
        ("weights.npz", b"", "not a readable .npz file"),
        ("weights.npz", npy(), "not a readable .npz file"),
    ],
)
def test_broken_files(saved: Path, name: str, content: bytes | None, message: str) -> None:
    """Missing and unreadable files get a sentence."""
    if content is None:
        (saved / name).unlink()
    else:
        (saved / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        load_weights(saved, ENV, TASK)


@pytest.mark.parametrize("field", ["spec_version", "knobs", "features", "width", "recurrent"])
def test_wrong_fields(saved: Path, field: str) -> None:
    """Fields of another version are named."""
    path = saved / "weights.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: "x"}))
    with pytest.raises(InputError, match=field):
        load_weights(saved, ENV, TASK)


@pytest.mark.parametrize("change", ["missing", "extra", "infinite", "text"])
def test_wrong_arrays(saved: Path, change: str) -> None:
    """Arrays that are missing, unknown, not finite or no numbers are named."""
    path = saved / "weights.npz"
    arrays = dict(np.load(path))
    if change == "missing":
        del arrays["normaliser/mean"]
    elif change == "extra":
        arrays["more"] = np.zeros(3)
    elif change == "text":
        arrays["normaliser/mean"] = arrays["normaliser/mean"].astype(str)
    else:
        arrays["normaliser/mean"] = np.full_like(arrays["normaliser/mean"], np.inf)
    np.savez(path, **arrays)
    with pytest.raises(InputError, match="more" if change == "extra" else "normaliser/mean"):
        load_weights(saved, ENV, TASK)


@pytest.mark.parametrize("place", range(0, 12_000, 997))
def test_damage_anywhere_is_refused_or_harmless(saved: Path, place: int) -> None:
    """Whatever byte of the archive is wrong, there is a sentence or a policy, nothing else."""
    path = saved / "weights.npz"
    data = bytearray(path.read_bytes())
    data[place % len(data)] ^= 0xFF
    path.write_bytes(data)
    try:
        policy = load_weights(saved, ENV, TASK)
    except InputError as error:
        assert "\n" not in str(error)
    else:
        leaves = jax.tree.leaves((policy.params, policy.normaliser))
        assert all(np.isfinite(leaf).all() for leaf in leaves)


@pytest.mark.parametrize("task", task_names())
def test_every_task_has_weights(task: str) -> None:
    """The packaged weights load, are of this version of the task, and say how they were made."""
    load_weights(packaged_weights(task), jaxserve.make(task), task)
    about = json.loads((packaged_weights(task) / "weights.json").read_text())
    assert about["task"] == task and about["task_version"] == load_task(task).version
    assert about["provenance"]["command"].startswith("jaxserve train")
    # Those that docs/agents.md tells of, until they are trained again.
    revision = about["provenance"]["revision"].replace("f667fe0b9d67-dirty", "")
    assert not revision.endswith("-dirty")
