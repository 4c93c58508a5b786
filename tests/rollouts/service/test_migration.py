"""Names in docs/rollout_migration.md exist: commands and options, keys of a topology, fields of
tasks and results, routes."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from jaxserve import cli
from jaxserve.errors import InputError
from jaxserve.rollouts.service.cluster.topology import parse_topology
from jaxserve.rollouts.service.worker.task import parse_task
from tests.gateway.gateway_thread import RunningGateway
from tests.rollouts.service.agents import SPEAK, python
from tests.rollouts.service.service_thread import RunningService

PAGE = Path(__file__).resolve().parents[3] / "docs" / "rollout_migration.md"
TOPOLOGY: dict[str, Any] = {
    "rollout": {},
    "gateway": {},
    "nodes": [
        {"id": "a", "inference": {"engine": "vllm", "base_url": "http://e"}, "workers": {}},
    ],
}
TASK: dict[str, Any] = {
    "instruction": "do",
    "agent": {"command": "true"},
    "runtime": {"kind": "docker", "image": "i"},
    "environment": {"url": "http://e"},
    "evaluator": {"name": "test_on_output", "command": ["true"]},
}
ROUTE = r"(GET|POST|PUT|DELETE) (/[\w/]+)"


def named(section: str) -> Iterator[str]:
    """All that stands in backticks in the second column of a section's tables."""
    text = PAGE.read_text(encoding="utf-8")
    (found,) = re.findall(rf"^## {section}\n(.*?)^## ", text, re.DOTALL | re.MULTILINE)
    for line in found.splitlines():
        if line.startswith("| ") and line != "| there | here |":
            there, here = line.strip("| ").split(" | ")
            assert there and here, line
            yield from re.findall(r"`([^`]+)`", here)


def matching(section: str, pattern: str, least: int) -> list[tuple[str, ...]]:
    """Groups of those that match, at least so many."""
    found = {match.groups() for name in named(section) if (match := re.fullmatch(pattern, name))}
    assert len(found) >= least, found
    return sorted(found)


def is_unknown(parse: Callable[[Any], Any], given: Any, path: str) -> bool:
    """Whether a field is refused for its name, wherever it stands, and not for its value."""
    given = copy.deepcopy(given)
    *above, last = path.replace("[]", "").split(".")
    inside: Any = given
    for name in above:
        inside = inside[name]
        inside = inside[0] if isinstance(inside, list) else inside
    inside[last] = 3.5
    try:
        parse(given)
    except InputError as error:
        return f"field '{last}' is unknown" in str(error)
    return False


def test_commands(capsys: pytest.CaptureFixture[str]) -> None:
    """Each with the options that the page gives it, and of no other name."""
    found = matching("Commands", r"jaxserve rollout (\w+)((?: [\w-]+)*)", 8)
    helps = {}
    for command, _ in found:
        with pytest.raises(SystemExit) as ended:
            cli.main(["rollout", command, "--help"])
        assert ended.value.code == 0
        helps[command] = capsys.readouterr().out
    assert set(helps) == {"serve", "gateway", "dashboard", "submit", "status"}
    for command, arguments in found:
        for option in re.findall(r"--[\w-]+", arguments):
            assert option in helps[command], (command, option)


def test_keys_of_a_topology() -> None:
    """None is unknown, and what Polar calls them is."""
    for (key,) in matching("Topology", r"((?:rollout|gateway|nodes\[\])\.[\w.]+)", 24):
        assert not is_unknown(parse_topology, TOPOLOGY, key), key
    for key in ("rollout.public_url", "gateway.nodes", "nodes[].model_served"):
        assert is_unknown(parse_topology, TOPOLOGY, key)


def test_fields_of_a_task() -> None:
    """Fields of a task, with those of runtime, agent, evaluator and environment."""
    inside = r"(?:runtime|agent|evaluator|environment)\.\w+"
    top = r"task_id|instruction|num_samples|callback_url|metadata|timeout_seconds|builder"
    for (key,) in matching("Tasks", rf"({inside}|{top})", 23):
        assert not is_unknown(parse_task, TASK, key), key
    for key in ("runtime.backend", "agent.harness", "evaluator.test_command", "harness"):
        assert is_unknown(parse_task, TASK, key)


def test_fields_of_a_result(service: RunningService) -> None:
    """Fields in the result of a task with one session."""
    told = service.result(service.submit(agent=python(SPEAK)))
    for (key,) in matching("Results", r"sessions\[\]\.(\w+)", 8):
        assert key in told["sessions"][0], key
    for (key,) in matching("Results", r"(ended|completed|mean_reward|sessions|metadata)", 5):
        assert key in told, key


def test_routes(service: RunningService, gateway: RunningGateway) -> None:
    """Routes of the service, and of the gateway's control port."""
    routes = [match.groups() for name in named("Routes") if (match := re.fullmatch(ROUTE, name))]
    begin = routes.index(("POST", "/sessions"))
    doors = ((service.http, routes[:begin], 17), (gateway.control, routes[begin:], 9))
    for http, of_door, least in doors:
        assert len(set(of_door)) >= least
        for method, path in of_door:
            assert answers(http, method, path), (method, path)
        assert not answers(http, "GET", "/no/such/route")
        assert not answers(http, "DELETE", "/health")


def answers(http: httpx.Client, method: str, path: str) -> bool:
    """Whether there is such a route, whatever it says to a body that is none."""
    with http.stream(method, path, content=b"{") as answer:
        if answer.status_code != 404:
            return answer.status_code != 405
        return "Not Found" not in answer.read().decode()
