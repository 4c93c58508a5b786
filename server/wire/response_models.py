"""What answers hold, for the OpenAPI schema. Nothing is checked or written by these: a step must be
fast, and tests hold the real answers to them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model

from jaxserve.spaces import ACTION_BOUNDS, OBSERVATION_FIELDS


class ResponseModel(BaseModel):
    """A part of an answer; what is not named here may come beside it."""

    model_config = ConfigDict(extra="allow")


class ErrorAnswer(ResponseModel, title="Problem"):
    """Why a request was refused, in one sentence."""

    __qualname__ = "Problem"  # names the schema in OpenAPI

    error: str
    detail: str | list[dict[str, Any]] = Field(
        description="the same, or what exactly is wrong with the fields of a body"
    )


_ACTION: dict[str, Any] = {knob: (float, ...) for knob in ACTION_BOUNDS}
_Action = create_model("_Action", __base__=ResponseModel, **_ACTION)


class PlayedAction(_Action):
    """The knobs of a window, by name."""


class Information(ResponseModel):
    """What is said beside an observation."""

    session_id: str
    episode_id: str
    episode_number: str = Field(description="the server's own, another for every reset")
    task_id: str
    seed: int
    split: str
    step: int = Field(description="windows that were played")
    action: PlayedAction | None = Field(description="of the last window; null after a reset")
    reward_parts: dict[str, float]
    requests_completed: float
    requests_good: float = Field(description="those that met all their objectives")
    truncated: bool


_NUMBERS: dict[str, Any] = {
    name: (
        list[float] if entry.shape else float,
        Field(description=f"{entry.meaning}, {entry.unit}"),
    )
    for name, entry in OBSERVATION_FIELDS.items()
}
_COLUMNS: dict[str, Any] = {
    name: (list[list[float]] if entry.shape else list[float], ...)
    for name, entry in OBSERVATION_FIELDS.items()
}
_Numbers = create_model("_Numbers", __base__=ResponseModel, **_NUMBERS)
_Columns = create_model("_Columns", __base__=ResponseModel, **_COLUMNS)


class PlayedObservation(_Numbers):
    """What the dashboard shows at the end of a window."""

    metadata: Information


class LoggedObservation(_Numbers):
    """The same in a log."""


class Observations(_Columns):
    """Of many sessions: a list for each field, in the order of the request."""


class StepAnswer(ResponseModel):
    """Of reset and step."""

    observation: PlayedObservation
    reward: float | None
    done: bool
    metadata: Information
    info: Information
    session_id: str


class StepManyAnswer(ResponseModel):
    """Lists in the order of the request."""

    session_id: list[str]
    step: list[int]
    observation: Observations
    reward: list[float]
    done: list[bool]


class DriveAnswer(ResponseModel):
    """The windows that an agent played."""

    results: list[StepAnswer]


class LogEntry(ResponseModel):
    """One window; the first entry is the reset's and has no action."""

    action: PlayedAction | None = None
    observation: LoggedObservation
    metrics: dict[str, float] | None = None
    reward: float | None
    done: bool | None = None


class EpisodeLog(ResponseModel):
    """A whole episode, as POST /grader takes it."""

    task_id: str
    task_version: int
    seed: int
    split: str
    config: dict[str, Any]
    episode_id: str
    episode_number: str
    episode_log: list[LogEntry]


class GradeAnswer(ResponseModel):
    """What an episode is worth; a live one has no score, and the figures that were measured."""

    score: float | None = Field(description="0 random, 0.5 best static, 1 oracle")
    mean_reward: float
    feedback: str
    task_id: str
    seed: int
    split: str
    breakdown: dict[str, float] | None = None
    goodput_rps: float
    steps: int | None = None
    verified: bool | None = None
    episode_number: str | None = Field(None, description="of a session: which episode it is of")
    windows_driven: int | None = Field(
        None, description="of a session: windows that an agent of the server's own played"
    )


class BaselineAnswer(ResponseModel):
    """Scores of one player on every task."""

    agent: str
    seed: int
    split: str
    baseline: dict[str, dict[str, Any]] = Field(
        description="by task: its grade, or why there is none"
    )
    mean_score: float | None


class PlayedColumns(ResponseModel):
    """An episode in other hands: lists over its windows."""

    observation: dict[str, list[Any]]
    reward: list[float]
    action: list[PlayedAction]


class YardsticksAnswer(ResponseModel):
    """The session's traffic in the hands of other agents."""

    session_id: str
    mean_arrival_rate_rps: float
    agents: dict[str, PlayedColumns]


class ClassesAnswer(ResponseModel):
    """What each class of the traffic got: lists over the windows."""

    session_id: str
    steps: int
    classes: list[dict[str, Any]]


class OperatorAnswer(ResponseModel):
    """What the language model decided, and the windows that its knobs were held."""

    decision: dict[str, Any]
    results: list[StepAnswer]


class Task(ResponseModel):
    """What a task asks."""

    id: int
    task_id: str
    name: str
    title: str
    version: int
    difficulty: str
    description: str
    hardware: str
    model: str
    num_gpus: int
    max_steps: int
    window_s: float
    active_knobs: list[str]
    knob_ranges: dict[str, list[float]]
    default_action: PlayedAction
    classes: list[dict[str, Any]]
    reward_weights: dict[str, float]
    memory_limit_gb: float
    mean_reward_anchors: dict[str, Any] | None


class TasksAnswer(ResponseModel):
    """All tasks."""

    tasks: list[Task]
    action_schema: dict[str, Any]


class InfoAnswer(ResponseModel):
    """Schemas and weights."""

    name: str
    version: str
    action_schema: dict[str, Any]
    observation_schema: dict[str, Any]
    state_schema: dict[str, Any]
    reward_weights: dict[str, dict[str, float]]
    reward_config: dict[str, str]
    agents: list[str]


class HealthAnswer(ResponseModel):
    """Whether all is well."""

    status: Literal["healthy", "degraded"]
    active_sessions: int = Field(description="sessions in memory; the log may hold more")
    reason: str | None = None


class RuntimeAnswer(ResponseModel):
    """What runs."""

    mode: str
    version: str
    jax: str
    backend: str
    compiling: bool
    uptime_s: float
    live_sessions: int
    durable_sessions: bool
    default_session: bool
    max_connections: int
    max_windows: int
    """of an episode."""
    warnings: list[str] = Field(description="variables that are set and have no effect")
    live: dict[str, Any] | None = None


class TaskSplit(ResponseModel):
    """A part of all episodes; the seeds of different ones never meet."""

    name: str
    type: str


class ListedTask(ResponseModel):
    """An episode that POST /reset plays by its split and index."""

    id: str
    index: int
    split: str
    task_id: str
    number: int = Field(description="of the task")
    seed: int
    description: str


class ListedTasks(ResponseModel):
    """Some of a split's list, in its order."""

    tasks: list[ListedTask]


class AllTasks(ListedTasks):
    """A split's whole list."""

    env_name: str


class TaskCount(ResponseModel):
    """How long a split's list is."""

    num_tasks: int


class OneTask(ResponseModel):
    """One entry of a split's list."""

    task: ListedTask


TASK_API: dict[tuple[str, str], Any] = {
    ("GET", "/{env_name}/splits"): list[TaskSplit],
    ("POST", "/{env_name}/tasks"): AllTasks,
    ("POST", "/{env_name}/num_tasks"): TaskCount,
    ("POST", "/{env_name}/task"): OneTask,
    ("POST", "/{env_name}/task_range"): ListedTasks,
}
"""What OpenEnv's own routes answer, which OpenEnv leaves open."""


class CallAnswer(ResponseModel):
    """JSON-RPC: a result or an error."""

    jsonrpc: str
    id: int | str | None = None
    result: Any = None
    error: dict[str, Any] | None = None
