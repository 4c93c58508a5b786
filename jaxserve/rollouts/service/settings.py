"""What an operator may choose of the rollout service."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from jaxserve import checks
from jaxserve.errors import InputError
from jaxserve.gateway.settings import CONTROL_TOKEN_VARIABLE
from jaxserve.runtime.hosts import is_loopback

TOKEN_VARIABLE = "JAXSERVE_ROLLOUT_TOKEN"
ENVIRONMENT_TOKEN_VARIABLE = "JAXSERVE_ENVIRONMENT_TOKEN"
POOLS = ("init", "run", "post_run", "eval", "prewarm")
OWN_NODE = "local"
"""Name of the node inside the service."""
NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


@dataclass(frozen=True)
class WorkSettings:
    """What an operator may choose of a place where agents run."""

    gateway: str = "http://127.0.0.1:9000"
    """Address of the gateway that agents speak to."""
    control: str = "http://127.0.0.1:9001"
    """Address of the gateway's control door, where sessions are made."""
    save_dir: Path = Path("rollouts")
    """Folder of the state and of what agents leave."""
    init_workers: int = 4
    """Sessions that are prepared at a time."""
    run_workers: int = 4
    """Agents that run at a time."""
    post_run_workers: int = 4
    """Ended sessions whose traces are built at a time."""
    eval_workers: int = 2
    """Sessions that are evaluated at a time."""
    prewarm_workers: int = 2
    """Copies for evaluations that are prepared at a time, while agents run."""
    eval_s: float = 600.0
    """Time for an evaluation, and for preparing it, s."""
    output_mib: int = 16
    """Of what an agent prints that are kept."""

    @property
    def slots(self) -> int:
        """Sessions that are prepared or run at a time."""
        return self.init_workers + self.run_workers

    @property
    def pools(self) -> dict[str, int]:
        """Workers by their work."""
        return {name: getattr(self, f"{name}_workers") for name in POOLS}

    def check(self) -> None:
        """Raises InputError where a setting cannot be."""
        for name in ("gateway", "control"):
            checks.address(f"--{name}", getattr(self, name))
        for name in POOLS:
            checks.whole(f"--{name.replace('_', '-')}-workers", self.pools[name], 1, 1024)
        checks.whole("--output-mib", self.output_mib, 1, 4096)
        checks.number("--eval-s", self.eval_s, 1.0, 86_400.0)


@dataclass(frozen=True)
class RolloutSettings(WorkSettings):
    """What an operator may choose of the service."""

    host: str = "127.0.0.1"
    """Address of the service; beyond this machine it needs a token."""
    port: int = 9100
    """Port of the service; 0 takes a free one."""
    own_node: bool = True
    """Whether agents run beside the service, too; else on registered nodes only."""
    attempts: int = 3
    """Times that a session begins when its node was lost while its agent ran."""
    callback_attempts: int = 8
    """Times that a result is pushed until the push is given up; the result stays."""
    silent_s: float = 30.0
    """Without a heartbeat after which a node counts as lost, s."""
    queue_s: float = 86_400.0
    """Longest wait of a session for a node, s."""

    def check(self) -> None:
        """Raises InputError where a setting cannot be."""
        super().check()
        checks.whole("--port", self.port, 0, 65_535)
        checks.whole("--attempts", self.attempts, 1, 100)
        checks.whole("--callback-attempts", self.callback_attempts, 1, 100)
        checks.number("--silent-s", self.silent_s, 0.1, 86_400.0)
        checks.number("--queue-s", self.queue_s, 0.1, 30 * 86_400.0)


@dataclass(frozen=True)
class NodeSettings(WorkSettings):
    """What an operator may choose of a node."""

    id: str = "node"
    """Name of the node, which no other has."""
    service: str = "http://127.0.0.1:9100"
    """Address of the rollout service."""
    models: tuple[str, ...] = ()
    """Models that its engines serve; sessions that ask for others go elsewhere. None serves all."""
    heartbeat_s: float = 1.0
    """Between two heartbeats, s."""
    control_url: str | None = None
    """Address of the control door as the service reaches it; by default as the node does."""

    @property
    def registered_control(self) -> str:
        """Address of the control door that the service is told."""
        return self.control if self.control_url is None else self.control_url

    def check(self) -> None:
        """Raises InputError where a setting cannot be."""
        super().check()
        checks.address("--service", self.service)
        checks.address("--control-url", self.registered_control)
        checks.number("--heartbeat-s", self.heartbeat_s, 0.05, 3600.0)
        if not NODE_NAME.fullmatch(self.id) or self.id == OWN_NODE:
            checks.refuse("--id", self.id, f"up to 64 letters, digits, - and _, not {OWN_NODE}")


@dataclass(frozen=True)
class RolloutTokens:
    """Secrets of the service. None is none that was given: the service and a gateway's control door
    then make their own, and who speaks to them on this machine finds them."""

    service: str | None = field(default=None, repr=False)
    """that every route but ``/health`` asks for."""
    control: str | None = field(default=None, repr=False)
    """for the gateway's control door."""
    environment: str | None = field(default=None, repr=False)
    """for the environments' servers."""

    @classmethod
    def from_environment(cls, variables: Mapping[str, str] = os.environ) -> RolloutTokens:
        """Reads the variables.

        Raises:
          InputError: one has other than printable ASCII characters.
        """
        return cls(
            checks.secret(variables, TOKEN_VARIABLE),
            checks.secret(variables, CONTROL_TOKEN_VARIABLE),
            checks.secret(variables, ENVIRONMENT_TOKEN_VARIABLE),
        )


def check_exposure(settings: RolloutSettings, tokens: RolloutTokens) -> None:
    """Raises InputError where others could run commands here without a token."""
    if not is_loopback(settings.host) and tokens.service is None:
        raise InputError(
            f"--host is {settings.host}, which other machines reach, and who submits a task runs "
            f"commands here; set {TOKEN_VARIABLE}, or leave it at 127.0.0.1"
        )
