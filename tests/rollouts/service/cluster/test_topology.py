"""A topology becomes settings and command lines; what is unknown, old or there twice is refused."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from jaxserve.cli.rollouts import run_node
from jaxserve.errors import InputError
from jaxserve.rollouts.service.cluster.topology import parse_topology, read_topology
from jaxserve.rollouts.service.settings import NodeSettings

GIVEN: dict[str, Any] = {
    "rollout": {"port": 9200, "save_dir": "/s", "silent_s": 5},
    "gateway": {"heartbeat_s": 0.5, "sessions": "/r"},
    "nodes": [
        {
            "id": "a",
            "port": 9010,
            "models": ["tiny"],
            "inference": {
                "engine": "vllm",
                "base_url": "http://127.0.0.1:8000",
                "options": {"cap": 8},
            },
            "workers": {"run": 7},
        },
        {
            "id": "b",
            "inference": [
                {"engine": "sglang", "base_url": "http://e1:30000"},
                {"engine": "sglang", "base_url": "http://e2:30000"},
            ],
        },
    ],
}


def test_what_becomes_of_it() -> None:
    """The service has no node of its own; every node has its gateway and folder."""
    found = parse_topology(GIVEN)
    service, a, b = found.service, found.nodes["a"], found.nodes["b"]
    assert (service.port, service.silent_s, service.own_node) == (9200, 5, False)
    assert a.settings.service == "http://127.0.0.1:9200"
    assert a.settings.gateway == "http://127.0.0.1:9010"
    assert a.settings.control == "http://127.0.0.1:9011"
    assert (a.settings.run_workers, a.settings.models) == (7, ("tiny",))
    assert a.settings.heartbeat_s == b.settings.heartbeat_s == 0.5
    assert a.settings.save_dir == Path("/s/nodes/a")
    assert a.gateway == (
        *("--port", "9010", "--control-port", "9011", "--host", "127.0.0.1"),
        *("--control-host", "127.0.0.1", "--sessions", "/r/a"),
        *("--engine", "vllm=http://127.0.0.1:8000,cap=8"),
    )
    assert b.settings.gateway == "http://127.0.0.1:9002"
    assert b.gateway.count("--engine") == 2


def test_who_listens_everywhere_is_reached_here() -> None:
    """No client can connect to 0.0.0.0."""
    given: dict[str, Any] = copy.deepcopy(GIVEN)
    given["rollout"]["host"] = given["nodes"][0]["host"] = "0.0.0.0"
    found = parse_topology(given)
    settings = found.nodes["a"].settings
    assert (settings.service, settings.gateway) == (
        "http://127.0.0.1:9200",
        "http://127.0.0.1:9010",
    )
    assert found.service.host == "0.0.0.0"
    assert found.nodes["a"].gateway[4:6] == ("--host", "0.0.0.0")


def test_nodes_elsewhere() -> None:
    """Each machine has its own ports: the service is told at which address it reaches the control
    door there, and nodes at which they reach the service."""
    given: dict[str, Any] = copy.deepcopy(GIVEN)
    given["rollout"] |= {"host": "0.0.0.0", "url": "http://10.0.0.1:9200"}
    given["nodes"][0] |= {"port": 9000, "control_host": "10.0.0.2"}
    given["nodes"][1] |= {
        "port": 9000,
        "control_host": "0.0.0.0",
        "control_url": "https://b.example",
    }
    a, b = parse_topology(given).nodes.values()
    assert a.settings.service == b.settings.service == "http://10.0.0.1:9200"
    assert a.settings.control == a.settings.registered_control == "http://10.0.0.2:9001"
    assert a.gateway[6:8] == ("--control-host", "10.0.0.2")
    assert b.settings.control == "http://127.0.0.1:9001"
    assert b.settings.registered_control == "https://b.example"


def test_which_node(tmp_path: Path) -> None:
    """With several nodes the name is required."""
    path = tmp_path / "t.yaml"
    path.write_text(yaml.safe_dump(GIVEN))
    for name in (None, "c"):
        with pytest.raises(InputError, match=r"--node is .*; it must be one of a, b"):
            run_node(NodeSettings(), path, name)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("rollouts",), {}, "topology: field 'rollouts' is unknown"),
        (("rollout", "ports"), 1, "rollout: field 'ports' is unknown"),
        (("rollout", "port"), "x", "--port is 'x'; it must be a whole number"),
        (("rollout", "url"), "here", "rollout: url is 'here'; it must be an address"),
        (("gateway", "sessions"), 3, "gateway: sessions is 3; it must be a path"),
        (("nodes", 0, "save_dir"), 3, "nodes[0]: save_dir is 3; it must be a path"),
        (("nodes", 0, "control_host"), 1, "nodes[0]: control_host is 1; it must be an address"),
        (("nodes", 0, "control_url"), "there", "--control-url is 'there'; it must be an address"),
        (("rollout", "save_dir"), 3, "save_dir is 3; it must be a path"),
        (("nodes",), [], "topology: nodes is []; it must be a list with at least one entry"),
        (("nodes", 1, "id"), "a", "nodes[1]: id is 'a', as another node's is"),
        (("nodes", 1, "id"), "a b", "--id is 'a b'"),
        (("nodes", 1, "id"), "local", "not local"),
        (("nodes", 1, "port"), 9010, "port 9010 is there twice"),
        (("nodes", 0, "sglang"), {}, "nodes[0]: field 'sglang' is unknown"),
        (("nodes", 0, "inference"), {"engine": "x"}, "inference: engine is 'x'; it must be one"),
        (
            ("nodes", 0, "inference"),
            {"base_url": "http://e"},
            "engine is missing; it must be one of vllm, sglang",
        ),
        (("nodes", 1), {"id": "c"}, "inference is None; it must be a JSON object"),
        (("nodes", 0, "inference", "base_url"), "e1", "it must be an address such as"),
        (("nodes", 0, "workers", "run"), 0, "workers: run is 0; it must be a whole number"),
        (("nodes", 0, "workers", "walk"), 1, "workers: field 'walk' is unknown"),
    ],
)
def test_what_is_refused(path: tuple[Any, ...], value: Any, said: str) -> None:
    """The error is one sentence with the field."""
    given = copy.deepcopy(GIVEN)
    inside: Any = given
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = value
    with pytest.raises(InputError) as caught:
        parse_topology(given)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_files(tmp_path: Path) -> None:
    """A file that is missing or not YAML is refused with one line."""
    path = tmp_path / "t.yaml"
    with pytest.raises(InputError, match="which cannot be read"):
        read_topology(path)
    path.write_text("nodes: [\n")
    with pytest.raises(InputError, match="it must be YAML") as caught:
        read_topology(path)
    assert "\n" not in str(caught.value)
    path.write_text("!!python/object/apply:os.system ['true']\n")
    with pytest.raises(InputError, match="it must be YAML"):
        read_topology(path)
