"""The table of routes for clients: each path has one access, and a request what it may."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.types import Scope

from jaxserve.gateway.app.client_app import Access, ClientApp, Operation, route_of
from jaxserve.gateway.exchange.in_flight import InFlight
from jaxserve.gateway.http.errors import RequestError
from jaxserve.gateway.settings import GatewaySettings

PASSED = ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses")
COUNTED = ("/v1/responses/input_tokens", "/v1/models/m:countTokens")
GENERATED = ("/v1beta/models/m:generateContent", "/v1/models/m:streamGenerateContent")
LISTED = ("/v1/models/m", "/v1beta/models", "/v1beta/models/m")
TABLE: dict[str, tuple[Access, Operation, str]] = {
    "/health": (Access.ANYONE, Operation.HEALTH, "GET"),
    "/v1/models": (Access.CLIENT, Operation.MODELS, "GET"),
    **{path: (Access.CLIENT, Operation.OUTPUT, "POST") for path in PASSED},
    "/tokenize": (Access.CLIENT, Operation.TOKENS, "POST"),
    "/v1/messages/count_tokens": (Access.CLIENT, Operation.COUNT, "POST"),
    **{path: (Access.SESSION, Operation.MODELS, "GET") for path in LISTED},
    **{path: (Access.SESSION, Operation.COUNT, "POST") for path in COUNTED},
    **{path: (Access.SESSION, Operation.OUTPUT, "POST") for path in GENERATED},
}


class KnownKey:
    """A recording with one session, of the query ``key``."""

    def context(self, headers: Any, query: bytes) -> Any:
        """A session, where the request has its key."""
        return "session" if query == b"key" else None


def status(
    path: str, *, method: str, token: str | None = None, sessions: bool = False, **shown: Any
) -> int:
    """Status of the refusal of a request; 200 for one that passes."""
    headers = [(b"host", b"localhost"), *shown.get("headers", [])]
    scope: Scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": shown.get("query", b""),
        "headers": headers,
    }
    unused: Any = None
    recording: Any = KnownKey() if sessions else None
    app = ClientApp(GatewaySettings(engine=()), token, InFlight(), unused, unused, recording)
    try:
        app._check(scope)
    except RequestError as error:
        return error.status
    return 200


@pytest.mark.parametrize("path", TABLE)
def test_every_path_has_its_route(path: str) -> None:
    """Access, service and method."""
    access, operation, method = TABLE[path]
    route = route_of(path)
    assert route is not None
    assert (route.access, route.operation, method in route.methods) == (access, operation, True)


PAGE = [(b"origin", b"http://evil.example")]
RIGHT, WRONG = ([(b"authorization", b"Bearer " + token)] for token in (b"right", b"wrong"))
WHO: list[tuple[str | None, bool, dict[str, Any], tuple[int, int, int]]] = [
    (None, False, {}, (200, 200, 404)),
    (None, False, {"headers": PAGE}, (200, 403, 404)),
    ("right", False, {"headers": RIGHT}, (200, 200, 404)),
    ("right", False, {"headers": WRONG}, (200, 401, 404)),
    ("right", False, {}, (200, 401, 404)),
    ("right", True, {"headers": RIGHT}, (200, 200, 404)),
    ("right", True, {"headers": WRONG}, (200, 401, 401)),
    ("right", True, {}, (200, 401, 401)),
    ("right", True, {"query": b"key", "headers": PAGE}, (200, 200, 200)),
    ("right", True, {"query": b"other"}, (200, 401, 401)),
    (None, True, {"query": b"key", "headers": PAGE}, (200, 200, 200)),
    (None, True, {"query": b"other"}, (200, 401, 401)),
]
"""The gateway's token, whether it has sessions, and what a request shows; the statuses of paths for
anyone, for clients and for sessions."""


@pytest.mark.parametrize("path", TABLE)
@pytest.mark.parametrize(("token", "sessions", "shown", "statuses"), WHO)
def test_who_enters(
    path: str, token: str | None, sessions: bool, shown: dict[str, Any], statuses: tuple[int, ...]
) -> None:
    """Routes of sessions are none without them; no page enters but with a session's key, and the
    token opens all but the routes of sessions."""
    access, _, method = TABLE[path]
    expected = dict(zip(Access, statuses, strict=True))[access]
    asked = {"token": token, "sessions": sessions, **shown}
    assert status(path, method=method, **asked) == expected
    if expected == 200:
        assert status(path, method="DELETE", **asked) == 405


@pytest.mark.parametrize("path", ["/", "/metrics", "/v1", "/v1/embeddings", "/health/"])
def test_other_paths(path: str) -> None:
    """404 before any question for a token; a head that is too large is refused before that."""
    assert route_of(path) is None
    for sessions in (False, True):
        assert status(path, method="POST", token="right", sessions=sessions) == 404
    large = [(b"x-large", b"x" * 70_000)]
    assert status(path, method="POST", headers=large) == 431
