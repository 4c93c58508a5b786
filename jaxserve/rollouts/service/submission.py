"""A task as it is submitted, read and checked."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jaxserve.checks import JsonObject, one_of, refuse
from jaxserve.rollouts.evaluators import Evaluator, parse_evaluator
from jaxserve.rollouts.harness import Shell, parse_agent
from jaxserve.rollouts.service.settings import check_url

_FIELDS = (
    "task_id",
    "instruction",
    "num_samples",
    "timeout_seconds",
    "runtime",
    "agent",
    "builder",
    "evaluator",
    "environment",
    "callback_url",
    "metadata",
)
BUILDERS = ("prefix_merging", "per_request")
OWN_VARIABLES = frozenset(
    (
        "PATH",
        "HOME",
        "SESSION_ID",
        "TASK_ID",
        "SESSION_DIR",
        "ARTIFACTS_DIR",
        "INSTRUCTION",
        "OPENAI_BASE_URL",
        "OPENAI_API_KEY",
        "OPENAI_MODEL",
        "ANTHROPIC_BASE_URL",
        "ANTHROPIC_API_KEY",
        "GOOGLE_API_URL",
        "GOOGLE_API_KEY",
        "ENVIRONMENT_URL",
        "ENVIRONMENT_SESSION_ID",
    )
)
"""Variables of agents that a task does not set."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,95}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LONGEST_INSTRUCTION = 100_000
"""Bytes; Linux takes no longer argument than 131,072."""


@dataclass(frozen=True)
class Runtime:
    """Where an agent runs: processes of this machine."""

    source: Path | None = None
    """folder of which each agent gets a copy to work in; None begins with an empty one."""
    prepare: tuple[tuple[str, ...], ...] = ()
    """commands that run in the copy before the agent."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """of the agent, beside those that all get."""


@dataclass(frozen=True)
class Task:
    """What is to be done."""

    id: str
    """its name."""
    instruction: str
    """what the agent is told."""
    samples: int
    """sessions that do it."""
    timeout_s: float
    """of a session, from INITIALIZING to the agent's end."""
    runtime: Runtime
    """where the agent runs."""
    agent: Shell
    """how it is started."""
    model: str
    """for which it asks."""
    builder: str
    """``prefix_merging`` or ``per_request``."""
    evaluator: Evaluator
    """what it is worth."""
    environment: Mapping[str, Any] | None
    """``url`` of an environment's server, and arguments of reset."""
    callback_url: str | None
    """that gets the result."""
    metadata: Mapping[str, Any]
    """the submitter's own."""


def parse_task(given: Any) -> Task:
    """A submitted task. What is left out has its default: ``task_id`` a new name.

    Raises:
      InputError: a field is missing, unknown, or cannot be.
    """
    asked = JsonObject(given, "the task", _FIELDS)
    id = asked.get("task_id", secrets.token_hex(8))
    if not isinstance(id, str) or not _NAME.fullmatch(id):
        refuse(
            "the task: task_id",
            id,
            "up to 96 letters, digits, dots, dashes and underscores, a letter or digit first",
        )
    instruction = _plain(asked.name("instruction"), asked.text("instruction"))
    if len(instruction.encode(errors="replace")) > _LONGEST_INSTRUCTION:
        refuse(asked.name("instruction"), instruction, f"at most {_LONGEST_INSTRUCTION} bytes")
    agent = JsonObject(asked.get("agent"), "agent", ("preset", "command", "model"))
    evaluator = asked.get("evaluator", {"name": "session_completed"})
    environment = None
    if asked.get("environment") is not None:
        known = ("url", "task_id", "seed", "split", "index", "config")
        environment = JsonObject(asked["environment"], "environment", known)
        check_url("environment: url", environment.get("url"))
    callback = asked.get("callback_url")
    if isinstance(evaluator, Mapping) and evaluator.get("name") == "env_grade" and not environment:
        refuse("environment", None, "there for the evaluator env_grade")
    return Task(
        id=id,
        instruction=instruction,
        samples=asked.whole("num_samples", 1, 4096, 1),
        timeout_s=asked.number("timeout_seconds", 0.1, 7 * 86_400.0, 1800.0),
        runtime=_runtime(asked.get("runtime", {})),
        agent=parse_agent(agent),
        model=agent.text("model") if "model" in agent else "default",
        builder=one_of("the task: builder", asked.get("builder", BUILDERS[0]), BUILDERS),
        evaluator=parse_evaluator(JsonObject(evaluator, "evaluator")),
        environment=environment,
        callback_url=None if callback is None else check_url("the task: callback_url", callback),
        metadata=asked.inside("metadata") if "metadata" in asked else {},
    )


def _runtime(given: Any) -> Runtime:
    asked = JsonObject(given, "runtime", ("kind", "source", "prepare", "variables"))
    one_of("runtime: kind", asked.get("kind", "local"), ("local",))
    source = asked.get("source")
    if source is not None and (not isinstance(source, str) or not Path(source).is_dir()):
        refuse("runtime: source", source, "a folder of the service's machine")
    prepare = asked.get("prepare", [])
    if not isinstance(prepare, list) or not all(
        isinstance(one, list) and one and all(isinstance(each, str) for each in one)
        for one in prepare
    ):
        refuse("runtime: prepare", prepare, "a list of commands, each a list of texts")
    variables = asked.inside("variables") if "variables" in asked else {}
    for name, value in variables.items():
        if not _VARIABLE.fullmatch(name) or name in OWN_VARIABLES:
            refuse("runtime: variables", name, "names of variables that the service does not set")
        _plain(f"runtime: variables: {name}", value)
    commands = tuple(tuple(one) for one in prepare)
    return Runtime(None if source is None else Path(source).absolute(), commands, dict(variables))


def _plain(name: str, value: Any) -> str:
    """A text that can be an argument of a process."""
    if not isinstance(value, str) or "\0" in value:
        refuse(name, value, "a text without NUL")
    return value
