"""Engines and pools, as the command line describes them.

``vllm=http://10.0.0.5:8000,tier=1,depth=4,cap=32,key=VLLM_KEY``. Engines of the same tier and
speculation depth are replicas of one pool. A request names a pool at most, never an address.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from jaxserve import checks
from jaxserve.errors import InputError
from jaxserve.gateway.dialects.template_policy import TemplatePolicy

KINDS = ("vllm", "sglang")
_NUMBERS = {
    "tier": (0, 2),
    "depth": (0, 64),
    "cap": (1, 100_000),
    "priority": (0, 1),
    "developer": (0, 1),
    "parts": (0, 1),
    "max-output": (1, 10_000_000),
}
_MEANINGS = {"vllm": "raw", "sglang": "scaled"}
_TEMPLATE = ("system", "tool-images", "reasoning", "thinking")
_OPTIONS = (*_NUMBERS, "key", "control", "pool", "logprobs", "model", *_TEMPLATE)


@dataclass(frozen=True)
class EngineSpec:
    """One engine, as the operator configured it."""

    kind: str
    """``vllm`` or ``sglang``."""
    url: str
    """URL without a slash at the end."""
    name: str
    """name in responses, records and metrics: kind and place on the command line, ``vllm-0``."""
    pool: str
    """pool of the engine."""
    tier: int | None = None
    """quantisation tier of its start-up: 0 = FP16, 1 = INT8, 2 = INT4."""
    depth: int | None = None
    """speculation depth of its start-up."""
    cap: int | None = None
    """cap on running requests, enforced by the gateway; None leaves the cap to the engine."""
    takes_priority: bool = False
    """whether the gateway passes on the priority of a request (vLLM with ``--scheduling-policy
    priority``)."""
    key: str | None = field(default=None, repr=False)
    """bearer key of the engine."""
    control_key: str | None = field(default=None, repr=False)
    """bearer key of its control routes; None uses ``key``."""
    logprobs: str = "raw"
    """meaning of its log-probabilities: ``raw``, of the model itself; ``scaled``, after the
    temperature; ``processed``, after all that sampling does."""
    model: str | None = None
    """name of the served model, which replaces the client's name in sessions; None passes the
    client's name on."""
    policy: TemplatePolicy = field(default_factory=TemplatePolicy)
    """policy of the model's chat template, for sessions."""


def parse_engines(
    texts: Sequence[str], variables: Mapping[str, str] = os.environ
) -> tuple[EngineSpec, ...]:
    """Parses all ``--engine`` arguments.

    Args:
      texts: values of the arguments.
      variables: environment variables, which hold the keys.

    Raises:
      InputError: an argument is malformed, or an address is given twice.
    """
    if not texts:
        raise InputError("--engine is missing; name at least one: vllm=http://127.0.0.1:8000")
    specs = tuple(_parse(text, place, variables) for place, text in enumerate(texts))
    urls = [spec.url for spec in specs]
    for url in urls:
        if urls.count(url) > 1:
            raise InputError(f"--engine {url} is given twice; each address is one replica")
    return specs


def pool_names(specs: Sequence[EngineSpec]) -> tuple[str, ...]:
    """Names of the pools, in the order of their first replicas; the first one is the default."""
    return tuple(dict.fromkeys(spec.pool for spec in specs))


def _parse(text: str, place: int, variables: Mapping[str, str]) -> EngineSpec:
    head, *rest = text.split(",")
    kind, equals, url = head.partition("=")
    if kind not in KINDS or not equals:
        raise InputError(
            f"--engine {checks.without_password(head)!r} is not understood; it must be like "
            "vllm=http://127.0.0.1:8000 or sglang=http://127.0.0.1:30000"
        )
    options = _options(rest, f"--engine {kind}-{place}")
    tier, depth, cap = (_whole(options, name, place) for name in ("tier", "depth", "cap"))
    takes_priority = bool(_whole(options, "priority", place))
    if takes_priority and kind != "vllm":
        raise InputError(
            f"--engine {kind}-{place}: priority is for vllm; SGLang takes the field priority of "
            "the request itself"
        )
    return EngineSpec(
        kind=kind,
        url=checks.address("--engine", url).rstrip("/"),
        name=f"{kind}-{place}",
        pool=_pool(options.get("pool"), tier, depth),
        tier=tier,
        depth=depth,
        cap=cap,
        takes_priority=takes_priority,
        key=_key("key", options, variables),
        control_key=_key("control", options, variables),
        logprobs=checks.one_of(
            f"--engine {kind}-{place}: logprobs",
            options.get("logprobs", _MEANINGS[kind]),
            ("raw", "scaled", "processed"),
        ),
        model=options.get("model"),
        policy=_policy(options, place),
    )


def _policy(options: Mapping[str, str], place: int) -> TemplatePolicy:
    """Policy of the options for the model's chat template; the rest are defaults."""
    where, given = f"--engine {place}: ", TemplatePolicy()
    reasoning = options.get("reasoning", "+".join(given.reasoning_fields)).split("+")
    thinking = options.get("thinking")
    for name, field_name in (*(("reasoning", one) for one in reasoning), ("thinking", thinking)):
        if field_name is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,63}", field_name):
            raise InputError(f"{where}{name} is {options[name]!r}; it must be a field's name")
    system = checks.one_of(f"{where}system", options.get("system", "keep"), ("keep", "fold"))
    images = options.get("tool-images", "keep")
    images = checks.one_of(f"{where}tool-images", images, ("keep", "follow"))
    return TemplatePolicy(
        knows_developer=bool(_whole(options, "developer", place)),
        later_system="fold" if system == "fold" else "keep",
        joins_text=not _whole(options, "parts", place),
        tool_images="follow" if images == "follow" else "keep",
        reasoning_fields=tuple(reasoning),
        thinking_budget_field=thinking,
        max_output_tokens=_whole(options, "max-output", place),
    )


def _options(parts: Sequence[str], where: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in parts:
        name, _, value = part.partition("=")
        if name not in _OPTIONS or not value or name in found:
            raise InputError(
                f"{where}: option {part!r} is not understood; allowed are {', '.join(_OPTIONS)}, "
                "each once and with a value"
            )
        found[name] = value
    return found


def _whole(options: Mapping[str, str], name: str, place: int) -> int | None:
    text, where = options.get(name), f"--engine {place}: {name}"
    return None if text is None else checks.digits(where, text, *_NUMBERS[name])


def _pool(given: str | None, tier: int | None, depth: int | None) -> str:
    if given is not None:
        if not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", given):
            raise InputError(
                f"--engine has pool={given!r}; a pool's name has at most 64 letters, digits, "
                "dots, dashes and underscores"
            )
        return given
    described = {"tier": tier, "depth": depth}
    parts = [f"{word}{value}" for word, value in described.items() if value is not None]
    return "-".join(parts) or "default"


def _key(option: str, options: Mapping[str, str], variables: Mapping[str, str]) -> str | None:
    name = options.get(option)
    if name is None:
        return None
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise InputError(
            f"--engine has a {option} that is no name of a variable; keys are not arguments"
        )
    found = checks.secret(variables, name)
    if found is None:
        raise InputError(
            f"--engine has {option}={name}, but the variable {name} is empty or not set"
        )
    return found
