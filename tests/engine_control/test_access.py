"""Who may turn knobs."""

import pytest

from jaxserve.engine_control.access import check_token, refusal

TOKEN = "0123456789abcdef"
HERE = {"host": "localhost:8000"}


@pytest.mark.parametrize("given", [f"Bearer {TOKEN}", f"bearer {TOKEN} "])
def test_the_token_opens_from_anywhere(given: str) -> None:
    """Also through a proxy."""
    headers = {"host": "gpu.example", "authorization": given, "x-forwarded-for": "10.0.0.7"}
    assert refusal(TOKEN, "10.0.0.7", headers) is None


@pytest.mark.parametrize("given", [None, "", TOKEN, f"Basic {TOKEN}", "Bearer", f"Bearer {TOKEN}x"])
def test_where_there_is_a_token_nothing_else_opens(given: str | None) -> None:
    """Not even a request from this machine."""
    headers = HERE if given is None else {**HERE, "authorization": given}
    refused = refusal(TOKEN, "127.0.0.1", headers)
    assert refused is not None and refused[0] == 401


@pytest.mark.parametrize("host", ["localhost", "localhost:8000", "127.0.0.1:8000", "[::1]:8000"])
@pytest.mark.parametrize("client", ["127.0.0.1", "127.9.9.9", "::1"])
def test_without_a_token_this_machine_may(client: str, host: str) -> None:
    """Requests that come directly."""
    assert refusal(None, client, {"host": host}) is None


@pytest.mark.parametrize(
    ("client", "headers"),
    [
        ("10.0.0.7", HERE),
        ("0.0.0.0", HERE),
        (None, HERE),
        ("testclient", HERE),
        ("127.0.0.1", {}),
        ("127.0.0.1", {"host": "evil.example:8000"}),  # a name that points here (DNS rebinding)
        ("127.0.0.1", {"host": "localhost.evil.example"}),
        ("127.0.0.1", {**HERE, "origin": "https://evil.example"}),  # a page in a browser
        ("127.0.0.1", {**HERE, "origin": "null"}),
        ("127.0.0.1", {**HERE, "x-forwarded-for": "127.0.0.1"}),  # a proxy
        ("127.0.0.1", {**HERE, "forwarded": "for=127.0.0.1"}),
    ],
)
def test_without_a_token_nobody_else_may(client: str | None, headers: dict[str, str]) -> None:
    """Other machines, pages in a browser, and whoever comes through a proxy."""
    refused = refusal(None, client, headers)
    assert refused is not None and refused[0] == 403


def test_a_token_must_be_long() -> None:
    """One that can be guessed is refused; an empty setting is none."""
    assert check_token(TOKEN) == TOKEN
    assert check_token("") is check_token(None) is None
    with pytest.raises(ValueError, match="has 3 characters; 16 or more are required"):
        check_token("abc")
