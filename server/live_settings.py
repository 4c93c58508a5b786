"""Settings of live play: the real engine, and the limits of its requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from jaxserve import checks
from jaxserve.errors import InputError
from jaxserve.runtime.earlier_variables import EARLIER, check_earlier

OPENAI_URL = "https://api.openai.com"
_MODES = {"simulated": False, "sim": False, "live": True, "real": True}
_PROVIDERS = {"engine": False, "vllm": False, "sglang": False, "openai": True}
_SWITCHES = {"auto": None, "off": False, "on": True}
_KEY, _CONTROL_TOKEN = "JAXSERVE_LIVE_KEY", "JAXSERVE_CONTROL_TOKEN"
_OPENAI_KEY = "OPENAI_API_KEY"


@dataclass(frozen=True)
class LiveSettings:
    """A real engine, and the limits of its requests."""

    url: str
    """address of the engine, without a path."""
    chat: bool
    """whether the engine is a hosted chat model."""
    model: str | None
    """model to request; None: the first one that the engine lists."""
    key: str | None = field(repr=False)
    control_token: str | None = field(repr=False)
    """token of the engine's plug-in jaxserve-vllm."""
    max_requests: int = 8
    """requests of one window at most."""
    max_prompt_tokens: int = 512
    """tokens of a prompt at most; longer ones are cut."""
    max_completion_tokens: int = 64
    """tokens of an output at most; longer ones are cut."""
    priority: bool | None = False
    """whether requests carry their priority; None: if the plug-in offers priority routing."""
    token_limit: int = 1_000_000
    """tokens in and out at most, over all starts of the server on one log."""

    @property
    def provider(self) -> str:
        """Value of ``JAXSERVE_LIVE_PROVIDER``."""
        return "openai" if self.chat else "engine"

    @classmethod
    def from_environment(cls, variables: Mapping[str, str]) -> LiveSettings | None:
        """Reads the settings if ``JAXSERVE_MODE`` is live; None if it is simulated.

        Raises:
          InputError: a value is invalid or missing, or two names of a variable differ.
        """
        if not plays_live(variables):
            return None
        names = {name: _of_both(name, earlier, variables) for name, earlier in EARLIER.items()}
        chat = _word("JAXSERVE_LIVE_PROVIDER", names, _PROVIDERS, "engine")
        model = names["JAXSERVE_LIVE_MODEL"]
        if chat and model is None:
            raise InputError("JAXSERVE_LIVE_MODEL is missing; the provider openai has many models")
        key = checks.secret(variables, _KEY)
        if chat:
            key = _one_key(key, checks.secret(variables, _OPENAI_KEY))

        def whole(name: str, default: int, high: int) -> int:
            text = names.get(name, variables.get(name))
            return checks.digits(name, text, 1, high) if text else default

        return cls(
            url=_address(variables.get("JAXSERVE_LIVE_URL"), chat),
            chat=chat,
            model=model,
            key=key,
            control_token=checks.secret(variables, _CONTROL_TOKEN),
            max_requests=whole("JAXSERVE_LIVE_MAX_REQUESTS_PER_STEP", cls.max_requests, 10_000),
            max_prompt_tokens=whole(
                "JAXSERVE_LIVE_MAX_PROMPT_TOKENS", cls.max_prompt_tokens, 2**20
            ),
            max_completion_tokens=whole(
                "JAXSERVE_LIVE_MAX_COMPLETION_TOKENS", cls.max_completion_tokens, 2**20
            ),
            priority=_priority(variables.get("JAXSERVE_LIVE_PRIORITY"), chat),
            token_limit=whole("JAXSERVE_LIVE_TOKEN_LIMIT", cls.token_limit, 10**15),
        )


def plays_live(variables: Mapping[str, str]) -> bool:
    """Whether ``JAXSERVE_MODE`` is live.

    Raises:
      InputError: the mode is unknown, or so is a variable of an earlier project.
    """
    check_earlier(variables)
    names = {name: _of_both(name, earlier, variables) for name, earlier in EARLIER.items()}
    return _word("JAXSERVE_MODE", names, _MODES, "simulated")


def check_simulated(variables: Mapping[str, str]) -> None:
    """Checks that the mode is simulated, for commands that play nothing else.

    Raises:
      InputError: the mode is live; further as ``plays_live``.
    """
    if plays_live(variables):
        raise InputError(
            "JAXSERVE_MODE (or LLMSERVE_MODE) asks for a real engine, on which only a server "
            "plays; it must be simulated here"
        )


def _of_both(name: str, earlier: str, variables: Mapping[str, str]) -> str | None:
    """The value of a variable by its name or its earlier name."""
    now, before = variables.get(name) or None, variables.get(earlier) or None
    if now is not None and before is not None and _meaning(now) != _meaning(before):
        raise InputError(
            f"{name} is {now!r:.60} and {earlier} is {before!r:.60}; they must be the same, or one "
            "of them left out"
        )
    return before if now is None else now


def _meaning(text: str) -> object:
    """A value that is equal for spellings of the same meaning."""
    word = text.lower()
    if word in _MODES:
        return "mode", _MODES[word]
    return ("provider", _PROVIDERS[word]) if word in _PROVIDERS else text


def _word(
    name: str, values: Mapping[str, str | None], known: Mapping[str, bool], default: str
) -> bool:
    value = values[name] or default
    return known[checks.one_of(name, value.lower(), known)]


def _priority(text: str | None, chat: bool) -> bool | None:
    """Whether requests carry a priority. vLLM refuses the field unless it runs with
    ``--scheduling-policy priority``, and does not say how it runs."""
    chosen = _SWITCHES[checks.one_of("JAXSERVE_LIVE_PRIORITY", (text or "auto").lower(), _SWITCHES)]
    if chosen and chat:
        raise InputError(
            "JAXSERVE_LIVE_PRIORITY is on; it must be off with the provider openai, which serves "
            "nobody by it"
        )
    return False if chat else chosen


def _address(text: str | None, chat: bool) -> str:
    if not text and chat:
        return OPENAI_URL
    if not text:
        raise InputError(
            "JAXSERVE_LIVE_URL is missing; it is the engine's address, such as "
            "http://127.0.0.1:8000, or set JAXSERVE_LIVE_PROVIDER to openai"
        )
    return checks.address("JAXSERVE_LIVE_URL", text.rstrip("/").removesuffix("/v1"), path=False)


def _one_key(key: str | None, openai: str | None) -> str:
    if key and openai and key != openai:
        raise InputError(
            f"{_KEY} and {_OPENAI_KEY} differ; they must be the same, or one of them left out"
        )
    found = key or openai
    if found is None:
        raise InputError(f"{_KEY} is missing; the provider openai asks for one")
    return found
