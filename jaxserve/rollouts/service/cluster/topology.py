"""Reads a topology: a YAML file with the service, its nodes and their engines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from jaxserve.checks import JsonObject, address, refuse
from jaxserve.errors import InputError
from jaxserve.gateway.engines.specs import parse_engines
from jaxserve.rollouts.service.settings import (
    POOLS,
    NodeSettings,
    RolloutSettings,
    WorkSettings,
)

_SERVICE = (
    "host",
    "port",
    "url",
    "save_dir",
    "attempts",
    "callback_attempts",
    "silent_s",
    "queue_s",
)
_GATEWAY = ("heartbeat_s", "sessions", "options")
_NODE = (
    "id",
    "host",
    "port",
    "control_host",
    "control_port",
    "control_url",
    "models",
    "inference",
    "workers",
    "save_dir",
    "eval_s",
    "output_mib",
)
_FIRST_PORT = 9000


@dataclass(frozen=True)
class NodePlan:
    """A node with its gateway."""

    settings: NodeSettings
    """settings of the node."""
    gateway: tuple[str, ...]
    """arguments of ``jaxserve gateway``."""


@dataclass(frozen=True)
class Topology:
    """A service and its nodes."""

    service: RolloutSettings
    """settings of the service, which has no node of its own."""
    nodes: Mapping[str, NodePlan]
    """nodes by name."""


def read_topology(path: Path) -> Topology:
    """Reads a file.

    Raises:
      InputError: the file cannot be read, a field is unknown or wrong, or a node is there twice.
    """
    try:
        given = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"topology is {str(path)!r}, which cannot be read: {error}") from None
    except yaml.YAMLError as error:
        said = " ".join(str(error).split())
        raise InputError(f"topology is {str(path)!r}; it must be YAML: {said}") from None
    return parse_topology(given)


def parse_topology(given: Any) -> Topology:
    """The topology of a parsed file.

    Raises:
      InputError: a field is unknown or wrong, or a node is there twice.
    """
    mapping = JsonObject(given, "topology", ("rollout", "gateway", "nodes"))
    rollout = _section(mapping, "rollout", _SERVICE)
    gateway = _section(mapping, "gateway", _GATEWAY)
    chosen = {name: value for name, value in rollout.items() if name != "url"}
    service = RolloutSettings(own_node=False, **_typed(RolloutSettings, chosen))
    service.check()
    url = rollout.get("url", f"http://{_reached(service.host)}:{service.port}")
    address(rollout.name("url"), url)
    nodes: dict[str, NodePlan] = {}
    for place, one in enumerate(mapping.entries("nodes")):
        node = JsonObject(one, f"nodes[{place}]", _NODE)
        plan = _node(node, place, service.save_dir, url, gateway)
        if plan.settings.id in nodes:
            raise InputError(f"nodes[{place}]: id is {plan.settings.id!r}, as another node's is")
        nodes[plan.settings.id] = plan
    ports = Counter(
        (_machine(plan.settings), port)
        for plan in nodes.values()
        for port in (plan.gateway[1], plan.gateway[3])
    )
    twice = [port for (_, port), count in ports.items() if count > 1]
    if twice:
        raise InputError(f"nodes: port {min(twice)} is there twice; every node needs its own")
    return Topology(service, nodes)


def _machine(node: NodeSettings) -> tuple[str | None, ...]:
    """Hosts of a node's gateway, the same for nodes of one machine."""
    return tuple(urlsplit(url).hostname for url in (node.gateway, node.registered_control))


def _node(
    mapping: JsonObject, place: int, save_dir_of_all: Path, service: str, gateway: JsonObject
) -> NodePlan:
    id = mapping.text("id")
    host, control_host = _host(mapping, "host"), _host(mapping, "control_host")
    port = mapping.whole("port", 1, 65_535, _FIRST_PORT + 2 * place)
    control = mapping.whole("control_port", 1, 65_535, port + 1)
    save_dir = save_dir_of_all.absolute() / "nodes" / id
    if "save_dir" in mapping:
        save_dir = _path(mapping.name("save_dir"), mapping["save_dir"])
    sessions = save_dir / "sessions"
    if "sessions" in gateway:
        sessions = _path(gateway.name("sessions"), gateway["sessions"]) / id
    workers = (
        mapping.inside("workers", POOLS) if "workers" in mapping else JsonObject({}, "workers")
    )
    models = mapping.get("models", [])
    if not isinstance(models, list) or not all(isinstance(one, str) for one in models):
        refuse(mapping.name("models"), models, "a list of names")
    settings = NodeSettings(
        id=id,
        service=service,
        gateway=f"http://{_reached(host)}:{port}",
        control=f"http://{_reached(control_host)}:{control}",
        control_url=mapping.get("control_url"),
        save_dir=save_dir,
        models=tuple(models),
        **{f"{name}_workers": workers.whole(name, 1, 1024) for name in workers},
        **_typed(NodeSettings, {k: mapping[k] for k in ("eval_s", "output_mib") if k in mapping}),
        **_typed(NodeSettings, {k: gateway[k] for k in ("heartbeat_s",) if k in gateway}),
    )
    settings.check()
    arguments = ["--port", str(port), "--control-port", str(control), "--host", host]
    arguments += ["--control-host", control_host, "--sessions", str(sessions)]
    for engine in _engines(mapping):
        arguments += ["--engine", engine]
    options = gateway.get("options", [])
    if not isinstance(options, list) or not all(isinstance(one, str) for one in options):
        refuse(gateway.name("options"), options, "a list of texts")
    return NodePlan(settings, (*arguments, *options))


def _host(mapping: JsonObject, name: str) -> str:
    host = mapping.get(name, "127.0.0.1")
    if not isinstance(host, str) or not host:
        refuse(mapping.name(name), host, "an address")
    return host


def _engines(mapping: JsonObject) -> list[str]:
    """Values of ``--engine`` for a node's gateway."""
    given = mapping.get("inference")
    entries = given if isinstance(given, list) else [given]
    found = []
    for place, one in enumerate(entries):
        where = f"{mapping.where}: inference" + (f"[{place}]" if isinstance(given, list) else "")
        engine = JsonObject(one, where, ("engine", "base_url", "options"))
        kind = engine.one_of("engine", ("vllm", "sglang"))
        url = address(engine.name("base_url"), engine.get("base_url"))
        options = engine.inside("options") if "options" in engine else {}
        found.append(f"{kind}={url}" + "".join(f",{k}={v}" for k, v in options.items()))
    parse_engines(found)
    return found


def _section(mapping: JsonObject, name: str, known: tuple[str, ...]) -> JsonObject:
    return mapping.inside(name, known) if name in mapping else JsonObject({}, name)


def _typed(settings: type[WorkSettings], given: Mapping[str, Any]) -> dict[str, Any]:
    """Values converted to the types of their fields; ranges are left to ``check``."""
    kinds = {field.name: str(field.type) for field in fields(settings)}
    found = dict(given)
    for name, value in given.items():
        if kinds[name] == "Path":
            found[name] = _path(name, value)
        elif kinds[name] == "str" and not isinstance(value, str):
            refuse(name, value, "a text")
    return found


def _path(name: str, value: Any) -> Path:
    if not isinstance(value, str):
        refuse(name, value, "a path")
    return Path(value).absolute()


def _reached(host: str) -> str:
    """The address at which this machine reaches a server that listens at ``host``."""
    own = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{own}]" if ":" in own else own
