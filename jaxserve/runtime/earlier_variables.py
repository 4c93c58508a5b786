"""Environment variables of earlier projects: read, reported as unused, or refused."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from jaxserve.errors import InputError

EARLIER = {
    "JAXSERVE_MODE": "LLMSERVE_MODE",
    "JAXSERVE_LIVE_PROVIDER": "LLMSERVE_REAL_PROVIDER",
    "JAXSERVE_LIVE_MODEL": "LLMSERVE_REAL_MODEL",
    "JAXSERVE_LIVE_MAX_REQUESTS_PER_STEP": "LLMSERVE_REAL_MAX_REQUESTS_PER_STEP",
    "JAXSERVE_LIVE_MAX_PROMPT_TOKENS": "LLMSERVE_REAL_MAX_PROMPT_TOKENS",
    "JAXSERVE_LIVE_MAX_COMPLETION_TOKENS": "LLMSERVE_REAL_MAX_COMPLETION_TOKENS",
}
"""Earlier names of a server's variables."""
BASE_URL = "LLMSERVE_BASE_URL"
"""Variable of the command that scores baselines over HTTP."""
_PREFIX = "LLMSERVE_"
_KNOWN = frozenset({*EARLIER.values(), BASE_URL})


def check_earlier(variables: Mapping[str, str]) -> None:
    """Raises InputError for an unknown variable of an earlier project."""
    for name in sorted(variables):
        if name.startswith(_PREFIX) and name not in _KNOWN:
            raise InputError(
                f"{name} is set, which has no effect here; known are {', '.join(sorted(_KNOWN))}"
            )


def without_effect(variables: Mapping[str, str], read: Collection[str], where: str) -> str | None:
    """A warning about variables that are set and have no effect here; None without any. A
    deployment may set them for all of its programs, so they are no error.

    Args:
      read: names that have an effect.
      where: end of the sentence, such as "on a server".

    Raises:
      InputError: see ``check_earlier``.
    """
    check_earlier(variables)
    unused = sorted(name for name in _KNOWN.difference(read) if variables.get(name))
    if not unused:
        return None
    verbs = ("is", "has") if len(unused) == 1 else ("are", "have")
    return f"{', '.join(unused)} {verbs[0]} set and {verbs[1]} no effect {where}"
