"""Settings of a server, from environment variables, checked once."""

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
"""Tokens for language models on a server with a token, unless it is told otherwise."""
_PERIODS_S = {"second": 1.0, "minute": 60.0, "hour": 3600.0}


@dataclass(frozen=True)
class Rate:
    """At most ``count`` in any ``period_s`` seconds."""

    count: int
    period_s: float

    @classmethod
    def parse(cls, text: str, name: str) -> Rate:
        """From text like ``100/second``, ``2000/minute`` or ``5000/hour``.

        Raises:
          InputError: it reads otherwise; ``name`` says where it came from.
        """
        found = re.fullmatch(r"([1-9][0-9]{0,8})/(second|minute|hour)", text)
        if found is None:
            checks.refuse(name, text, "a count per second, minute or hour, like 100/second")
        return cls(int(found[1]), _PERIODS_S[found[2]])


@dataclass(frozen=True)
class Settings:
    """What an operator may choose; ``from_environment`` says by which variable."""

    database: str
    """path of the session log, or ``:memory:``."""
    token: str | None = None
    """bearer token that every route but ``/health`` asks for; None asks for none."""
    cors_origins: tuple[str, ...] = ()
    """origins whose pages may call the server, and by whose names it is called; ``*`` for all."""
    rate_limit: Rate = Rate(5000, 1.0)
    """requests and WebSocket messages per client address."""
    max_body_bytes: int = 4 * 2**20
    """largest request body or WebSocket message."""
    live_sessions: int = 1024
    """sessions kept in memory; the least recently used one goes first and comes back by replay."""
    session_idle_s: float = 7 * 86400.0
    """sessions not used for this long are gone."""
    max_connections: int = 512
    """WebSockets at the same time."""
    address_connections: int | None = None
    """those of one client address; None is half of all, so that nobody keeps everybody else out."""
    socket_idle_s: float = 900.0
    """WebSockets on which nothing was asked for this long are closed; their sessions stay."""
    trusted_proxies: tuple[str, ...] = ()
    """addresses and networks whose ``X-Forwarded-For`` is believed, ``*`` for all."""
    workers: int = 1
    """server processes that share the log."""
    port: int = 7860
    """where ``python -m server.app`` listens, unless it is told otherwise."""
    compile_ahead: bool = True
    """whether what any task may need is compiled before it is asked for."""
    model_tokens: int = 0
    """tokens that ``POST /baseline`` and ``POST /operator`` may spend in all on the operator's
    language model; 0: none."""
    live: LiveSettings | None = None
    """the real engine that it plays on; None: episodes are simulated."""
    warnings: tuple[str, ...] = ()
    """what is set and has no effect, as sentences without their end."""

    @classmethod
    def from_environment(
        cls, variables: Mapping[str, str] = os.environ, arguments: Sequence[str] = ()
    ) -> Settings:
        """Reads ``JAXSERVE_*``, ``MAX_CONCURRENT_ENVS``, ``WEB_CONCURRENCY``, ``PORT`` and
        ``FORWARDED_ALLOW_IPS``.

        Args:
          arguments: of the command line, in which ``--workers`` and ``--forwarded-allow-ips`` may
            be: uvicorn has them, and so has ``python -m server.app``.

        Raises:
          InputError: a variable's value is not allowed.
        """
        variables = _with_options(variables, arguments)

        def whole(name: str, default: int, low: int, high: int) -> int:
            text = variables.get(name)
            return checks.digits(name, text, low, high) if text else default

        rate = variables.get("JAXSERVE_RATE_LIMIT")
        token = checks.secret(variables, "JAXSERVE_TOKEN")
        live = LiveSettings.from_environment(variables)
        # Without a token anybody could spend the operator's money: that has to be asked for.
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


_OPTIONS = {"--workers": "WEB_CONCURRENCY", "--forwarded-allow-ips": "FORWARDED_ALLOW_IPS"}
"""Options of the command line in place of variables."""


def _with_options(variables: Mapping[str, str], arguments: Sequence[str]) -> Mapping[str, str]:
    """The variables as options of the command line override them."""
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
