"""The agent of a task: its preset, its model and its MCP servers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from jaxserve.checks import JsonObject, one_of, refuse
from jaxserve.errors import InputError
from jaxserve.rollouts.presets import Launch, Preset, load_preset, preset_names, shell_preset

SHELL = "shell"
_PORTS = {"http": 80, "https": 443}
_FIELDS = ("preset", "command", "model", "mcp_servers")


@dataclass(frozen=True)
class Agent:
    """An agent that a task asks for."""

    preset: Preset
    """command, files and variables of the agent."""
    model: str = "default"
    """name of the model in the agent's requests."""
    mcp_servers: Mapping[str, str] = field(default_factory=dict)
    """addresses of MCP servers, by name."""

    def launch(
        self,
        instruction: str,
        gateway: str,
        key: str,
        folder: Path,
        environment: str | None = None,
    ) -> Launch:
        """The command, files and variables of a run.

        Args:
          instruction: text that the agent gets.
          gateway: address of the gateway, without ``/v1``.
          key: key of the gateway's session.
          folder: the agent's home.
          environment: address of the environment's server whose token the agent has. MCP servers
            with the same scheme, host and port get the token.

        Raises:
          InputError: a value cannot be passed to the agent.
        """
        servers = self.mcp_servers
        guarded = [] if environment is None else _same_origin(environment, servers)
        return self.preset.command(
            instruction, self.model, gateway, key, folder, servers or None, guarded
        )


def _same_origin(url: str, servers: Mapping[str, str]) -> list[str]:
    """Names of servers with the origin of an address."""
    origin = _origin(url)
    return [name for name, one in servers.items() if origin is not None and _origin(one) == origin]


def _origin(url: str) -> tuple[str, str | None, int | None] | None:
    """Scheme, host and port of an address; None for a malformed one."""
    try:
        parts = urlsplit(url)
        return parts.scheme, parts.hostname, parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return None


def parse_agent(given: object) -> Agent:
    """The agent of a submitted task: the name of a preset, or a ``command``.

    Raises:
      InputError: the preset is unknown, or a field is wrong.
    """
    fields = JsonObject(given, "agent", _FIELDS)
    name = one_of("agent: preset", fields.get("preset", SHELL), preset_names())
    if (name == SHELL) != ("command" in fields):
        needed = "there for" if name == SHELL else "left out of"
        refuse("agent: command", fields.get("command"), f"{needed} the preset {name}")
    if not isinstance(fields.get("command", ""), str | list):
        refuse("agent: command", fields["command"], "a text, or a list of texts")
    servers = fields.inside("mcp_servers") if "mcp_servers" in fields else {}
    if not all(isinstance(url, str) for url in servers.values()):
        refuse("agent: mcp_servers", dict(servers), "addresses by name")
    try:
        agent = Agent(
            preset=shell_preset(fields["command"]) if name == SHELL else load_preset(name),
            model=fields.text("model") if "model" in fields else "default",
            mcp_servers=servers,
        )
        agent.launch("try", "http://127.0.0.1", "key", Path("/"))  # checks all values
    except InputError as error:
        raise InputError(f"agent: {str(error).removeprefix('agent: ')}") from None
    return agent
