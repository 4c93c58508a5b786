"""Secrets are not in what is kept, however they come there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.gateway.recording.records import encode
from jaxserve.gateway.recording.redaction import PLACEHOLDER, Redaction
from jaxserve.gateway.settings import AccessTokens
from tests.gateway.conftest import Start
from tests.gateway.recording.session_agent import Agent, user
from tests.gateway.recording.test_records import record_of
from tests.gateway.token_engine import TokenEngine, sampled

SECRET = 'sk-"quoted\\key"'


def test_a_text_has_none() -> None:
    """Plain, in JSON, and of two secrets the one that has the other in it; short ones are words."""
    redaction = Redaction((SECRET, "sk-12345", "sk-12345-6", "EMPTY", "", None))
    assert redaction.text(SECRET.encode()) == PLACEHOLDER.encode()
    assert redaction.text(b"sk-12345-6 sk-12345 EMPTY") == b"[secret] [secret] EMPTY"
    said = orjson.dumps({"content": f"it is {SECRET}."})
    assert orjson.loads(redaction.text(said)) == {"content": f"it is {PLACEHOLDER}."}
    assert (
        redaction.with_secrets(("another-one",)).text(b"another-one sk-12345")
        == b"[secret] [secret]"
    )


@given(st.text("abcdefgh", max_size=20), st.integers(0, 20))
def test_a_text_may_end_in_the_beginning_of_one(text: str, place: int) -> None:
    """Exactly as much of it as could go on to be the secret is held back."""
    secret = b"abcabcde"
    begun = Redaction((secret.decode(),)).partial_secret(text.encode())
    ends = [n for n in range(len(secret)) if text.encode().endswith(secret[:n])]
    assert begun == max(ends)
    assert Redaction().partial_secret(text.encode()) == 0


def test_no_field_of_a_record_has_one() -> None:
    """Bodies, messages and sampling; texts of tokens go where the secret is spread over them, and
    tokens themselves stay."""
    body = orjson.dumps({"x": SECRET})
    choice = replace(
        record_of().choices[0], message={"content": SECRET}, texts=(SECRET[:4], SECRET[4:])
    )
    record = replace(
        record_of(),
        received=b"no JSON: " + SECRET.encode(),
        sent=body,
        response=body,
        sampling={"stop": [SECRET], "temperature": 1.0},
        choices=(choice,),
    )
    found = Redaction((SECRET,)).record(record)
    assert Redaction((SECRET,)).text(encode(found)) == encode(found)
    assert found.received == b"no JSON: [secret]" and found.sent == b'{"x":"[secret]"}'
    assert found.sampling == {"stop": [PLACEHOLDER], "temperature": 1.0}
    assert found.choices[0].message == {"content": PLACEHOLDER} and found.choices[0].texts is None
    assert found.choices[0].response_ids is choice.response_ids
    assert encode(Redaction(("another-one",)).record(record)) == encode(record)


@pytest.mark.parametrize("stream", [False, True])
def test_a_session_in_which_all_keys_are_said(
    stream: bool,
    vllm: TokenEngine,
    start: Start,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """By the agent and by the model: the engine and the agent get them, and no file, route or log;
    the next turn continues the one before."""
    monkeypatch.setenv("ENGINE_KEY", "key-of-the-engine")
    tokens = AccessTokens(client="token-of-clients", control="token-of-control")
    kept = {"sessions": tmp_path / "sessions", "records": tmp_path / "requests.jsonl"}
    gateway = start([f"{vllm.option},key=ENGINE_KEY"], **kept, tokens=tokens)
    gateway.control.headers["authorization"] = f"Bearer {tokens.control}"
    agent = Agent(gateway, metadata={"task": 7})
    secrets = [agent.key, "key-of-the-engine", "token-of-clients", "token-of-control"]
    told = " ".join(secrets)
    answer = {"role": "assistant", "content": told}
    assert (
        told in agent.say(user(told), stub={"reply": told}).json()["choices"][0]["message"].values()
    )
    agent.say(user(told), answer, user("and?"), stream=stream)
    agent.say(user(told), stub={"status": 400, "headers": {}})
    assert vllm.seen[1].json["messages"][1] == answer
    written = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    assert b'"task":7' in written
    routes = ("/sessions", f"/sessions/{agent.id}", f"/sessions/{agent.id}/completions")
    shown = [gateway.control.get(route).text for route in routes]
    for secret in secrets:
        assert secret.encode() not in written
        assert secret not in str([*shown, caplog.text, gateway.app.sessions])
    first, second, third = agent.records()
    assert first.choices[0].message["content"] == " ".join([PLACEHOLDER] * 4)
    assert first.choices[0].response_ids is not None
    assert first.choices[0].response_ids.tolist() == sampled(answer)
    assert (second.link.parent, second.link.how) == ((1, 0), "exact")
    assert third.outcome != "completed" and PLACEHOLDER in str(third.messages)
