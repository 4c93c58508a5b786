"""Settings: in range, tokens out of sight, and nothing open to others by accident."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from jaxserve.errors import InputError
from jaxserve.gateway.settings import AccessTokens, GatewaySettings, check_exposure


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"port": 70000}, "--port is 70000; it must be a number from 0 to 65535"),
        ({"queue": -1}, "--queue is -1; it must be a number from 0 to 1000000"),
        ({"idle_s": math.nan}, "--idle-s is nan; it must be a number from 0.1"),
        ({"drain_s": math.inf}, "--drain-s is inf; it must be a number from 0 to 3600"),
        ({"control_port": 9000}, "clients and control need ports of their own"),
    ],
)
def test_ranges(changed: dict[str, Any], message: str) -> None:
    """The option is named as on the command line."""
    with pytest.raises(InputError) as refused:
        GatewaySettings(engine=("vllm=http://a",), **changed).check()
    assert message in str(refused.value)


def test_tokens_are_not_shown() -> None:
    """They come from the environment, and a bad one is not repeated."""
    tokens = AccessTokens.from_environment(
        {"JAXSERVE_GATEWAY_TOKEN": "secret-1", "JAXSERVE_GATEWAY_CONTROL_TOKEN": "secret-2"}
    )
    assert (tokens.client, tokens.control) == ("secret-1", "secret-2")
    assert "secret" not in repr(tokens)
    with pytest.raises(InputError) as refused:
        AccessTokens.from_environment({"JAXSERVE_GATEWAY_TOKEN": "my secret"})
    assert "my secret" not in str(refused.value)


def test_clients_are_no_controllers() -> None:
    """One token for both would let them turn knobs; it is not repeated either."""
    names = ("JAXSERVE_GATEWAY_TOKEN", "JAXSERVE_GATEWAY_CONTROL_TOKEN")
    with pytest.raises(InputError, match="with which clients could turn knobs; it must be another"):
        AccessTokens.from_environment({name: "my-secret" for name in names})
    with pytest.raises(InputError) as refused:
        replace(AccessTokens(client="my-secret"), control="my-secret")
    assert "my-secret" not in str(refused.value)


def test_control_is_not_open_to_others() -> None:
    """Without a token only this machine reaches it; clients may, with a warning."""
    wide = GatewaySettings(engine=(), control_host="0.0.0.0")
    with pytest.raises(InputError, match="set JAXSERVE_GATEWAY_CONTROL_TOKEN"):
        check_exposure(wide, AccessTokens())
    assert check_exposure(wide, AccessTokens(control="x")) is None
    for host in ("127.0.0.1", "127.0.0.2", "::1", "localhost"):
        assert check_exposure(GatewaySettings(engine=(), host=host), AccessTokens()) is None
    for host in ("0.0.0.0", "::", "10.0.0.1", "127.evil.example"):
        settings = GatewaySettings(engine=(), host=host)
        assert "anyone who reaches" in (check_exposure(settings, AccessTokens()) or "")
        assert check_exposure(settings, AccessTokens(client="x")) is None
