"""What goes over the wire: OpenEnv's action, observation and state, and the bodies of requests."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    create_model,
    model_validator,
)
from pydantic_core import PydanticCustomError

from jaxserve import checks
from jaxserve.fields import Entry, Knob
from jaxserve.seeds import MAX_SEED
from jaxserve.spaces import ACTION_BOUNDS, KNOB_FIELDS, KNOBS, OBSERVATION_FIELDS
from server.sessions.engine import Knobs, Window
from server.sessions.session import BatchView, View
from server.wire.openenv_api import Action, Observation, State
from server.wire.sentences import check_names, complaint, sentence
from server.wire.spellings import ALIASES, SPELLINGS, TRUE_OR_FALSE, knob_values

LIVE, SIMULATED = "live", "simulated"
"""Modes of a server and of what it answers."""
MAX_SESSIONS = 1024
"""Sessions that one ``step_many`` advances at most."""

_SESSION_ID = r"^[A-Za-z0-9_-]{1,64}$"
SessionId = Annotated[str, StringConstraints(pattern=_SESSION_ID)]
Label = Annotated[str, StringConstraints(max_length=255)]
Seed = Annotated[int, Field(ge=0, le=MAX_SEED, strict=True)]


def _name_or_number(task: Any) -> Any:
    if isinstance(task, bool) or not isinstance(task, int | str):
        raise PydanticCustomError("task", "no task")
    return task


TaskId = Annotated[int | str, BeforeValidator(_name_or_number)]
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
            "below_gpus": knob.below_gpus,
        },
    )


def _entry(entry: Entry) -> Any:
    about = f"{entry.meaning}, {entry.unit}"
    if entry.shape:
        return list[float], Field([entry.idle] * entry.shape[0], description=about)
    return float, Field(entry.idle, ge=0, le=entry.high, description=about)


_Knobs = create_model(
    "_Knobs", __base__=Action, **{name: _knob(knob) for name, knob in KNOB_FIELDS.items()}
)
_Entries = create_model(
    "_Entries",
    __base__=Observation,
    **{name: _entry(entry) for name, entry in OBSERVATION_FIELDS.items()},
)


class ServeAction(_Knobs):
    """The six knobs for the next window; one that is left out has its default."""

    @model_validator(mode="before")
    @classmethod
    def _other_names(cls, data: Any) -> Any:
        return plain_names(data) if isinstance(data, dict) else data

    def knobs(self) -> Knobs:
        """As the engine has it."""
        return tuple(map(float, _in_order(self)))

    def number(self) -> int | None:
        """``metadata.step``: the window this is meant for, so that a repeated request does no harm.

        Raises:
          InputError: it is no whole number.
        """
        number = self.metadata.get("step")
        if number is not None and (isinstance(number, bool) or not isinstance(number, int)):
            checks.refuse("metadata.step", number, "a whole number")
        return number


def plain_names(action: Mapping[str, Any]) -> dict[str, Any]:
    """An action under the knobs' own names, with tiers and switches as numbers.

    Raises:
      PydanticCustomError: a name is unknown or comes twice, or a switch stands for a number.
    """
    check_names(action, (*KNOBS, *ALIASES, "metadata"))
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
    """``value``, if it can be the id of a session.

    Raises:
      InputError: it cannot.
    """
    if not isinstance(value, str) or not re.fullmatch(_SESSION_ID, value):
        checks.refuse("session_id", value, "the id that reset returned")
    return value


class ServeObservation(_Entries):
    """What the dashboard shows at the end of a window; see ``jaxserve.types.ServeObservation``."""


class ServeState(State):
    """Where a session stands."""

    session_id: str | None = None
    task_id: str | None = None
    seed: int | None = None
    split: str | None = None
    total_requests_served: float = 0.0
    total_slo_violations: float = 0.0
    cumulative_reward: float = 0.0
    elapsed_simulated_time_s: float = 0.0
    workload_phase: str = "idle"
    """how much traffic arrives: idle, quiet, normal or busy."""
    done: bool = False


def observation(view: View) -> ServeObservation:
    """The last window of a session as OpenEnv has it. Values come from inside: not validated."""
    return ServeObservation.model_construct(
        **view.window.observation,
        reward=view.window.reward,
        done=view.window.done,
        metadata=information(view),
    )


def information(view: View) -> dict[str, Any]:
    """What goes beside an observation."""
    mode = {} if view.live is None else {"mode": LIVE, "live": dict(view.live)}
    return {
        "session_id": view.session_id,
        "episode_id": view.episode_id,
        "task_id": view.episode.task,
        "seed": view.episode.seed,
        "split": view.episode.split,
        "step": view.steps,
        "action": None if view.knobs is None else action_fields(view.knobs),
        "reward_parts": view.window.parts,
        "requests_completed": view.window.completed,
        "requests_good": view.window.good,
        "truncated": view.window.done,
    } | mode


def action_fields(knobs: Knobs) -> dict[str, float]:
    """An action by the knobs' names, whole where they are."""
    return {
        knob: bound.number(value)
        for (knob, bound), value in zip(ACTION_BOUNDS.items(), knobs, strict=True)
    }


def step_answer(view: View) -> dict[str, Any]:
    """The body of an answer to reset and step."""
    about = information(view)
    return {
        "observation": {**view.window.observation, "task_id": about["task_id"], "metadata": about},
        "reward": view.window.reward,
        "done": view.window.done,
        "metadata": about,
        "info": about | _as_before(view),
        "session_id": view.session_id,
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
    """What earlier projects have in ``info``, from the window that was observed."""
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
    """The body of an answer to step_many: lists in the order of the request."""
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


class Body(BaseModel):
    """A body that has no other fields than those it names."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _known(cls, data: Any) -> Any:
        if isinstance(data, Mapping):
            check_names(data, cls.model_fields)
        return data


class EpisodeBody(Body):
    """Which episode a request is about."""

    task_id: TaskId | None = Field(None, description="name or number, see GET /tasks")
    task: TaskId | None = Field(None, description="the same as task_id")
    seed: Seed | None = Field(
        None, description="of the traffic; reset takes a random one if it is left out"
    )
    split: Label | None = Field(None, description="train (default), validation or test")
    config: dict[Label, Any] | None = Field(None, description="reward weights and task overrides")

    @model_validator(mode="after")
    def _one_task(self) -> Self:
        if None not in (self.task, self.task_id) and str(self.task) != str(self.task_id):
            raise complaint(
                f"task_id is {self.task_id!r:.60} and task is {self.task!r:.60}; name one of them"
            )
        return self

    def named_task(self) -> int | str | None:
        """The task, by whichever field it is named."""
        return self.task if self.task_id is None else self.task_id


class ResetBody(EpisodeBody):
    """Body of ``POST /reset``."""

    index: Annotated[int, Field(ge=0, strict=True)] | None = Field(
        None, description="entry of the split's list"
    )
    episode_id: Label | None = None
    session_id: SessionId | None = Field(None, description="begin the episode in this session")


def reset_arguments(body: ResetBody, session_id: str | None) -> dict[str, Any]:
    """Arguments of ``Service.reset``."""
    return {
        "task": body.named_task(),
        "seed": body.seed,
        "split": body.split,
        "index": body.index,
        "config": body.config,
        "episode_id": body.episode_id,
        "session_id": session_id,
    }


class StepBody(Body):
    """Body of ``POST /step``: an action, or its fields side by side with the rest."""

    action: ServeAction
    session_id: SessionId | None = None
    timeout_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        None, description="accepted for OpenEnv; a window takes under a millisecond"
    )
    request_id: Label | None = None

    @model_validator(mode="before")
    @classmethod
    def _flat(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or "action" in data:
            return data
        beside = {name: data[name] for name in data if name in cls.model_fields}
        action = {name: data[name] for name in data if name not in cls.model_fields}
        return {"action": action, **beside} if action else beside


class Pair(Body):
    """One session and its next action."""

    session_id: SessionId
    action: ServeAction


class StepManyBody(Body):
    """Body of ``POST /step_many``."""

    steps: Annotated[list[Pair], Field(min_length=1, max_length=MAX_SESSIONS)]


class EpisodeObject(Body):
    """An episode's log as an earlier project keeps it: a list for each of its parts."""

    task_id: Label
    actions: list[dict[str, Any]]
    observations: list[dict[str, Any]] = Field(description="the reset's, then one for each action")
    rewards: list[float]
    final_state: dict[str, Any] | None = None

    def entries(self) -> list[dict[str, Any]]:
        """The same, a mapping for each window; figures that are missing are not compared."""
        entries: list[dict[str, Any]] = [{"action": action} for action in self.actions]
        for entry, reward in zip(entries, self.rewards[-len(entries) :], strict=False):
            entry["reward"] = reward
        for entry, observation in zip(entries, self.observations[1:], strict=False):
            entry["observation"] = observation
        return entries


class GradeBody(EpisodeBody):
    """Body of ``POST /grader``: a session, or the actions or the log of an episode.

    The file that ``GET /episode_log`` gives is one.
    """

    session_id: SessionId | None = None
    actions: list[ServeAction] | None = None
    episode_log: list[dict[str, Any]] | None = Field(
        None, description="a mapping for each window, or one mapping with a list for each part"
    )
    actions_taken: Annotated[int, Field(ge=0, strict=True)] | None = Field(
        None, description="must be the number of actions, if it is given"
    )
    task_version: int | None = Field(None, description="must be the task's, if it is given")
    episode_id: Label | None = Field(None, description="of a log; nothing depends on it")
    mode: Label | None = Field(None, description="of a log; a live one has no simulated score")

    @model_validator(mode="before")
    @classmethod
    def _one_mapping(cls, data: Any) -> Any:
        """A log as ``EpisodeObject``, as a list."""
        if not isinstance(data, Mapping) or not isinstance(data.get("episode_log"), Mapping):
            return data
        try:
            log = EpisodeObject.model_validate(data["episode_log"])
        except ValidationError as error:
            raise complaint(f"episode_log: {sentence(error.errors(include_url=False))}") from None
        stated = data.get("task_id") or data.get("task")
        if isinstance(stated, str) and not stated.isdecimal() and stated != log.task_id:
            raise complaint(f"task_id is {stated!r:.60} and the log's is {log.task_id!r:.60}")
        named = {"task_id": log.task_id} if stated is None else {}
        return {**data, **named, "episode_log": log.entries()}


class OperateBody(Body):
    """Body of ``POST /operator``: the language model decides once, and its knobs are held."""

    session_id: SessionId | None = None
    windows: Annotated[int, Field(ge=1, le=200, strict=True)] = 10


class DriveBody(Body):
    """Body of ``POST /agent``: an agent plays a session on."""

    session_id: SessionId | None = None
    agent: Label = "heuristic"
    windows: Annotated[int, Field(ge=1, le=200, strict=True)] = 1


class BaselineBody(Body):
    """Body of ``POST /baseline``: one episode of every task, played by this server."""

    agent: Label = "heuristic"
    seed: Seed = 0
    use_openai: Annotated[bool, Field(strict=True)] = Field(
        False, description="the operator's language model instead of an agent, within its budget"
    )


def episode_log(view: View, knobs: Sequence[Knobs], windows: Sequence[Window]) -> dict[str, Any]:
    """A file with a whole episode; its ``episode_log`` is what ``POST /grader`` takes.

    Args:
      windows: the reset's, then one for each action.
    """
    entries: list[dict[str, Any]] = [{"observation": windows[0].observation, "reward": None}]
    for action, window in zip(knobs, windows[1:], strict=True):
        entries.append(
            {
                "action": action_fields(action),
                "observation": window.observation,
                "metrics": window.parts,
                "reward": window.reward,
                "done": window.done,
            }
        )
    return {
        "task_id": view.episode.task,
        "task_version": view.episode.task_version,
        "seed": view.episode.seed,
        "split": view.episode.split,
        "config": view.episode.weights | view.episode.overrides,
        "episode_id": view.episode_id,
        "episode_log": entries,
    } | ({} if view.live is None else {"mode": LIVE})
