"""OpenEnv's action, observation and state, and the bodies of responses."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import (
    Field,
    create_model,
    model_validator,
)

from jaxserve import checks
from jaxserve.fields import Entry, Knob
from jaxserve.spaces import ACTION_BOUNDS, KNOB_FIELDS, KNOBS, OBSERVATION_FIELDS
from server.sessions.programs import Knobs, Window
from server.sessions.session import BatchView, View
from server.wire.error_sentences import check_names, complaint
from server.wire.openenv_api import Action, Observation, State
from server.wire.spellings import ALIASES, SPELLINGS, TRUE_OR_FALSE, knob_values

LIVE, SIMULATED = "live", "simulated"
"""Modes of a server and of its responses."""
SESSION_ID = r"^[A-Za-z0-9_-]{1,64}$"
"""Pattern of a session id."""
_RESTS_ON = {
    "p50_ttft_ms": "first_tokens",
    "p99_ttft_ms": "first_tokens",
    "p50_itl_ms": "decoding",
    "mean_itl_ms": "decoding",
    "slo_compliance_rate": "ended",
    "slo_violation_rate": "ended",
    "estimated_cost_per_1k": "good",
}
"""The requests of ``programs.window_figures`` that a figure of an observation rests on."""
_NAMES = dict.fromkeys((*KNOBS, *ALIASES, "metadata")).keys()
_OWN_NAMES = frozenset((*KNOBS, "metadata"))
_AS_THEY_ARE = frozenset((int, float, dict))
"""Types of values without other spellings."""
_in_order = operator.attrgetter(*KNOBS)


def _knob(knob: Knob) -> Any:
    bound = knob.bound
    return int if bound.integer else float, Field(
        knob.default,
        ge=bound.low,
        le=bound.high,
        title=knob.label,
        description=knob.text,
        json_schema_extra={  # for the page
            "names": list(knob.names),
            "octaves": knob.octaves,
            "spared_gpus": knob.spared_gpus,
        },
    )


def _entry(name: str, entry: Entry) -> Any:
    about = f"{entry.meaning}, {entry.unit}"
    extra: dict[str, Any] = {"rests_on": _RESTS_ON[name]} if name in _RESTS_ON else {}
    if entry.shape:
        return list[float], Field([entry.idle] * entry.shape[0], description=about)
    return float, Field(entry.idle, ge=0, le=entry.high, description=about, json_schema_extra=extra)


_Knobs = create_model(
    "_Knobs", __base__=Action, **{name: _knob(knob) for name, knob in KNOB_FIELDS.items()}
)
_Entries = create_model(
    "_Entries",
    __base__=Observation,
    **{name: _entry(name, entry) for name, entry in OBSERVATION_FIELDS.items()},
)


class ActionModel(_Knobs, title="ServeAction"):
    """The knobs for the next window; absent ones have their default."""

    __qualname__ = "ServeAction"  # names the schema in OpenAPI

    @model_validator(mode="before")
    @classmethod
    def _other_names(cls, data: Any) -> Any:
        return plain_names(data) if isinstance(data, dict) else data

    def knobs(self) -> Knobs:
        """The action as programs take it."""
        return tuple(map(float, _in_order(self)))

    def number(self) -> int | None:
        """``metadata.step``: number of the window, so that a repeated request is refused.

        Raises:
          InputError: the value is no whole number.
        """
        number = self.metadata.get("step")
        if number is not None and (isinstance(number, bool) or not isinstance(number, int)):
            checks.refuse("metadata.step", number, "a whole number")
        return number


def plain_names(action: Mapping[str, Any]) -> dict[str, Any]:
    """An action under the knobs' own names, with tiers and switches as numbers.

    Raises:
      PydanticCustomError: a name is unknown or comes twice, or a number is a boolean.
    """
    if action.keys() <= _OWN_NAMES and _AS_THEY_ARE.issuperset(map(type, action.values())):
        return dict(action)
    check_names(action, _NAMES)
    plain: dict[str, Any] = {}
    for name, value in action.items():
        knob = ALIASES.get(name, name)
        if knob in plain:
            raise complaint(f"{knob} is given twice; name it once")
        if isinstance(value, str):
            value = SPELLINGS.get(knob, {}).get(value.upper(), value)
        if isinstance(value, bool) and knob in KNOBS and knob not in TRUE_OR_FALSE:
            raise complaint(f"{knob} is {value}; it must be {knob_values(knob)}")
        plain[knob] = value
    return plain


def checked_session_id(value: Any) -> str:
    """``value``, which must have the form of a session id.

    Raises:
      InputError: the value has another form.
    """
    if not isinstance(value, str) or not re.fullmatch(SESSION_ID, value):
        checks.refuse("session_id", value, "the id that reset returned")
    return value


class ObservationModel(_Entries, title="ServeObservation"):
    """Dashboard at the end of a window; see ``jaxserve.types.ServeObservation``."""

    __qualname__ = "ServeObservation"  # names the schema in OpenAPI


class ServeState(State):
    """Totals of a session's episode."""

    session_id: str | None = None
    task_id: str | None = None
    seed: int | None = None
    split: str | None = None
    total_requests_served: float = 0.0
    total_slo_violations: float = 0.0
    cumulative_reward: float = 0.0
    elapsed_simulated_time_s: float = 0.0
    workload_phase: str = "idle"
    """arrival rate relative to the task's mean: idle, quiet, normal or busy."""
    done: bool = False


def observation(view: View) -> ObservationModel:
    """The last window of a session as OpenEnv's observation, without validation."""
    return ObservationModel.model_construct(
        **view.window.observation,
        reward=view.window.reward,
        done=view.window.done,
        metadata=information(view),
    )


def information(view: View) -> dict[str, Any]:
    """Metadata of an observation."""
    mode = {} if view.live is None else {"mode": LIVE, "live": dict(view.live)}
    return {
        "session_id": view.session_id,
        "episode_id": view.episode_id,
        "episode_number": view.episode_number,
        "task_id": view.episode.task,
        "seed": view.episode.seed,
        "split": view.episode.split,
        "step": view.steps,
        "action": None if view.knobs is None else action_fields(view.knobs),
        "reward_parts": view.window.parts,
        "requests_completed": view.window.completed,
        "requests_good": view.window.good,
        "figures": view.window.figures,
        "nothing_to_judge": nothing_to_judge(view.window.figures),
        "truncated": view.window.done,
    } | mode


_FEWEST = 0.5
"""Requests, below which a share, a latency or a price says nothing."""


def nothing_to_judge(figures: Mapping[str, float]) -> list[str]:
    """Names of an observation's figures that rest on less than half a request.

    Their numbers stay finite, and those of the simulator, for agents that were trained on them; who
    reads them is shown nothing in their place.

    Args:
      figures: of the window; empty where they are not known, and then nothing is said.
    """
    return [name for name, basis in _RESTS_ON.items() if figures.get(basis, _FEWEST) < _FEWEST]


def readable(observation: Mapping[str, Any], figures: Mapping[str, float]) -> dict[str, Any]:
    """An observation for a language model: None where there is nothing to judge."""
    return dict(observation) | dict.fromkeys(nothing_to_judge(figures))


def readable_answer(view: View) -> dict[str, Any]:
    """``step_answer`` for a language model: None where there is nothing to judge."""
    answer = step_answer(view)
    return answer | {"observation": readable(answer["observation"], view.window.figures)}


def played(view: View) -> dict[str, Any]:
    """Metadata of a session's grade: the episode, and windows played by agents of the server."""
    return {"episode_number": view.episode_number, "windows_driven": view.driven}


def action_fields(knobs: Knobs) -> dict[str, float]:
    """An action by the knobs' names; whole numbers as integers."""
    return {
        knob: bound.number(value)
        for (knob, bound), value in zip(ACTION_BOUNDS.items(), knobs, strict=True)
    }


def step_answer(view: View) -> dict[str, Any]:
    """Body of the response to reset and step."""
    about = information(view)
    return {
        "observation": {**view.window.observation, "task_id": about["task_id"], "metadata": about},
        "reward": view.window.reward,
        "done": view.window.done,
        "metadata": about,
        "info": about | _as_before(view),
        "session_id": view.session_id,
    }


def socket_answer(view: View) -> dict[str, Any]:
    """Data of the answer to a step on a WebSocket, as OpenEnv writes ``observation``."""
    about = information(view)
    return {
        "observation": {**view.window.observation, "metadata": about},
        "reward": view.window.reward,
        "done": view.window.done,
        "metadata": about,
    }


_METRICS = (
    "p50_ttft_ms",
    "p99_ttft_ms",
    "p50_itl_ms",
    "throughput_tps",
    "gpu_memory_used_gb",
    "estimated_cost_per_1k",
    "spec_acceptance_rate",
    "eviction_events",
)


def _as_before(view: View) -> dict[str, Any]:
    """Fields of ``info`` for clients of earlier projects, from the last window."""
    seen = view.window.observation
    return {
        "timestep": view.steps,
        "metrics": {name: seen[name] for name in _METRICS}
        | {"requests_served": view.window.completed, "slo_violations": view.window.failed},
        "workload": {
            "arrival_rate": seen["request_arrival_rate"],
            "queue_depth": seen["queue_depth"],
            "mean_prompt_length": seen["mean_prompt_length"],
            "phase": _phase(view),
            "step_index": view.steps,
        },
    }


def step_many_answer(view: BatchView) -> dict[str, Any]:
    """Body of the response to step_many: lists in the order of the request."""
    windows = view.windows
    return {
        "session_id": view.session_ids,
        "step": view.steps,
        "observation": windows.observation,
        "reward": windows.reward,
        "done": windows.done,
    }


def state(view: View) -> ServeState:
    """Totals of a session's episode."""
    return ServeState(
        episode_id=view.episode_id,
        step_count=view.steps,
        session_id=view.session_id,
        task_id=view.episode.task,
        seed=view.episode.seed,
        split=view.episode.split,
        total_requests_served=view.completed,
        total_slo_violations=view.failed,
        cumulative_reward=view.cumulative_reward,
        elapsed_simulated_time_s=view.steps * view.window_s,
        workload_phase=_phase(view),
        done=view.window.done,
    )


def _phase(view: View) -> str:
    if view.load == 0.0:
        return "idle"
    return "quiet" if view.load < 0.75 else "busy" if view.load > 1.25 else "normal"


def episode_log(
    view: View,
    knobs: Sequence[Knobs],
    windows: Sequence[Window],
    choosers: Sequence[Mapping[str, str]],
) -> dict[str, Any]:
    """A whole episode as a file, which ``POST /grader`` takes.

    Args:
      windows: window of the reset, then one for each action.
      choosers: further fields of each window: who chose its knobs, and why.
    """
    entries: list[dict[str, Any]] = [{"observation": windows[0].observation, "reward": None}]
    for action, window, chooser in zip(knobs, windows[1:], choosers, strict=True):
        entries.append(
            {
                "action": action_fields(action),
                "observation": window.observation,
                "metrics": window.parts,
                "figures": window.figures,
                "reward": window.reward,
                "done": window.done,
                **chooser,
            }
        )
    return {
        "task_id": view.episode.task,
        "task_version": view.episode.task_version,
        "seed": view.episode.seed,
        "split": view.episode.split,
        "config": view.episode.weights | view.episode.overrides,
        "episode_id": view.episode_id,
        "episode_number": view.episode_number,
        "episode_log": entries,
    } | ({} if view.live is None else {"mode": LIVE})
