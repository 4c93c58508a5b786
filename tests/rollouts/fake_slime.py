"""Stand-ins for the parts of slime v0.3.0 and v0.3.1 that a rollout function uses.

Fields, their defaults and how ``from_dict`` treats unknown ones are as in ``slime/utils/types.py``
of each; the tokenizer is one of characters.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, make_dataclass
from enum import Enum
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

RELEASES = {"v0.3.0": "group_id", "v0.3.1": "rollout_id"}
"""Names of a sample's rollout in each release."""


class Status(Enum):
    """Status of a sample, in both releases."""

    PENDING = "pending"
    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ABORTED = "aborted"
    FAILED = "failed"


_FIELDS: dict[str, Any] = {
    "group_index": None,
    "index": None,
    "prompt": "",
    "tokens": list,
    "response": "",
    "response_length": 0,
    "label": None,
    "reward": None,
    "loss_mask": None,
    "weight_versions": list,
    "rollout_log_probs": None,
    "remove_sample": False,
    "status": Status.PENDING,
    "metadata": dict,
    "train_metadata": None,
}


class _Sample:
    """Methods of a sample."""

    Status = Status

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Any:
        """Unknown fields become attributes, and the status is by its value."""
        known = set(cls.__dataclass_fields__)  # type: ignore[attr-defined]
        given = {**data, "status": Status(data["status"])}
        sample = cls(**{name: value for name, value in given.items() if name in known})
        for name in given.keys() - known:
            sample.keep(name, given[name])
        return sample

    def keep(self, name: str, value: Any) -> None:
        """An unknown field."""
        setattr(self, name, value)

    def get_reward_value(self, args: Any) -> float:
        """The reward, by its key where there is one."""
        reward: Any = vars(self)["reward"]
        return reward[args.reward_key] if args.reward_key else reward


class _Before(_Sample):
    """v0.3.0 reads ``rollout_id`` as another word for ``group_id``, and tells nobody of it."""

    def __getattribute__(self, name: str) -> Any:
        if name == "rollout_id":
            raise AttributeError("rollout_id is write-only")
        return super().__getattribute__(name)

    def keep(self, name: str, value: Any) -> None:
        if name != "rollout_id":
            setattr(self, name, value)
        elif vars(self).get("group_id") is None:
            vars(self)["group_id"] = value


def sample_type(release: str) -> Any:
    """The class ``Sample`` of a release."""
    fields: list[Any] = [(RELEASES[release], Any, None)]
    for name, default in _FIELDS.items():
        made = field(default_factory=default) if default in (list, dict) else field(default=default)
        fields.append((name, Any, made))
    base = _Before if release == "v0.3.0" else _Sample
    return make_dataclass("Sample", fields, bases=(base,))


@dataclass
class TrainOutput:
    """``RolloutFnTrainOutput``."""

    samples: list[Any]
    metrics: dict[str, Any] | None = None


@dataclass
class EvalOutput:
    """``RolloutFnEvalOutput``."""

    data: dict[str, dict[str, Any]]
    metrics: dict[str, Any] | None = None


def install(release: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes the modules importable. Returns ``Sample``."""
    sample = sample_type(release)
    tokenizer = SimpleNamespace(decode=lambda ids: "".join(map(chr, ids)))
    modules = {
        "slime": {},
        "slime.utils": {},
        "slime.utils.types": {"Sample": sample},
        "slime.utils.processing_utils": {"load_tokenizer": lambda name, **more: tokenizer},
        "slime.rollout": {},
        "slime.rollout.base_types": {
            "RolloutFnTrainOutput": TrainOutput,
            "RolloutFnEvalOutput": EvalOutput,
        },
    }
    for name, held in modules.items():
        module = ModuleType(name)
        vars(module).update(held)
        monkeypatch.setitem(sys.modules, name, module)
    return sample


class DataSource:
    """A source of prompts, with as many samples of each as a group has."""

    def __init__(self, sample: Any, prompts: list[Any], size: int) -> None:
        self._sample, self._prompts, self._size = sample, prompts, size

    def get_samples(self, count: int) -> list[list[Any]]:
        """Groups; an index is that of a sample among all."""
        return [
            [
                self._sample(
                    group_index=group,
                    index=group * self._size + place,
                    prompt=self._prompts[group],
                    label="the label",
                )
                for place in range(self._size)
            ]
            for group in range(count)
        ]
