"""Settings of a server, read from environment variables and checked once."""

from __future__ import annotations

import ipaddress
import itertools
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxserve import checks
from jaxserve.runtime.earlier_variables import EARLIER, without_effect
from jaxserve.runtime.storage import state_folder
from server.live_settings import LiveSettings

IN_MEMORY = ":memory:"
MODEL_TOKENS = 200_000
"""Default budget of language models, on a server with a token."""
_PERIODS_S = {"second": 1.0, "minute": 60.0, "hour": 3600.0}


@dataclass(frozen=True)
class Rate:
    """A rate: at most ``count`` in any ``period_s`` seconds."""

    count: int
    period_s: float

    @classmethod
    def parse(cls, text: str, name: str) -> Rate:
        """A rate from text like ``100/second``, ``2000/minute`` or ``5000/hour``.

        Raises:
          InputError: the text of variable ``name`` is no rate.
        """
        found = re.fullmatch(r"([1-9][0-9]{0,8})/(second|minute|hour)", text)
        if found is None:
            checks.refuse(name, text, "a count per second, minute or hour, like 100/second")
        return cls(int(found[1]), _PERIODS_S[found[2]])


@dataclass(frozen=True)
class Settings:
    """Settings of an operator; ``from_environment`` names their variables."""

    database: str
    """path of the session log, or ``:memory:``."""
    token: str | None = None
    """bearer token of all routes but ``/health``; None: no token."""
    cors_origins: tuple[str, ...] = ()
    """origins whose pages may call, and whose host names may name the server; ``*`` for all."""
    rate_limit: Rate = Rate(5000, 1.0)
    """requests and WebSocket messages per client address."""
    max_body_bytes: int = 4 * 2**20
    """largest request body or WebSocket message."""
    live_sessions: int = 1024
    """sessions in memory; the least recently used one is evicted and rebuilt when needed."""
    session_idle_s: float = 7 * 86400.0
    """seconds until an unused session expires."""
    max_connections: int = 512
    """open WebSockets at most."""
    address_connections: int | None = None
    """open WebSockets per client address; None: half of all."""
    socket_idle_s: float = 900.0
    """seconds until an idle WebSocket is closed; its session stays."""
    trusted_proxies: tuple[str, ...] = ()
    """addresses and networks whose ``X-Forwarded-For`` and ``X-Forwarded-Prefix`` are trusted,
    ``*`` for all."""
    root_path: str = ""
    """path before all routes behind a proxy, ``/jax``; empty: none."""
    workers: int = 1
    """server processes that share the log."""
    port: int = 7860
    """default port of ``python -m server.app``."""
    compile_ahead: bool = True
    """whether the programs of all tasks are compiled before a request needs them."""
    model_tokens: int = 0
    """tokens that ``POST /baseline`` and ``POST /operator`` may spend on the operator's language
    model, in all."""
    live: LiveSettings | None = None
    """the real engine; None: episodes are simulated."""
    warnings: tuple[str, ...] = ()
    """sentences about variables that are set and have no effect."""

    @classmethod
    def from_environment(
        cls, variables: Mapping[str, str] = os.environ, arguments: Sequence[str] = ()
    ) -> Settings:
        """Reads ``JAXSERVE_*``, ``MAX_CONCURRENT_ENVS``, ``WEB_CONCURRENCY``, ``PORT`` and
        ``FORWARDED_ALLOW_IPS``.

        Args:
          arguments: command line, of uvicorn or ``python -m server.app``, with ``--workers``,
            ``--forwarded-allow-ips`` and ``--root-path``.

        Raises:
          InputError: a variable has an invalid value.
        """
        variables = _with_options(variables, arguments)

        def whole(name: str, default: int, low: int, high: int) -> int:
            text = variables.get(name)
            return checks.digits(name, text, low, high) if text else default

        rate = variables.get("JAXSERVE_RATE_LIMIT")
        token = checks.secret(variables, "JAXSERVE_TOKEN")
        live = LiveSettings.from_environment(variables)
        # Without a token anybody could spend the operator's tokens, so the default is none.
        model_tokens = 0 if token is None else MODEL_TOKENS
        return cls(
            database=variables.get("JAXSERVE_DATABASE") or str(default_database(variables)),
            token=token,
            cors_origins=_origins(variables.get("JAXSERVE_CORS_ORIGINS", "")),
            rate_limit=Rate.parse(rate, "JAXSERVE_RATE_LIMIT") if rate else cls.rate_limit,
            max_body_bytes=whole("JAXSERVE_MAX_BODY_BYTES", cls.max_body_bytes, 1024, 2**30),
            live_sessions=whole("JAXSERVE_LIVE_SESSIONS", cls.live_sessions, 1, 10**6),
            session_idle_s=whole("JAXSERVE_SESSION_IDLE_S", int(cls.session_idle_s), 1, 10**9),
            max_connections=whole("MAX_CONCURRENT_ENVS", cls.max_connections, 1, 100_000),
            address_connections=whole("JAXSERVE_SOCKETS_PER_ADDRESS", 0, 1, 100_000) or None,
            socket_idle_s=whole("JAXSERVE_SOCKET_IDLE_S", int(cls.socket_idle_s), 1, 10**9),
            trusted_proxies=_proxies(variables.get("FORWARDED_ALLOW_IPS", "")),
            root_path=checked_root_path(
                "JAXSERVE_ROOT_PATH", variables.get("JAXSERVE_ROOT_PATH", "").rstrip("/")
            ),
            workers=whole("WEB_CONCURRENCY", cls.workers, 1, 1024),
            port=whole("PORT", cls.port, 1, 65535),
            compile_ahead=whole("JAXSERVE_COMPILE_AHEAD", int(cls.compile_ahead), 0, 1) == 1,
            model_tokens=whole("JAXSERVE_MODEL_TOKENS", model_tokens, 0, 10**12),
            live=live,
            warnings=_warnings(variables, live),
        )


def default_database(variables: Mapping[str, str]) -> Path:
    """``jaxserve/sessions.sqlite3`` in the user's state directory."""
    folder = state_folder(variables)
    return Path(IN_MEMORY) if folder is None else folder / "sessions.sqlite3"


def _warnings(variables: Mapping[str, str], live: LiveSettings | None) -> tuple[str, ...]:
    read, where = [EARLIER["JAXSERVE_MODE"]], "on a server whose episodes are simulated"
    if live is not None:
        read, where = [*EARLIER.values()], "on a server"
    unused = without_effect(variables, read, where)
    return () if unused is None else (unused,)


_OPTIONS = {
    "--workers": "WEB_CONCURRENCY",
    "--forwarded-allow-ips": "FORWARDED_ALLOW_IPS",
    "--root-path": "JAXSERVE_ROOT_PATH",
}
"""Command line options, and the variables that they override."""


def _with_options(variables: Mapping[str, str], arguments: Sequence[str]) -> Mapping[str, str]:
    """The variables, overridden by command line options."""
    spread = [part for argument in arguments for part in argument.split("=", 1)]
    given = {
        _OPTIONS[name]: value for name, value in itertools.pairwise(spread) if name in _OPTIONS
    }
    return {**variables, **given}


def _origins(text: str) -> tuple[str, ...]:
    origins = tuple(origin.strip() for origin in text.split(",") if origin.strip())
    for origin in origins:
        if origin != "*" and not re.fullmatch(r"https?://[^/\s]+", origin):
            allowed = "an origin like https://lab.example without a path, or *"
            checks.refuse("JAXSERVE_CORS_ORIGINS", origin, allowed)
    return origins


def _proxies(text: str) -> tuple[str, ...]:
    proxies = tuple(proxy.strip() for proxy in text.split(",") if proxy.strip())
    for proxy in proxies:
        try:
            if proxy != "*":
                ipaddress.ip_network(proxy)
        except ValueError:
            allowed = "an address like 10.0.0.7, a network like 10.0.0.0/8, or *"
            checks.refuse("FORWARDED_ALLOW_IPS", proxy, allowed)
    return proxies


def checked_root_path(name: str, text: str) -> str:
    """A path before all routes, without a slash at its end, or empty text.

    Raises:
      InputError: the text of variable or header ``name`` is no such path.
    """
    if text and not re.fullmatch(r"(/[A-Za-z0-9_.~@:+-]+)+", text):
        checks.refuse(name, text, "a path like /jax of letters, digits and _ . ~ @ : + -")
    return text
