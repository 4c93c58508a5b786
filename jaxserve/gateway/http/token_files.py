"""Auto-generated bearer tokens of local services, in files with mode 600.

A local service with an operator's rights (the gateway's control port, the rollout service, the
dashboard) is reached by every process of the machine, agents in containers with the host's network
included. A container cannot read the file of the token.
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
from jaxserve.runtime.storage import state_folder

_BYTES = 24


@dataclass(frozen=True)
class TokenFile:
    """Token file of a kind of local service; a machine has one service per port."""

    name: str
    """kind of service, the prefix of the file name."""
    variable: str
    """environment variable of a token that replaces the generated one."""

    def path(self, port: int, variables: Mapping[str, str] = os.environ) -> Path | None:
        """Path of the token file of the service at a port; None where the user has no home."""
        folder = state_folder(variables)
        return None if folder is None else folder / f"{self.name}-{port}.token"

    def keep(self, port: int, variables: Mapping[str, str] = os.environ) -> str:
        """Reads the token of the service at a port, or generates and stores one.

        A restarted service keeps its token. The caller holds the port, so no two write at a time.

        Raises:
          InputError: the token cannot be stored.
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
        """Token for the service at a URL: the variable's, else the stored one of a service of this
        machine and user; None where neither is known.

        Raises:
          InputError: the variable has other than printable ASCII characters.
        """
        named = checks.secret(variables, self.variable)
        return self.own_token(url, variables) if named is None else named

    def own_token(self, url: str, variables: Mapping[str, str] = os.environ) -> str | None:
        """Stored token of the service at a loopback URL; None where none is known."""
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
        """Headers for a request to the service at a URL; empty where no token is known."""
        return bearer(self.token(url, variables))


CONTROL = TokenFile("gateway", CONTROL_TOKEN_VARIABLE)
"""Token file of a gateway's control port."""


def bearer(token: str | None) -> dict[str, str]:
    """Headers that carry a token; empty without one."""
    return {} if token is None else {"Authorization": f"Bearer {token}"}


def _read(path: Path) -> str | None:
    """The token in a file; None where the file is missing or holds no token."""
    try:
        text = path.read_text(encoding="ascii").strip()
    except (FileNotFoundError, UnicodeDecodeError):
        return None
    return text if text.isprintable() and " " not in text and text else None
