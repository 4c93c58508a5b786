"""Whether a server plays on a real engine, which one, and how much it may send there."""

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
    """A real engine, and the limits of what it is sent."""

    url: str
    """without a path."""
    chat: bool
    """whether it is a hosted model that answers chats, and no engine of one's own."""
    model: str | None
    """None: the first that the engine lists."""
    key: str | None = field(repr=False)
    control_token: str | None = field(repr=False)
    """of the engine's plug-in jaxserve-vllm."""
    max_requests: int = 8
    """sent in one step."""
    max_prompt_tokens: int = 512
    """longer prompts are cut."""
    max_completion_tokens: int = 64
    """longer outputs are cut."""
    priority: bool | None = False
    """whether the engine is told the priority of every request; None: if its plug-in says that it
    serves by priority."""
    token_limit: int = 1_000_000
    """tokens in and out that may ever be spent, by all starts of the server on one log."""

    @property
    def provider(self) -> str:
        """By the name that ``JAXSERVE_LIVE_PROVIDER`` has for it."""
        return "openai" if self.chat else "engine"

    @classmethod
    def from_environment(cls, variables: Mapping[str, str]) -> LiveSettings | None:
        """Reads ``JAXSERVE_MODE`` and, where it is live, the rest; None where it is simulated.

        Raises:
          InputError: a value is not allowed, is missing, or is given twice and differs.
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
    """Whether ``JAXSERVE_MODE`` asks for a real engine.

    Raises:
      InputError: it says something else, or a variable of an earlier project has no effect.
    """
    check_earlier(variables)
    names = {name: _of_both(name, earlier, variables) for name, earlier in EARLIER.items()}
    return _word("JAXSERVE_MODE", names, _MODES, "simulated")


def check_simulated(variables: Mapping[str, str]) -> None:
    """For what plays simulated episodes only.

    Raises:
      InputError: a real engine is asked for, or see ``plays_live``.
    """
    if plays_live(variables):
        raise InputError(
            "JAXSERVE_MODE (or LLMSERVE_MODE) asks for a real engine, on which only a server "
            "plays; it must be simulated here"
        )


def _of_both(name: str, earlier: str, variables: Mapping[str, str]) -> str | None:
    """A variable by its name or its earlier one."""
    now, before = variables.get(name) or None, variables.get(earlier) or None
    if now is not None and before is not None and _meaning(now) != _meaning(before):
        raise InputError(
            f"{name} is {now!r:.60} and {earlier} is {before!r:.60}; they must be the same, or one "
            "of them left out"
        )
    return before if now is None else now


def _meaning(text: str) -> object:
    """What two spellings of the same have in common."""
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
    """vLLM refuses the field unless it runs with ``--scheduling-policy priority``, and itself does
    not say how it runs."""
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
