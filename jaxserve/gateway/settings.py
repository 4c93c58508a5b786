"""Settings of a gateway, checked once; tokens come from the environment, never from arguments."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

import tyro

from jaxserve import checks
from jaxserve.errors import InputError
from jaxserve.runtime.hosts import is_loopback
from jaxserve.runtime.storage import state_folder

RoutingName = Literal["least_loaded", "round_robin", "prefix_affinity"]

TOKEN_VARIABLE = "JAXSERVE_GATEWAY_TOKEN"
CONTROL_TOKEN_VARIABLE = "JAXSERVE_GATEWAY_CONTROL_TOKEN"

_RANGES: Mapping[str, tuple[float, float]] = {
    "port": (0, 65535),
    "control_port": (0, 65535),
    "look_ahead": (0, 64),
    "queue": (0, 1_000_000),
    "max_requests": (1, 1_000_000),
    "max_connections": (1, 1_000_000),
    "max_head_bytes": (1024, 2**20),
    "max_body_bytes": (1024, 2**30),
    "max_answer_bytes": (1024, 2**30),
    "head_s": (0.1, 3600.0),
    "body_s": (0.1, 3600.0),
    "queue_s": (0.1, 86_400.0),
    "connect_s": (0.1, 600.0),
    "first_byte_s": (0.1, 86_400.0),
    "idle_s": (0.1, 86_400.0),
    "write_s": (0.1, 86_400.0),
    "total_s": (0.1, 86_400.0),
    "drain_s": (0.0, 3600.0),
    "records_kept": (1, 1_000_000),
    "window_kept_s": (1.0, 86_400.0),
}
"""Range of each number."""


@dataclass(frozen=True)
class GatewaySettings:
    """Options of the command line."""

    engine: Annotated[
        tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="KIND=URL[,OPTION=VALUE]")
    ]
    """An engine, vllm=http://127.0.0.1:8000 or sglang=http://127.0.0.1:30000; may be repeated."""
    host: str = "127.0.0.1"
    """Address of the port for clients."""
    port: int = 9000
    """Port for clients; 0 takes a free one."""
    control_host: str = "127.0.0.1"
    """Address of the port for metrics and control; other than loopback needs a control token."""
    control_port: int = 9001
    """Port for metrics and control; 0 takes a free one."""
    slo: Annotated[
        tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="CLASS:ttft=S,tpot=S")
    ] = ()
    """A class of requests with its objectives, such as chat:ttft=0.5,tpot=0.05; may be repeated."""
    routing: RoutingName = "least_loaded"
    """Engine of a pool that gets a request: the least loaded one, the next in turn, or the one that
    has seen most of its prompt, weighed against its load."""
    look_ahead: int = 2
    """Requests beyond an engine's cap that wait inside the engine, to fill freed places at once."""
    queue: int = 1000
    """Requests that may wait in front of a pool; the next one gets status 429."""
    max_requests: int = 4096
    """Requests in the gateway at a time, waiting ones included; the next one gets status 429."""
    max_connections: int = 8192
    """Connections of clients at a time."""
    max_head_bytes: int = 65_536
    """Largest request line with headers, bytes."""
    max_body_bytes: int = 32 * 2**20
    """Largest request body, bytes."""
    max_answer_bytes: int = 64 * 2**20
    """Largest whole answer of an engine, and largest event of a streamed answer, bytes."""
    head_s: float = 20.0
    """Time for a request's headers, and for a connection to send its next request, s."""
    body_s: float = 60.0
    """Time for a request's body, s."""
    queue_s: float = 120.0
    """Longest wait in the gateway's queue, s."""
    connect_s: float = 5.0
    """Time to connect to an engine, s."""
    first_byte_s: float = 600.0
    """Time until the first byte of an engine's answer, s; without a stream, of the whole answer."""
    idle_s: float = 120.0
    """Longest pause within an engine's answer, s."""
    write_s: float = 60.0
    """Longest time in which a client reads nothing, s."""
    total_s: float = 3600.0
    """Longest time of a request, s."""
    drain_s: float = 30.0
    """Time for running requests to end at shutdown, s."""
    records: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """File to which a line of JSON is appended for every request that ended."""
    state: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """File that keeps the hold on control over restarts; by default gateway-PORT.json of the
    control port in ~/.local/state/jaxserve."""
    sessions: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Folder of agents' sessions, recorded token by token; a request without the key of a session
    then needs a client token, and the control port a token of its own."""
    records_kept: int = 20_000
    """Records of requests kept in memory."""
    window_kept_s: float = 600.0
    """Time for which single measurements are kept in memory, s."""

    def check(self) -> None:
        """Raises InputError for a number out of range, or equal ports."""
        for name, (low, high) in _RANGES.items():
            checks.number(f"--{name.replace('_', '-')}", getattr(self, name), low, high)
        if self.port == self.control_port != 0:
            raise InputError(
                f"--control-port is {self.control_port}, as --port is; clients and control need "
                "ports of their own"
            )

    def with_state(self, variables: Mapping[str, str]) -> GatewaySettings:
        """Settings with the default file for the hold, where none is named.

        There is no default file for a random port, which identifies no gateway.
        """
        folder = state_folder(variables)
        if self.state is not None or folder is None or self.control_port == 0:
            return self
        return replace(self, state=folder / f"gateway-{self.control_port}.json")


@dataclass(frozen=True)
class AccessTokens:
    """Tokens of clients and controllers; None asks for no token."""

    client: str | None = field(default=None, repr=False)
    """token of every route for clients but ``/health``."""
    control: str | None = field(default=None, repr=False)
    """token of metrics and control."""

    def __post_init__(self) -> None:
        """Raises InputError for equal tokens, with which clients could turn knobs."""
        if self.client is not None and self.client == self.control:
            raise InputError(
                f"{CONTROL_TOKEN_VARIABLE} is the same as {TOKEN_VARIABLE}, with which clients "
                "could turn knobs; it must be another"
            )

    @classmethod
    def from_environment(cls, variables: Mapping[str, str] = os.environ) -> AccessTokens:
        """Reads ``JAXSERVE_GATEWAY_TOKEN`` and ``JAXSERVE_GATEWAY_CONTROL_TOKEN``.

        Raises:
          InputError: one has other than printable ASCII characters, or both are the same.
        """
        return cls(
            client=checks.secret(variables, TOKEN_VARIABLE),
            control=checks.secret(variables, CONTROL_TOKEN_VARIABLE),
        )


def check_exposure(settings: GatewaySettings, tokens: AccessTokens) -> str | None:
    """Checks which machines reach the gateway; returns a warning to print, or None.

    Raises:
      InputError: metrics and control could be reached from elsewhere without a token.
    """
    if not is_loopback(settings.control_host) and tokens.control is None:
        raise InputError(
            f"--control-host is {settings.control_host}, which other machines reach; set "
            f"{CONTROL_TOKEN_VARIABLE}, or leave it at 127.0.0.1"
        )
    if not is_loopback(settings.host) and tokens.client is None and settings.sessions is None:
        return f"anyone who reaches {settings.host} may use the engines; set {TOKEN_VARIABLE}"
    return None
