"""Sessions outlive their gateway, and their keys are told once."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from jaxserve.datafiles import write_atomic
from jaxserve.errors import InputError
from jaxserve.gateway.http.token_files import CONTROL
from jaxserve.gateway.recording import session as one
from jaxserve.gateway.recording.records import read_records
from jaxserve.gateway.recording.store import SessionStore
from jaxserve.rollouts.builders import prefix_merging
from tests.gateway.app.test_serve import process
from tests.gateway.conftest import Start
from tests.gateway.recording.session_agent import CHAT, Agent, started, user
from tests.gateway.token_engine import TokenEngine
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio


def bearer(key: str) -> Any:
    """Headers as the server has them."""
    return [(b"authorization", f"Bearer {key}".encode())]


async def test_a_session_outlives_its_gateway(tmp_path: Path) -> None:
    """Key, description and what is closed."""
    sessions = SessionStore(tmp_path)
    _, key = await sessions.create("one", durable=True, metadata={"task": "t"})
    closed, other = await sessions.create("two", durable=False, metadata={})
    await sessions.close(closed)
    before = [await sessions.described(session) for session in sessions]
    sessions.shut()
    again = SessionStore(tmp_path)
    found = again.of(bearer(key))
    assert found is not None and found.info.id == "one" and found.info.durable
    assert again.of(bearer(other)) is None
    assert [await again.described(session) for session in again] == before
    again.shut()


async def test_records_are_read_off_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once for all who wait for them, while the loop goes on; what cannot be read is said."""
    threads: list[int] = []
    going = threading.Event()

    class Slow(one._OpenRecords):
        """Waits until the loop lets it go on."""

        def __init__(self, path: Path) -> None:
            threads.append(threading.get_ident())
            assert going.wait(PATIENCE_S)
            super().__init__(path)

    monkeypatch.setattr(one, "_OpenRecords", Slow)
    sessions = SessionStore(tmp_path)
    session, _ = await sessions.create("one", durable=False, metadata={})
    asking = [asyncio.create_task(sessions.described(session)) for _ in range(3)]
    while not threads:
        await asyncio.sleep(0.001)
    going.set()
    found = await asyncio.gather(*asking)
    assert [each["counts"]["completions"] for each in found] == [0, 0, 0]
    assert len(threads) == 1 and threads[0] != threading.get_ident()
    broken, _ = await sessions.create("two", durable=False, metadata={})
    broken.path.write_text("no record\n")
    with pytest.raises(one.NotRecorded):
        async with sessions.entered(broken):
            pass
    assert broken.inside == 0
    sessions.shut()


def test_one_gateway_at_a_time(tmp_path: Path) -> None:
    """Two that number the same records would number them twice."""
    sessions = SessionStore(tmp_path)
    with pytest.raises(InputError, match="another gateway has it"):
        SessionStore(tmp_path)
    sessions.shut()
    SessionStore(tmp_path).shut()


@pytest.mark.parametrize("name", ["", ".", "..", "../up", "a/b", ".hidden", "x" * 129, "a b", "é"])
def test_a_name_is_no_path(tmp_path: Path, name: str) -> None:
    """It becomes a folder."""
    sessions = SessionStore(tmp_path / "sessions")
    with pytest.raises(InputError, match="id is"):
        asyncio.run(sessions.create(name, durable=False, metadata={}))
    assert os.listdir(tmp_path) == ["sessions"]
    sessions.shut()


async def test_a_name_is_given_once(tmp_path: Path) -> None:
    """The second maker would get the first one's records, also if both ask at the same time."""
    sessions = SessionStore(tmp_path)
    asked = [sessions.create("one", durable=False, metadata={}) for _ in range(4)]
    made = await asyncio.gather(*asked, return_exceptions=True)
    refused = [each for each in made if isinstance(each, InputError)]
    assert len(refused) == 3 and len(list(sessions)) == 1
    assert all("id is 'one'; it must be new" in str(each) for each in refused)
    sessions.shut()


async def test_the_loop_goes_on_while_the_disk_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other requests are answered while a session is made, closed or deleted; one that is deleted
    while it is closed stays deleted."""
    writing, going = threading.Event(), threading.Event()

    def slow(path: Path, data: bytes) -> None:
        writing.set()
        assert going.wait(PATIENCE_S)
        write_atomic(path, data)

    monkeypatch.setattr("jaxserve.gateway.recording.store.write_atomic", slow)

    async def written() -> None:
        while not writing.is_set():
            await asyncio.sleep(0.001)
        writing.clear()

    sessions = SessionStore(tmp_path)
    making = asyncio.create_task(sessions.create("one", durable=True, metadata={}))
    await written()
    assert not list(sessions)
    going.set()
    session, _ = await making
    going.clear()
    writing.clear()
    closing = asyncio.create_task(sessions.close(session))
    await written()
    deleting = asyncio.create_task(sessions.delete(session))
    await asyncio.sleep(0)
    assert not list(sessions)
    going.set()
    await asyncio.gather(closing, deleting)
    sessions.shut()
    assert os.listdir(tmp_path) == [".lock"]


def test_bad_folders(tmp_path: Path) -> None:
    """One sentence each."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match=r"--sessions is .*file"):
        SessionStore(tmp_path / "file")
    (tmp_path / "folder" / "one").mkdir(parents=True)
    (tmp_path / "folder" / "one" / "session.json").write_text("{")
    with pytest.raises(InputError, match="session one is not readable JSON"):
        SessionStore(tmp_path / "folder")


def test_the_routes(vllm: TokenEngine, start: Start, tmp_path: Path) -> None:
    """Make, list, look at, read, close, delete; each refusal in one sentence."""
    described = {"id": "run-1", "metadata": {"task": "t"}, "durable": True}
    agent = Agent(started(start, vllm, tmp_path), **described)
    agent.say(user("a"))
    agent.say(user("b"))
    control = agent.gateway.control
    shown = control.get("/sessions/run-1").json()
    assert shown["counts"] == {"completions": 2, "sampled": 6, "failures": 0}
    assert shown.items() >= (described | {"closed": False}).items()
    assert control.get("/sessions").json() == {"sessions": [shown]}
    rows = control.get("/sessions/run-1/completions").text.splitlines()
    assert [json.loads(row)["seq"] for row in rows] == [1, 2]
    part = control.get("/sessions/run-1/completions", params={"after": 1, "limit": 5})
    assert part.text.splitlines() == rows[1:]
    assert control.post("/sessions/run-1/close").json() == {**shown, "closed": True}
    for asked, words in (
        ({"id": "run-1"}, "must be new"),
        ({"name": "x"}, "field 'name' is unknown"),
        ({"durable": 1}, "must be true or false"),
        ([], "must be a JSON object"),
    ):
        answer = control.post("/sessions", json=asked)
        assert answer.status_code == 400 and words in answer.json()["error"]
    assert control.delete("/sessions/run-1").status_code == 204
    assert control.get("/sessions/run-1").status_code == 404
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_events_tell_what_happens(agent: Agent) -> None:
    """What was before and what comes, once each; after the one that is named; to the end."""
    agent.say(user("a"))
    route = f"/sessions/{agent.id}/events"
    seen: list[dict[str, Any]] = []
    ready = threading.Event()

    def listen() -> None:
        with agent.gateway.control.stream("GET", route) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    seen.append(json.loads(line[6:]))
                    ready.set()

    listener = threading.Thread(target=listen)
    listener.start()
    assert ready.wait(PATIENCE_S)
    agent.say(user("a"), {"role": "assistant", "content": "ok"}, user("b"))
    agent.gateway.control.post(f"/sessions/{agent.id}/close")
    listener.join(PATIENCE_S)
    *events, end = seen
    assert [event["seq"] for event in events] == [1, 2] and end == {}
    assert (events[1]["parent"], events[1]["how"], events[1]["sampled"]) == ([1, 0], "exact", 3)
    late = agent.gateway.control.get(route, headers={"last-event-id": "1"}).text
    assert "id: 2" in late and "id: 1\n" not in late and "event: end" in late


def test_a_deleted_session_gets_no_record(agent: Agent, vllm: TokenEngine, tmp_path: Path) -> None:
    """Not even from a request that was on its way; the answer passes."""
    with agent.streaming(vllm, user("a")) as answer:
        agent.gateway.control.delete(f"/sessions/{agent.id}")
        vllm.seen[0].allow()
        assert answer.read().endswith(b"data: [DONE]\n\n")
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_an_answer_after_the_close_is_recorded(agent: Agent, vllm: TokenEngine) -> None:
    """Its request was there before; number and link go on from what was said."""
    said = agent.say(user("a")).json()["choices"][0]["message"]
    with agent.streaming(vllm, user("a"), said, user("b")) as answer:
        agent.gateway.control.post(f"/sessions/{agent.id}/close")
        vllm.seen[1].allow()
        answer.read()
    _, second = agent.records()
    assert second.outcome == "completed"
    assert (second.seq, second.link.parent, second.link.how) == (2, (1, 0), "exact")
    shown = agent.gateway.control.get(f"/sessions/{agent.id}").json()
    assert shown["closed"] and shown["counts"]["completions"] == 2


def test_kill_minus_9(tmp_path: Path) -> None:
    """In the middle of a stream: what was answered is there, once; what was not is not; the next
    gateway goes on with the same key, number and line."""
    folder = tmp_path / "sessions"
    with TokenEngine("vllm") as engine:
        arguments = ("--engine", engine.option, "--sessions", str(folder))
        with process(*arguments) as (running, url, control):
            made = new_session(control, "s")
            headers = {"Authorization": f"Bearer {made['key']}"}
            messages = [user("a")]
            for turn in ("one", "two"):
                body = {"model": "m", "messages": messages, "stub": {"reply": turn}}
                said = httpx.post(url + CHAT, json=body, headers=headers, timeout=PATIENCE_S)
                messages = [*messages, said.json()["choices"][0]["message"], user("b")]
            body = {"model": "m", "messages": messages, "stream": True, "stub": {"gated": True}}
            first = threading.Thread(target=lambda: (engine.wait_for(3), engine.seen[2].allow(1)))
            first.start()
            with httpx.stream(
                "POST", url + CHAT, json=body, headers=headers, timeout=PATIENCE_S
            ) as answer:
                lines = answer.iter_lines()
                next(line for line in lines if '"o"' in line)
                running.send_signal(signal.SIGKILL)
                with pytest.raises(httpx.HTTPError):
                    list(lines)
        # As if the kill had come in the middle of a write.
        with (folder / "s" / "records.jsonl").open("ab") as file:
            file.write(b'{"v":1,"session":"s","half a li')
        with process(*arguments) as (running, url, control):
            body = {"model": "m", "messages": messages, "stub": {"reply": "three"}}
            said = httpx.post(url + CHAT, json=body, headers=headers, timeout=PATIENCE_S)
            assert said.status_code == 200
    records = read_records(folder / "s" / "records.jsonl")
    assert [record.choices[0].message["content"] for record in records] == ["one", "two", "three"]
    assert [record.seq for record in records] == [1, 2, 3]
    (trace,) = prefix_merging(records).traces
    assert trace.trainable == len("one") + len("two") + len("three") + 3


def test_kill_minus_9_at_any_moment(tmp_path: Path) -> None:
    """Agents that talk while the gateway is killed find every answer that they saw whole."""
    folder = tmp_path / "sessions"
    answered: dict[str, list[str]] = {}
    with TokenEngine("vllm") as engine:
        arguments = ("--engine", engine.option, "--sessions", str(folder))
        with process(*arguments) as (running, url, control):
            keys = {}
            for name in ("a", "b", "c", "d"):
                keys[name] = new_session(control, name)["key"]
            talking = [
                threading.Thread(target=_talk, args=(url, key, answered.setdefault(name, [])))
                for name, key in keys.items()
            ]
            for thread in talking:
                thread.start()
            deadline = time.monotonic() + PATIENCE_S
            while not all(answered.values()) and time.monotonic() < deadline:
                time.sleep(0.01)
            running.kill()
            for thread in talking:
                thread.join(PATIENCE_S)
    SessionStore(folder).shut()
    for name, ids in answered.items():
        found = [record.request_id for record in read_records(folder / name / "records.jsonl")]
        assert ids and len(found) == len(set(found))
        assert found[: len(ids)] == ids and len(found) <= len(ids) + 1


def new_session(control: str, name: str) -> dict[str, Any]:
    """A session made over the control port of a gateway that generated its token."""
    body = {"id": name, "durable": True}
    return httpx.post(f"{control}/sessions", json=body, headers=CONTROL.headers(control)).json()


def _talk(url: str, key: str, ids: list[str]) -> None:
    """Asks, streamed and not in turns, until there is no gateway any more."""
    headers = {"Authorization": f"Bearer {key}"}
    with httpx.Client(base_url=url, headers=headers, timeout=PATIENCE_S) as client:
        try:
            while True:
                body = {"model": "m", "messages": [user("a")], "stream": len(ids) % 2 == 0}
                answer = client.post(CHAT, json=body)
                assert answer.status_code == 200
                assert not body["stream"] or answer.text.endswith("data: [DONE]\n\n")
                ids.append(answer.headers["x-gateway-request-id"])
        except httpx.HTTPError:
            return
