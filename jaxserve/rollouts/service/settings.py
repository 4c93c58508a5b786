"""Settings of the rollout service and its nodes."""

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
"""Name of the node that runs inside the service."""
NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


@dataclass(frozen=True)
class WorkSettings:
    """Settings of a process that runs agents: the service with its own node, or a node."""

    gateway: str = "http://127.0.0.1:9000"
    """Address of the gateway that agents use."""
    control: str = "http://127.0.0.1:9001"
    """Address of the gateway's control port, which makes sessions."""
    save_dir: Path = Path("rollouts")
    """Folder of the state and of the agents' files."""
    init_workers: int = 4
    """Sessions that are prepared at the same time."""
    run_workers: int = 4
    """Agents that run at the same time."""
    post_run_workers: int = 4
    """Ended sessions whose traces are built at the same time."""
    eval_workers: int = 2
    """Sessions that are evaluated at the same time."""
    prewarm_workers: int = 2
    """Copies of sources for evaluations that are prepared at the same time, while agents run."""
    eval_s: float = 600.0
    """Time limit of an evaluation, and of its preparation, s."""
    output_mib: int = 16
    """Largest output that is kept of a command, MiB."""

    @property
    def slots(self) -> int:
        """Sessions that are prepared or run at the same time."""
        return self.init_workers + self.run_workers

    @property
    def pools(self) -> dict[str, int]:
        """Number of workers by stage."""
        return {name: getattr(self, f"{name}_workers") for name in POOLS}

    def check(self) -> None:
        """Raises InputError for an invalid setting."""
        for name in ("gateway", "control"):
            checks.address(f"--{name}", getattr(self, name))
        for name in POOLS:
            checks.whole(f"--{name.replace('_', '-')}-workers", self.pools[name], 1, 1024)
        checks.whole("--output-mib", self.output_mib, 1, 4096)
        checks.number("--eval-s", self.eval_s, 1.0, 86_400.0)


@dataclass(frozen=True)
class RolloutSettings(WorkSettings):
    """Settings of the service."""

    host: str = "127.0.0.1"
    """Address of the service; an address that other machines reach needs a token."""
    port: int = 9100
    """Port of the service; 0 takes a free one."""
    own_node: bool = True
    """Whether agents also run on the service's machine; else on registered nodes only."""
    attempts: int = 3
    """Attempts at a session whose node is lost while its agent runs."""
    callback_attempts: int = 1450
    """Attempts to push a result to the callback URL, for about a day; the result stays
    available."""
    silent_s: float = 30.0
    """Time without a heartbeat after which a node is lost, s."""
    queue_s: float = 86_400.0
    """Longest wait of a session for a node, s."""

    def check(self) -> None:
        """Raises InputError for an invalid setting."""
        super().check()
        checks.whole("--port", self.port, 0, 65_535)
        checks.whole("--attempts", self.attempts, 1, 100)
        checks.whole("--callback-attempts", self.callback_attempts, 1, 100_000)
        checks.number("--silent-s", self.silent_s, 0.1, 86_400.0)
        checks.number("--queue-s", self.queue_s, 0.1, 30 * 86_400.0)


@dataclass(frozen=True)
class NodeSettings(WorkSettings):
    """Settings of a node."""

    id: str = "node"
    """Name of the node, unique at its service."""
    service: str = "http://127.0.0.1:9100"
    """Address of the rollout service."""
    models: tuple[str, ...] = ()
    """Models that the node's engines serve: it gets sessions of these only; without any, of all."""
    heartbeat_s: float = 1.0
    """Interval between heartbeats, s."""
    control_url: str | None = None
    """Address of the control port for the service, where it differs from the node's own."""

    @property
    def registered_control(self) -> str:
        """Address of the control port for the service."""
        return self.control if self.control_url is None else self.control_url

    def check(self) -> None:
        """Raises InputError for an invalid setting."""
        super().check()
        checks.address("--service", self.service)
        checks.address("--control-url", self.registered_control)
        checks.number("--heartbeat-s", self.heartbeat_s, 0.05, 3600.0)
        if not NODE_NAME.fullmatch(self.id) or self.id == OWN_NODE:
            checks.refuse("--id", self.id, f"up to 64 letters, digits, - and _, not {OWN_NODE}")


@dataclass(frozen=True)
class RolloutTokens:
    """Secrets of the service. Without a given token, the service and a gateway's control port
    make their own, which local clients read from a file."""

    service: str | None = field(default=None, repr=False)
    """token of every route but ``/health``."""
    control: str | None = field(default=None, repr=False)
    """token of the gateway's control port."""
    environment: str | None = field(default=None, repr=False)
    """token of the environments' servers."""

    @classmethod
    def from_environment(cls, variables: Mapping[str, str] = os.environ) -> RolloutTokens:
        """Reads the tokens from environment variables.

        Raises:
          InputError: a token has other than printable ASCII characters.
        """
        return cls(
            checks.secret(variables, TOKEN_VARIABLE),
            checks.secret(variables, CONTROL_TOKEN_VARIABLE),
            checks.secret(variables, ENVIRONMENT_TOKEN_VARIABLE),
        )


def check_exposure(settings: RolloutSettings, tokens: RolloutTokens) -> None:
    """Raises InputError where other machines could run commands here without a token."""
    if not is_loopback(settings.host) and tokens.service is None:
        raise InputError(
            f"--host is {settings.host}, which other machines reach, and who submits a task runs "
            f"commands here; set {TOKEN_VARIABLE}, or leave it at 127.0.0.1"
        )
