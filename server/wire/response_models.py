"""Models of responses, for the OpenAPI schema. Responses are not validated by them, since a step
must be fast; tests hold the responses to the models."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model

from jaxserve.spaces import ACTION_BOUNDS, OBSERVATION_FIELDS


class ResponseModel(BaseModel):
    """A part of a response; further fields may accompany the named ones."""

    model_config = ConfigDict(extra="allow")


class ErrorAnswer(ResponseModel, title="Problem"):
    """Why a request was refused, in one sentence."""

    __qualname__ = "Problem"  # names the schema in OpenAPI

    error: str
    detail: str | list[dict[str, Any]] = Field(
        description="the same sentence, or pydantic's errors of a body's fields"
    )


_ACTION: dict[str, Any] = {knob: (float, ...) for knob in ACTION_BOUNDS}
_Action = create_model("_Action", __base__=ResponseModel, **_ACTION)


class PlayedAction(_Action):
    """Knobs of a window, by name."""


class Information(ResponseModel):
    """Metadata of an observation."""

    session_id: str
    episode_id: str
    episode_number: str = Field(
        description="the server's number of the episode, new at every reset"
    )
    task_id: str
    seed: int
    split: str
    step: int = Field(description="windows played")
    action: PlayedAction | None = Field(description="knobs of the last window; null after a reset")
    reward_parts: dict[str, float]
    requests_completed: float
    requests_good: float = Field(description="completed requests that met all their objectives")
    figures: dict[str, float] = Field(
        description="further figures of the window, among them the requests that others rest on"
    )
    nothing_to_judge: list[str] = Field(
        description="figures of the observation that rest on less than half a request"
    )
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
    """Dashboard at the end of a window."""

    metadata: Information


class LoggedObservation(_Numbers):
    """Dashboard of a window in a log."""


class Observations(_Columns):
    """Dashboards of many sessions: a list for each field, in the order of the request."""


class StepAnswer(ResponseModel):
    """Response of reset and step."""

    observation: PlayedObservation
    reward: float | None
    done: bool
    metadata: Information
    info: Information
    session_id: str


class StepManyAnswer(ResponseModel):
    """Response of step_many: lists in the order of the request."""

    session_id: list[str]
    step: list[int]
    observation: Observations
    reward: list[float]
    done: list[bool]


class DriveAnswer(ResponseModel):
    """Windows played by an agent."""

    results: list[StepAnswer]


class LogEntry(ResponseModel):
    """One window of a log; the first entry is the reset's, without an action."""

    action: PlayedAction | None = None
    observation: LoggedObservation
    metrics: dict[str, float] | None = None
    figures: dict[str, float] | None = Field(None, description="as in the answer of a step")
    reward: float | None
    done: bool | None = None
    driver: str | None = Field(
        None, description="agent of the server that chose the knobs; absent where a client did"
    )
    reason: str | None = Field(
        None, description="reason of a language model whose decision began with the window"
    )


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
    """Grade of an episode; a live one has measured figures and no score."""

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
    episode_number: str | None = Field(None, description="number of a session's episode")
    windows_driven: int | None = Field(
        None, description="windows of a session's episode that agents of the server played"
    )


class BaselineAnswer(ResponseModel):
    """Scores of one agent on every task."""

    agent: str
    seed: int
    split: str
    baseline: dict[str, dict[str, Any]] = Field(
        description="grade by task, or a note why there is none"
    )
    mean_score: float | None


class PlayedColumns(ResponseModel):
    """An episode played by another agent: lists over its windows."""

    observation: dict[str, list[Any]]
    figures: dict[str, list[float]]
    reward: list[float]
    action: list[PlayedAction]


class YardsticksAnswer(ResponseModel):
    """The session's traffic played by other agents."""

    session_id: str
    mean_arrival_rate_rps: float
    agents: dict[str, PlayedColumns]


class ClassesAnswer(ResponseModel):
    """Results of each traffic class: lists over the windows."""

    session_id: str
    steps: int
    classes: list[dict[str, Any]]


class OperatorAnswer(ResponseModel):
    """Decision of the language model, and the windows in which its knobs were held."""

    decision: dict[str, Any]
    results: list[StepAnswer]


class Task(ResponseModel):
    """A task: its model, hardware, knobs, traffic classes and weights."""

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
    """Schemas and reward weights."""

    name: str
    version: str
    action_schema: dict[str, Any]
    observation_schema: dict[str, Any]
    state_schema: dict[str, Any]
    reward_weights: dict[str, dict[str, float]]
    reward_config: dict[str, str]
    agents: list[str]


class HealthAnswer(ResponseModel):
    """Health of the server."""

    status: Literal["healthy", "degraded"]
    active_sessions: int = Field(description="sessions in memory; the log may hold more")
    reason: str | None = None


class RuntimeAnswer(ResponseModel):
    """Runtime of the server."""

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
    """windows of an episode at most."""
    warnings: list[str] = Field(description="environment variables that are set and have no effect")
    live: dict[str, Any] | None = None


class TaskSplit(ResponseModel):
    """A split of all episodes; splits share no seed."""

    name: str
    type: str


class ListedTask(ResponseModel):
    """An entry of a split's list, which POST /reset plays by split and index."""

    id: str
    index: int
    split: str
    task_id: str
    number: int = Field(description="number of the task")
    seed: int
    description: str


class ListedTasks(ResponseModel):
    """A part of a split's list, in its order."""

    tasks: list[ListedTask]


class AllTasks(ListedTasks):
    """A split's whole list."""

    env_name: str


class TaskCount(ResponseModel):
    """Length of a split's list."""

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
"""Responses of OpenEnv's Task API, which OpenEnv leaves untyped."""


class CallAnswer(ResponseModel):
    """JSON-RPC response: a result or an error."""

    jsonrpc: str
    id: int | str | None = None
    result: Any = None
    error: dict[str, Any] | None = None
