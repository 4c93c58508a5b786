"""What an operator may choose of the rollout service."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from jaxserve import checks
from jaxserve.errors import InputError
from jaxserve.gateway.settings import CONTROL_TOKEN_VARIABLE, is_loopback

TOKEN_VARIABLE = "JAXSERVE_ROLLOUT_TOKEN"
ENVIRONMENT_TOKEN_VARIABLE = "JAXSERVE_ENVIRONMENT_TOKEN"


@dataclass(frozen=True)
class RolloutSettings:
    """What an operator may choose on the command line."""

    gateway: str = "http://127.0.0.1:9000"
    """Address of the gateway that agents speak to."""
    control: str = "http://127.0.0.1:9001"
    """Address of the gateway's control door, where sessions are made."""
    save_dir: Path = Path("rollouts")
    """Folder of the state and of what agents leave."""
    host: str = "127.0.0.1"
    """Address of the service; beyond this machine it needs a token."""
    port: int = 9100
    """Port of the service; 0 takes a free one."""
    init_workers: int = 4
    """Sessions that are prepared at a time."""
    run_workers: int = 4
    """Agents that run at a time."""
    post_run_workers: int = 4
    """Ended sessions whose traces are built at a time."""
    eval_workers: int = 2
    """Sessions that are evaluated at a time."""
    eval_s: float = 600.0
    """Time for an evaluation."""
    attempts: int = 3
    """Times that a session begins when the service was killed while its agent ran."""
    callback_attempts: int = 8
    """Times that a result is pushed until the push is given up; the result stays."""
    output_mib: int = 16
    """Of what an agent prints that are kept."""

    def check(self) -> None:
        """Raises InputError where a setting cannot be."""
        for name in ("gateway", "control"):
            check_url(f"--{name}", getattr(self, name))
        checks.whole("--port", self.port, 0, 65_535)
        for name in ("init_workers", "run_workers", "post_run_workers", "eval_workers"):
            checks.whole(_option(name), getattr(self, name), 1, 1024)
        for name in ("attempts", "callback_attempts"):
            checks.whole(_option(name), getattr(self, name), 1, 100)
        checks.whole("--output-mib", self.output_mib, 1, 4096)
        checks.number("--eval-s", self.eval_s, 1.0, 86_400.0)


@dataclass(frozen=True)
class RolloutTokens:
    """Secrets of the service; None asks for nothing, or shows nothing."""

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


def check_url(name: str, url: object) -> str:
    """An http or https address.

    Raises:
      InputError: it is none.
    """
    if not isinstance(url, str) or not url.startswith(("http://", "https://")) or len(url) > 2048:
        checks.refuse(name, url, "an http or https address")
    return url


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
