"""Facts about the training of weights, and their differences from a task, in words for people."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxserve.datafiles import read_json
from jaxserve.errors import InputWarning
from jaxserve.sim.machine.hardware import gpu_names
from jaxserve.sim.machine.models import model_names

if TYPE_CHECKING:
    from jaxserve.agents.task_setup import TaskSetup

_COMPARED = ("task_digest", "hardware", "model", "table", "trace")
"""Inputs (``jaxserve.tasks.inputs``) that an agent's rewards depend on. A copy of a task under
another name is the same task."""
_WORDS = {
    "model": "{}",
    "num_gpus": "num_gpus {}",
    "tensor_parallel": "tensor_parallel {}",
    "ttft_slo_s": "TTFT objectives {} s",
    "tpot_slo_s": "TPOT objectives {} s",
    "arrival_rate_rps": "{} requests/s",
}
"""Words for a fact of ``facts`` that differs; the GPU is always named."""


def facts(setup: TaskSetup) -> dict[str, Any]:
    """Facts about a task on a deployment, ready for JSON.

    Returns:
      names of the GPU and the model; ``num_gpus`` replicas of ``tensor_parallel`` GPUs; least and
      largest objective of TTFT and TPOT over the streams, s; mean arrivals per second.
    """
    streams, deployment = setup.spec.streams, setup.spec.deployment
    ttft = [stream.ttft_slo_s for stream in streams]
    tpot = [stream.tpot_slo_s for stream in streams]
    return {
        "gpu": _name(setup.inputs["hardware"]),
        "model": _name(setup.inputs["model"]),
        "num_gpus": deployment.num_gpus,
        "tensor_parallel": deployment.tensor_parallel,
        "ttft_slo_s": [min(ttft), max(ttft)],
        "tpot_slo_s": [min(tpot), max(tpot)],
        "arrival_rate_rps": round(float(setup.env.reward.expected_requests_per_s), 3),
    }


def trained_elsewhere(weights: Path, setup: TaskSetup) -> str | None:
    """Sentence that weights were trained on something else than ``setup``; None if they were not.

    Inputs are compared by their contents, where both sides name them. Packaged GPUs and models are
    compared by name, because later versions describe them by more constants; what an agent sees of
    these is in the latency table.

    Args:
      weights: directory of ``weights.json``.

    Returns:
      the sentence; None if the weights were trained on the same, do not say on what, or are not
      there.

    Raises:
      InputError: the file is unreadable.
    """
    path = weights / "weights.json"
    if not path.is_file():
        return None
    provenance = _inside(read_json(path, str(path)), "provenance")
    theirs, ours = _inside(provenance, "inputs"), setup.inputs
    differs = [
        name
        for name in _COMPARED
        if name in theirs and name in ours and not _same(name, theirs[name], ours[name])
    ]
    # Numbers and knobs of the user's own; a task as it is has none.
    if theirs.get("own") != ours.get("own"):
        differs.append("own")
    if not differs:
        return None
    here = facts(setup)
    named = {"gpu": _name(theirs.get("hardware")), "model": _name(theirs.get("model"))}
    there = named | dict(_inside(provenance, "trained_on"))
    unlike = [name for name in _WORDS if name in there and there[name] != here[name]]
    was = [*_said(there, unlike), *_unnamed(theirs, ours, differs)]
    again = "task_digest" in differs and theirs.get("task") == ours["task"]
    return (
        f"these weights were trained on {'another version of ' * again}{theirs.get('task')} "
        f"({', '.join(was)}); they play {ours['task']} ({', '.join(_said(here, unlike))}) here, on "
        "which they may do worse than a constant setting"
    )


def warn_trained_elsewhere(weights: Path, setup: TaskSetup) -> None:
    """An InputWarning with the sentence of ``trained_elsewhere``, if there is one."""
    sentence = trained_elsewhere(weights, setup)
    if sentence is not None:
        warnings.warn(sentence, InputWarning, stacklevel=2)


def _same(name: str, theirs: Any, ours: Any) -> bool:
    packaged = {"hardware": gpu_names, "model": model_names}
    if name in packaged and _name(ours) in packaged[name]():
        return _name(theirs) == _name(ours)
    return theirs == ours


def _said(known: Mapping[str, Any], unlike: Collection[str]) -> list[str]:
    """The GPU and the facts that differ, in words."""
    return [str(known["gpu"]), *(_WORDS[name].format(_span(known[name])) for name in unlike)]


def _unnamed(theirs: Mapping[str, Any], ours: Mapping[str, Any], differs: list[str]) -> list[str]:
    """Differences that no fact tells, in words about ``theirs``."""
    found = []
    for name in ("hardware", "model"):
        if name in differs and _name(theirs[name]) == _name(ours[name]):
            found.append(f"other constants of the {'GPU' if name == 'hardware' else name}")
    # Another GPU or model has another table anyway.
    if "table" in differs and not {"hardware", "model"} & set(differs):
        found.append("another latency table")
    if "own" in differs:
        found.append("other objectives, knobs or deployment")
    if "trace" in differs:
        found.append("no trace" if theirs["trace"] is None else "another trace")
    return found


def _span(value: Any) -> str:
    """A number or a name; a pair as its least and largest number."""
    ends = list(dict.fromkeys(value)) if isinstance(value, list) else [value]
    return " to ".join(str(end) for end in ends)


def _name(described: Any) -> str:
    """The name in an input of the form "name digest"."""
    return str(described).rpartition(" ")[0] or str(described)


def _inside(content: Any, name: str) -> Mapping[str, Any]:
    """A group of a file; an empty one where a file of an earlier version has none."""
    found = content.get(name) if isinstance(content, Mapping) else None
    return found if isinstance(found, Mapping) else {}
