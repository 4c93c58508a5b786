"""Bodies of requests, with a sentence for each invalid field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

from jaxserve.seeds import MAX_SEED
from server.sessions.session import SessionName
from server.wire.error_sentences import check_names, complaint, sentence
from server.wire.schemas import SESSION_ID, ActionModel

MAX_SESSIONS = 1024
"""Sessions of one ``step_many`` at most."""

MAX_GRADED = 10_000
"""Windows in the body of a request at most; the grader refuses more than an episode has."""

SessionId = Annotated[str, StringConstraints(pattern=SESSION_ID)]
Label = Annotated[str, StringConstraints(max_length=255)]
Graded = Field(max_length=MAX_GRADED)
Seed = Annotated[int, Field(ge=0, le=MAX_SEED, strict=True)]


def _name_or_number(task: Any) -> Any:
    if isinstance(task, bool) or not isinstance(task, int | str):
        raise PydanticCustomError("task", "no task")
    return task


TaskId = Annotated[int | str, BeforeValidator(_name_or_number)]


class Body(BaseModel):
    """A body that refuses unknown fields."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _known(cls, data: Any) -> Any:
        if isinstance(data, Mapping):
            check_names(data, cls.model_fields.keys())
        return data


class EpisodeBody(Body):
    """The episode of a request."""

    task_id: TaskId | None = Field(None, description="name or number, see GET /tasks")
    task: TaskId | None = Field(None, description="another name of task_id")
    seed: Seed | None = Field(
        None, description="seed of the traffic; reset draws one if it is absent"
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
        """The task, by either field."""
        return self.task if self.task_id is None else self.task_id


class ResetBody(EpisodeBody):
    """Body of ``POST /reset``."""

    index: Annotated[int, Field(ge=0, strict=True)] | None = Field(
        None, description="entry of the split's list"
    )
    episode_id: Label | None = None
    session_id: SessionId | None = Field(
        None, description="session in which the episode begins; a new one if absent"
    )


def reset_arguments(body: ResetBody, session: SessionName | None) -> dict[str, Any]:
    """Arguments of ``Service.reset``."""
    return {
        "task": body.named_task(),
        "seed": body.seed,
        "split": body.split,
        "index": body.index,
        "config": body.config,
        "episode_id": body.episode_id,
        "session": session,
    }


class StepBody(Body):
    """Body of ``POST /step``: an action, or its fields beside the others."""

    action: ActionModel
    session_id: SessionId | None = None
    timeout_s: Annotated[float, Field(ge=0.001, le=86_400, allow_inf_nan=False)] | None = Field(
        None, description="accepted for OpenEnv, and not enforced: a window has a length of its own"
    )
    request_id: Label | None = Field(
        None,
        description="a request that repeats the session's last one plays no window, and has the "
        "same answer",
    )

    @model_validator(mode="before")
    @classmethod
    def _flat(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or "action" in data:
            return data
        beside = {name: data[name] for name in data if name in cls.model_fields}
        action = {name: data[name] for name in data if name not in cls.model_fields}
        return {"action": action, **beside} if action else beside


class SessionStep(Body, title="Pair"):
    """One session and its next action."""

    __qualname__ = "Pair"  # names the schema in OpenAPI

    session_id: SessionId
    action: ActionModel


class StepManyBody(Body):
    """Body of ``POST /step_many``."""

    steps: Annotated[list[SessionStep], Field(min_length=1, max_length=MAX_SESSIONS)]


class EpisodeObject(Body):
    """An episode's log as an earlier project writes it: a list for each part."""

    task_id: Label
    actions: Annotated[list[dict[str, Any]], Graded]
    observations: Annotated[list[dict[str, Any]], Graded] = Field(
        description="observation of the reset, then one for each action"
    )
    rewards: Annotated[list[float], Graded]
    final_state: dict[str, Any] | None = None

    def entries(self) -> list[dict[str, Any]]:
        """The log as a mapping for each window; absent figures are not compared."""
        entries: list[dict[str, Any]] = [{"action": action} for action in self.actions]
        for entry, reward in zip(entries, self.rewards[-len(entries) :], strict=False):
            entry["reward"] = reward
        for entry, observation in zip(entries, self.observations[1:], strict=False):
            entry["observation"] = observation
        return entries


class GradeBody(EpisodeBody):
    """Body of ``POST /grader``: a session, or the actions or the log of an episode.

    A file of ``GET /episode_log`` is such a body.
    """

    session_id: SessionId | None = None
    actions: Annotated[list[ActionModel], Graded] | None = None
    episode_log: Annotated[list[dict[str, Any]], Graded] | None = Field(
        None, description="a mapping for each window, or one mapping with a list for each part"
    )
    actions_taken: Annotated[int, Field(ge=0, strict=True)] | None = Field(
        None, description="number of actions, which is checked"
    )
    task_version: int | None = Field(None, description="version of the task, which is checked")
    episode_id: Label | None = Field(None, description="field of a log; ignored")
    episode_number: Label | None = Field(None, description="field of a log; ignored")
    mode: Label | None = Field(
        None, description="field of a log; a live episode has no simulated score"
    )

    @model_validator(mode="before")
    @classmethod
    def _one_mapping(cls, data: Any) -> Any:
        """Converts a log in the form of ``EpisodeObject`` to a list."""
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
    """Body of ``POST /agent``: an agent plays the next windows of a session."""

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
