"""Which variables make a server live, by their own names and those of earlier projects."""

from __future__ import annotations

import pytest

from jaxserve.errors import InputError
from server.live_settings import LiveSettings

LIVE = {"JAXSERVE_MODE": "live", "JAXSERVE_LIVE_URL": "http://127.0.0.1:8000"}


def test_a_server_is_simulated_unless_it_is_told_otherwise() -> None:
    """Whatever else is set, a key for a language model for one."""
    others = {"OPENAI_API_KEY": "sk-x", "LLMSERVE_REAL_MODEL": "m", "LLMSERVE_MODE": "sim"}
    for variables in ({}, others, {"JAXSERVE_MODE": "simulated"}, {"JAXSERVE_MODE": ""}):
        assert LiveSettings.from_environment(variables) is None


def test_the_earlier_names_mean_the_same() -> None:
    """Every one of them."""
    earlier = LiveSettings.from_environment(
        {
            "LLMSERVE_MODE": "real",
            "LLMSERVE_REAL_PROVIDER": "openai",
            "LLMSERVE_REAL_MODEL": "small",
            "LLMSERVE_REAL_MAX_REQUESTS_PER_STEP": "3",
            "LLMSERVE_REAL_MAX_PROMPT_TOKENS": "100",
            "LLMSERVE_REAL_MAX_COMPLETION_TOKENS": "20",
            "OPENAI_API_KEY": "sk-x",
        }
    )
    now = LiveSettings.from_environment(
        {
            "JAXSERVE_MODE": "live",
            "JAXSERVE_LIVE_PROVIDER": "openai",
            "JAXSERVE_LIVE_MODEL": "small",
            "JAXSERVE_LIVE_MAX_REQUESTS_PER_STEP": "3",
            "JAXSERVE_LIVE_MAX_PROMPT_TOKENS": "100",
            "JAXSERVE_LIVE_MAX_COMPLETION_TOKENS": "20",
            "JAXSERVE_LIVE_KEY": "sk-x",
        }
    )
    assert earlier == now
    assert now is not None and now.url == "https://api.openai.com" and now.max_requests == 3


def test_whether_priorities_are_told() -> None:
    """By default the engine's plug-in decides; a hosted model serves nobody by it."""

    def chosen(**more: str) -> bool | None:
        settings = LiveSettings.from_environment(LIVE | more)
        assert settings is not None
        return settings.priority

    hosted = {"JAXSERVE_LIVE_PROVIDER": "openai", "JAXSERVE_LIVE_MODEL": "m"}
    assert chosen() is None and chosen(JAXSERVE_LIVE_PRIORITY="ON") is True
    assert chosen(JAXSERVE_LIVE_PRIORITY="off") is False
    assert chosen(JAXSERVE_LIVE_KEY="sk-x", **hosted) is False
    with pytest.raises(InputError, match="JAXSERVE_LIVE_PRIORITY is on; it must be off"):
        chosen(JAXSERVE_LIVE_KEY="sk-x", JAXSERVE_LIVE_PRIORITY="on", **hosted)
    with pytest.raises(InputError, match="JAXSERVE_LIVE_PRIORITY is 'yes'"):
        chosen(JAXSERVE_LIVE_PRIORITY="yes")


def test_two_spellings_of_the_same_agree() -> None:
    """Also where they differ in letters."""
    both = {"LLMSERVE_MODE": "real", "LLMSERVE_REAL_PROVIDER": "vllm"}
    own = {"JAXSERVE_LIVE_PROVIDER": "engine", "JAXSERVE_LIVE_URL": "http://h:1/v1/"}
    settings = LiveSettings.from_environment({"JAXSERVE_MODE": "LIVE"} | both | own)
    assert settings is not None and settings.url == "http://h:1" and not settings.chat


def test_a_key_of_openai_is_not_sent_to_other_engines() -> None:
    """It is there for the language model that plays; an engine's key has a name of its own."""
    settings = LiveSettings.from_environment(LIVE | {"OPENAI_API_KEY": "sk-x"})
    assert settings is not None and settings.key is None


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"JAXSERVE_MODE": "on"}, "JAXSERVE_MODE is 'on'; it must be one of"),
        ({"JAXSERVE_MODE": "simulated", "LLMSERVE_MODE": "real"}, "they must be the same"),
        ({"JAXSERVE_MODE": "live"}, "JAXSERVE_LIVE_URL is missing"),
        (LIVE | {"JAXSERVE_LIVE_URL": "http://a:b@h"}, r"JAXSERVE_LIVE_URL is 'http://\.\.\.@h'"),
        (LIVE | {"JAXSERVE_LIVE_URL": "file:///etc/passwd"}, "JAXSERVE_LIVE_URL is 'file:"),
        (LIVE | {"JAXSERVE_LIVE_PROVIDER": "x"}, "JAXSERVE_LIVE_PROVIDER is 'x'; it must be"),
        (LIVE | {"JAXSERVE_LIVE_PROVIDER": "openai"}, "JAXSERVE_LIVE_MODEL is missing"),
        (
            LIVE | {"JAXSERVE_LIVE_PROVIDER": "openai", "JAXSERVE_LIVE_MODEL": "m"},
            "JAXSERVE_LIVE_KEY is missing",
        ),
        (
            LIVE | {"JAXSERVE_LIVE_MODEL": "a", "LLMSERVE_REAL_MODEL": "b"},
            "JAXSERVE_LIVE_MODEL is 'a' and LLMSERVE_REAL_MODEL is 'b'",
        ),
        (LIVE | {"JAXSERVE_LIVE_TOKEN_LIMIT": "-1"}, "JAXSERVE_LIVE_TOKEN_LIMIT is '-1'"),
        (LIVE | {"LLMSERVE_REAL_MAX_REQUESTS_PER_STEP": "0"}, "it must be a whole number"),
    ],
)
def test_one_sentence_where_it_cannot_be(variables: dict[str, str], reason: str) -> None:
    """Before anything is started."""
    with pytest.raises(InputError, match=reason):
        LiveSettings.from_environment(variables)


@pytest.mark.parametrize(
    "secrets",
    [
        {"JAXSERVE_LIVE_KEY": "sk-sec\nret"},
        {"JAXSERVE_CONTROL_TOKEN": "sk-sec ret"},
        {
            "JAXSERVE_LIVE_PROVIDER": "openai",
            "JAXSERVE_LIVE_MODEL": "m",
            "JAXSERVE_LIVE_KEY": "sk-sec1",
            "OPENAI_API_KEY": "sk-sec2",
        },
    ],
)
def test_a_key_is_never_shown(secrets: dict[str, str]) -> None:
    """Neither one that is refused nor one that is used."""
    with pytest.raises(InputError) as caught:
        LiveSettings.from_environment(LIVE | secrets)
    assert "sk-sec" not in str(caught.value)
    settings = LiveSettings.from_environment(LIVE | {"JAXSERVE_LIVE_KEY": "sk-secret"})
    assert "sk-secret" not in repr(settings)
