"""Reads and checks a submitted task."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxserve.checks import JsonObject, address, one_of, refuse
from jaxserve.rollouts.evaluators import Evaluator, parse_evaluator
from jaxserve.rollouts.harness import Agent, parse_agent
from jaxserve.rollouts.sandboxes import parse_sandbox
from jaxserve.rollouts.service.worker.execution import OWN_VARIABLES, Runtime

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
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,95}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LONGEST_INSTRUCTION = 100_000
"""Bytes; Linux allows an argument of 131,072 at most."""


@dataclass(frozen=True)
class RolloutTask:
    """A task, checked."""

    id: str
    """name of the task."""
    instruction: str
    """text that the agent gets."""
    samples: int
    """number of sessions."""
    timeout_s: float
    """time limit of a session, from INITIALIZING to the agent's end, s."""
    runtime: Runtime
    """runtime of the commands."""
    agent: Agent
    """the agent, its model and its MCP servers."""
    builder: str
    """``prefix_merging`` or ``per_request``."""
    evaluator: Evaluator
    """evaluator of the sessions."""
    environment: Mapping[str, Any] | None
    """``url`` of an environment's server, and arguments of its reset; None without one."""
    callback_url: str | None
    """address to which the result is pushed."""
    metadata: Mapping[str, Any]
    """the submitter's own data."""


def parse_task(given: Any) -> RolloutTask:
    """A submitted task. A field that is left out has its default; ``task_id`` becomes a new name.

    Raises:
      InputError: a field is missing, unknown or wrong.
    """
    fields = JsonObject(given, "the task", _FIELDS)
    id = fields.get("task_id", secrets.token_hex(8))
    if not isinstance(id, str) or not _NAME.fullmatch(id):
        refuse(
            "the task: task_id",
            id,
            "up to 96 letters, digits, dots, dashes and underscores, a letter or digit first",
        )
    instruction = _plain(fields.name("instruction"), fields.text("instruction"))
    if len(instruction.encode(errors="replace")) > _LONGEST_INSTRUCTION:
        refuse(fields.name("instruction"), instruction, f"at most {_LONGEST_INSTRUCTION} bytes")
    agent = parse_agent(fields.get("agent"))
    evaluator = fields.get("evaluator", {"name": "session_completed"})
    environment = None
    if fields.get("environment") is not None:
        known = ("url", "task_id", "seed", "split", "index", "config")
        environment = JsonObject(fields["environment"], "environment", known)
        address("environment: url", environment.get("url"))
    callback = fields.get("callback_url")
    if isinstance(evaluator, Mapping) and evaluator.get("name") == "env_grade" and not environment:
        refuse("environment", None, "there for the evaluator env_grade")
    return RolloutTask(
        id=id,
        instruction=instruction,
        samples=fields.whole("num_samples", 1, 4096, 1),
        timeout_s=fields.number("timeout_seconds", 0.1, 7 * 86_400.0, 1800.0),
        runtime=_runtime(fields.get("runtime", {}), agent),
        agent=agent,
        builder=one_of("the task: builder", fields.get("builder", BUILDERS[0]), BUILDERS),
        evaluator=parse_evaluator(JsonObject(evaluator, "evaluator")),
        environment=environment,
        callback_url=None if callback is None else _callback(callback),
        metadata=fields.inside("metadata") if "metadata" in fields else {},
    )


def _callback(url: Any) -> str:
    """Checks an address that may have a query."""
    plain = isinstance(url, str) and url.isprintable()
    address("the task: callback_url", url.partition("?")[0] if plain else url)
    return url


def _runtime(given: Any, agent: Agent) -> Runtime:
    """Checks the field ``runtime``; the variables of the agent's preset are not the task's."""
    fields = JsonObject(given, "runtime")
    sandbox = parse_sandbox(fields)
    source = fields.get("source")
    if source is not None and (not isinstance(source, str) or not Path(source).is_dir()):
        refuse("runtime: source", source, "a folder of the service's machine")
    variables = fields.inside("variables") if "variables" in fields else {}
    reserved = OWN_VARIABLES | set(agent.preset.environment)
    for name, value in variables.items():
        if not _VARIABLE.fullmatch(name) or name in reserved:
            refuse("runtime: variables", name, "names of variables that the service does not set")
        _plain(f"runtime: variables: {name}", value)
    prepare = _commands(fields, "prepare", [])
    return Runtime(
        sandbox=sandbox,
        source=None if source is None else Path(source).absolute(),
        prepare=prepare,
        eval_prepare=_commands(fields, "eval_prepare", prepare),
        variables=dict(variables),
    )


def _commands(fields: JsonObject, name: str, default: Sequence[Any]) -> tuple[tuple[str, ...], ...]:
    given = fields.get(name, list(default))
    if not isinstance(given, list) or not all(
        isinstance(one, list | tuple)
        and one
        and all(isinstance(each, str) and "\0" not in each for each in one)
        for one in given
    ):
        refuse(fields.name(name), given, "a list of commands, each a list of texts")
    return tuple(tuple(one) for one in given)


def _plain(name: str, value: Any) -> str:
    """Checks a text that becomes an argument of a process."""
    if not isinstance(value, str) or "\0" in value:
        refuse(name, value, "a text without NUL")
    return value
