"""Servers generate tokens, which only their user can read."""

from __future__ import annotations

import os
from pathlib import Path

import httpx
import pytest

from jaxserve.errors import InputError
from jaxserve.gateway.http.token_files import CONTROL
from jaxserve.gateway.settings import CONTROL_TOKEN_VARIABLE
from tests.gateway.app.test_serve import process
from tests.gateway.stub_engine import StubEngine
from tests.patience import PATIENCE_S

URL = "http://127.0.0.1:9001"


def state(folder: Path) -> dict[str, str]:
    """Variables of a user with a home there."""
    return {"XDG_STATE_HOME": str(folder)}


def test_a_token_is_kept(tmp_path: Path) -> None:
    """Over restarts, for one port, in a file of its user alone; another user's eyes, or a file that
    holds none, make it a new one."""
    here = state(tmp_path)
    token = CONTROL.keep(9001, here)
    path = CONTROL.path(9001, here)
    assert path is not None and path == tmp_path / "jaxserve" / "gateway-9001.token"
    assert path.stat().st_mode & 0o777 == 0o600 and path.parent.stat().st_mode & 0o077 == 0
    assert len(token) >= 32 and CONTROL.keep(9001, here) == token != CONTROL.keep(9002, here)
    path.chmod(0o644)
    second = CONTROL.keep(9001, here)
    assert second != token and path.stat().st_mode & 0o777 == 0o600
    for nothing in (b"", b"two words\n", b"\xff\xfe"):
        path.write_bytes(nothing)
        assert CONTROL.token(URL, here) is None
        assert CONTROL.keep(9001, here) == CONTROL.token(URL, here) not in (None, token, second)
    names = {one.name for one in path.parent.iterdir()}
    assert names == {f"gateway-{port}.token" for port in (9001, 9002)}


def test_who_finds_it(tmp_path: Path) -> None:
    """A client of a server on this machine; a configured token takes precedence."""
    here = state(tmp_path)
    token = CONTROL.keep(9001, here)
    for url in (URL, f"{URL}/", "http://localhost:9001", "http://[::1]:9001/sessions"):
        assert CONTROL.token(url, here) == token
        assert CONTROL.headers(url, here) == {"Authorization": f"Bearer {token}"}
    others = ("http://10.0.0.1:9001", "http://127.0.0.1:9002", "http://127.0.0.1", "http://a:b", "")
    for url in others:
        assert CONTROL.token(url, here) is None and CONTROL.headers(url, here) == {}
    assert CONTROL.token(URL, here | {CONTROL_TOKEN_VARIABLE: "given"}) == "given"
    with pytest.raises(InputError, match=CONTROL_TOKEN_VARIABLE):
        CONTROL.token(URL, here | {CONTROL_TOKEN_VARIABLE: "two words"})


def test_a_token_that_cannot_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Is refused in a sentence that says what to do."""
    (tmp_path / "jaxserve").write_text("a file")
    with pytest.raises(InputError, match=f"cannot be kept in .*; set {CONTROL_TOKEN_VARIABLE}"):
        CONTROL.keep(9001, state(tmp_path))
    assert CONTROL.token(URL, state(tmp_path)) is None

    def homeless(*_: object, **__: object) -> Path:
        raise RuntimeError

    monkeypatch.setattr("platformdirs.user_state_path", homeless)
    with pytest.raises(InputError, match=f"no home .*; set {CONTROL_TOKEN_VARIABLE}"):
        CONTROL.keep(9001, {})
    assert CONTROL.token(URL, {}) is None


def test_control_over_sessions_asks_for_it(engine: StubEngine, tmp_path: Path) -> None:
    """Without a word of the operator; it is said where it is, and never what."""
    sessions = ("--sessions", str(tmp_path / "sessions"))
    with process("--engine", f"vllm={engine.url}", *sessions) as (running, _, control):
        for path in ("/sessions", "/metrics", "/control/state"):
            assert httpx.get(control + path, timeout=PATIENCE_S).status_code == 401
        wrong = {"Authorization": "Bearer wrong"}
        assert httpx.post(f"{control}/sessions", json={}, headers=wrong).status_code == 401
        shown = CONTROL.headers(control)
        assert httpx.post(f"{control}/sessions", json={}, headers=shown).status_code == 201
        assert running.stderr is not None
        said = running.stderr.readline()
    path = CONTROL.path(int(control.rpartition(":")[2]))
    assert f"control asks for the token in {path}" in said
    assert path is not None and path.read_text().strip() not in said
    given = {CONTROL_TOKEN_VARIABLE: "given"}
    with process("--engine", f"vllm={engine.url}", *sessions, **given) as (_, _, control):
        shown = {"Authorization": "Bearer given"}
        assert httpx.get(f"{control}/sessions", headers=shown).status_code == 200
        assert CONTROL.own_token(control) is None


def test_plain_serving_asks_for_nothing(engine: StubEngine) -> None:
    """A gateway without sessions is as open on this machine as it was, and writes no token."""
    before = sorted(Path(os.environ["XDG_STATE_HOME"]).rglob("*.token"))
    with process("--engine", f"vllm={engine.url}") as (_, url, control):
        asked = {"model": "stub", "messages": [{"role": "user", "content": "x"}]}
        answer = httpx.post(f"{url}/v1/chat/completions", json=asked, timeout=PATIENCE_S)
        assert answer.status_code == 200
        assert httpx.get(f"{control}/metrics", timeout=PATIENCE_S).status_code == 200
    assert sorted(Path(os.environ["XDG_STATE_HOME"]).rglob("*.token")) == before
