"""The agent of a task: which preset starts it, as what model, with which tools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from jaxserve.checks import JsonObject, one_of, refuse
from jaxserve.errors import InputError
from jaxserve.rollouts.presets import Launch, Preset, load_preset, preset_names, shell_preset

SHELL = "shell"
_FIELDS = ("preset", "command", "model", "mcp_servers")


@dataclass(frozen=True)
class Agent:
    """An agent that a task asks for."""

    preset: Preset
    """how it is started."""
    model: str = "default"
    """its name for the model."""
    mcp_servers: Mapping[str, str] = field(default_factory=dict)
    """addresses of tools, by name."""

    def launch(self, instruction: str, gateway: str, key: str, folder: Path) -> Launch:
        """What starts it.

        Args:
          instruction: what it is told.
          gateway: address, without ``/v1``.
          key: of its session there.
          folder: its home.

        Raises:
          InputError: a value cannot be handed over.
        """
        servers = self.mcp_servers or None
        return self.preset.command(instruction, self.model, gateway, key, folder, servers)


def parse_agent(given: object) -> Agent:
    """The agent of a submission: ``preset`` with a name, or ``command`` of one's own.

    Raises:
      InputError: there is no such preset, or a field is wrong.
    """
    asked = JsonObject(given, "agent", _FIELDS)
    name = one_of("agent: preset", asked.get("preset", SHELL), preset_names())
    if (name == SHELL) != ("command" in asked):
        needed = "there for" if name == SHELL else "left out of"
        refuse("agent: command", asked.get("command"), f"{needed} the preset {name}")
    servers = asked.inside("mcp_servers") if "mcp_servers" in asked else {}
    if not all(isinstance(url, str) for url in servers.values()):
        refuse("agent: mcp_servers", dict(servers), "addresses by name")
    try:
        agent = Agent(
            preset=shell_preset(asked["command"]) if name == SHELL else load_preset(name),
            model=asked.text("model") if "model" in asked else "default",
            mcp_servers=servers,
        )
        agent.launch("try", "http://127.0.0.1", "key", Path("/"))  # what is wrong is said at once
    except InputError as error:
        raise InputError(f"agent: {str(error).removeprefix('agent: ')}") from None
    return agent
