"""Tokens that doors make for themselves, in files that nobody but their user reads.

A door is a port at which one may do or see what its operator may: a gateway's control door with
sessions, the rollout service, the dashboard. Agents are processes of this machine, and containers
with its network; they reach those ports, and a container reads none of these files.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from jaxserve import checks
from jaxserve.datafiles import write_atomic
from jaxserve.errors import InputError
from jaxserve.gateway.settings import CONTROL_TOKEN_VARIABLE
from jaxserve.runtime.hosts import is_loopback
from jaxserve.runtime.state import state_folder

_BYTES = 24


@dataclass(frozen=True)
class Door:
    """A kind of door, of which a machine has one at a port."""

    name: str
    """in names of files."""
    variable: str
    """that gives a token in place of its own one."""

    def path(self, port: int, variables: Mapping[str, str] = os.environ) -> Path | None:
        """The file of the token of the door at a port; None where the user has no home."""
        folder = state_folder(variables)
        return None if folder is None else folder / f"{self.name}-{port}.token"

    def keep(self, port: int, variables: Mapping[str, str] = os.environ) -> str:
        """The token that the door at a port made for itself; it makes one where there is none.

        One who begins again has the token that others know already. Who calls it has the port.

        Raises:
          InputError: it cannot be kept.
        """
        path = self.path(port, variables)
        if path is None:
            raise InputError(f"there is no home for the file of a token; set {self.variable}")
        try:
            if (kept := _read(path)) is not None and not path.stat().st_mode & 0o077:
                return kept
            token = secrets.token_urlsafe(_BYTES)
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_atomic(path, f"{token}\n".encode(), mode=0o600)
        except OSError as error:
            raise InputError(
                f"a token cannot be kept in {path}: {error.strerror}; set {self.variable}"
            ) from None
        return token

    def token(self, url: str, variables: Mapping[str, str] = os.environ) -> str | None:
        """What the door at an address asks for: the variable's; else, where the door is one of
        this machine and this user, its own; None where neither is known.

        Raises:
          InputError: the variable has other than printable ASCII characters.
        """
        named = checks.secret(variables, self.variable)
        return self.own_token(url, variables) if named is None else named

    def own_token(self, url: str, variables: Mapping[str, str] = os.environ) -> str | None:
        """The token that the door at an address of this machine made for itself; None where none
        is known."""
        try:
            parts = urlsplit(url)
            port, host = parts.port, parts.hostname
        except ValueError:
            return None
        if port is None or host is None or not is_loopback(host):
            return None
        path = self.path(port, variables)
        try:
            return None if path is None else _read(path)
        except OSError:
            return None

    def headers(self, url: str, variables: Mapping[str, str] = os.environ) -> dict[str, str]:
        """Headers of a request to the door at an address; empty where no token is known."""
        return bearer(self.token(url, variables))


CONTROL = Door("gateway", CONTROL_TOKEN_VARIABLE)
"""The control door of a gateway."""


def bearer(token: str | None) -> dict[str, str]:
    """Headers that show a token; none without one."""
    return {} if token is None else {"Authorization": f"Bearer {token}"}


def _read(path: Path) -> str | None:
    """None where there is no token in it."""
    try:
        text = path.read_text(encoding="ascii").strip()
    except (FileNotFoundError, UnicodeDecodeError):
        return None
    return text if text.isprintable() and " " not in text and text else None
