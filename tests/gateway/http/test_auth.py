"""Who may ask where there is no token: this machine's programs, and no page of a browser."""

from __future__ import annotations

import pytest

from jaxserve.gateway.settings import AccessTokens
from tests.gateway.conftest import Start
from tests.gateway.gateway_thread import RunningGateway
from tests.gateway.stub_engine import StubEngine

EVIL = "http://evil.example"
PAGES = (
    {"origin": EVIL},
    {"origin": "null", "content-type": "text/plain"},
    {"origin": "http://127.0.0.1:8080", "sec-fetch-site": "same-site"},
    {"sec-fetch-site": "cross-site"},
    {"host": "evil.example:{port}", "origin": "http://evil.example:{port}"},  # DNS rebinding
)
"""What browsers say of pages."""
COMMANDS = (
    ("PUT", "/control/knobs", {"lease_s": 20, "knobs": {"batch_cap": 1}}),
    ("DELETE", "/control/knobs", None),
    ("PUT", "/control/hold", {"held": True}),
    ("PUT", "/control/inference/pause", None),
    ("GET", "/control/records", None),
    ("GET", "/metrics", None),
)


def at(port: int, headers: dict[str, str]) -> dict[str, str]:
    return {name: value.format(port=port) for name, value in headers.items()}


@pytest.mark.parametrize(
    "headers", [*PAGES, {"host": "evil.example:{port}"}, {"host": "x"}, {"x-forwarded-for": "::1"}]
)
def test_control_is_for_programs_of_this_machine(
    headers: dict[str, str], gateway: RunningGateway
) -> None:
    """A page turns nothing and reads nothing, also by a name that its site made to lead here."""
    for method, path, body in COMMANDS:
        asked = {"headers": at(gateway.control_port, headers), "json": body}
        answer = gateway.control.request(method, path, **asked)
        assert answer.status_code == 403
        assert "without JAXSERVE_GATEWAY_CONTROL_TOKEN" in answer.json()["error"]
    assert gateway.control.get("/control/knobs").json()["mode"] == "static"
    assert not gateway.server.held


def test_control_has_several_names(gateway: RunningGateway) -> None:
    """Those of this machine; a browser may look, where its user typed the address."""
    for host in ("localhost", "127.0.0.1:9001", "[::1]:9001"):
        headers = {"host": host, "sec-fetch-site": "none"}
        assert gateway.control.get("/metrics", headers=headers).status_code == 200


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_no_page_spends_an_engines_time(host: str, engine: StubEngine, start: Start) -> None:
    """Whether or not other machines are served as well."""
    gateway = start([engine], host=host)
    for headers in PAGES:
        answer = gateway.post(headers=at(gateway.port, headers))
        assert answer.status_code == 403 and answer.json()["error"]["code"] == "forbidden"
        assert "without JAXSERVE_GATEWAY_TOKEN no pages" in answer.json()["error"]["message"]
    assert not engine.seen
    rebound = gateway.http.get("/v1/models", headers={"host": "evil.example"})
    # Other machines may have any name for this one.
    assert rebound.status_code == (403 if host == "127.0.0.1" else 200)
    for name in ("localhost:9000", "gateway", "host.docker.internal", "10.0.0.1:9000"):
        assert gateway.post(headers={"host": name}).status_code == 200


def test_a_token_is_all_that_is_asked_for(engine: StubEngine, start: Start) -> None:
    """Which no page knows: behind a proxy, names and origins are others."""
    gateway = start([engine], tokens=AccessTokens(client="for-clients", control="for-control"))
    behind = {"host": "llm.example", "origin": "https://llm.example", "via": "1.1 proxy"}
    given = behind | {"authorization": "Bearer for-clients"}
    assert gateway.post(headers=given).status_code == 200
    given = behind | {"authorization": "Bearer for-control"}
    assert gateway.control.get("/metrics", headers=given).status_code == 200
