"""Records: what is derived from them, and a file that only ever grows by whole lines."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from jaxserve.errors import InputError
from jaxserve.gateway.measure.records import Records, RequestRecord
from tests.gateway.conftest import Start
from tests.gateway.stub_engine import StubEngine


def record(number: int = 0, **fields: Any) -> RequestRecord:
    """A request that ended."""
    return RequestRecord(f"r-{number}", "chat", 1.7e9, 10.0, **{"ended_s": 12.0, **fields})


def test_events_are_not_tokens() -> None:
    """TPOT divides by the tokens that the engine counted, whatever the number of events."""
    two_events = record(first_token_s=11.0, last_token_s=12.0, output_tokens=11, token_events=2)
    assert (two_events.ttft_s, two_events.tpot_s) == (1.0, 0.1)
    assert record(first_token_s=11.0, last_token_s=11.0, output_tokens=1).tpot_s is None
    assert record(first_token_s=11.0, last_token_s=12.0).tpot_s is None
    assert record().ttft_s is None
    several = record(first_token_s=11.0, last_token_s=12.0, output_tokens=11, parallel=True)
    assert several.tpot_s is None


def test_the_file_is_added_to(tmp_path: Path) -> None:
    """A second gateway goes on in the file of the first; each line is one record."""
    path = tmp_path / "records.jsonl"
    for start in (0, 3):
        records = Records(2, path)
        for number in range(start, start + 3):
            records.add(record(number))
        assert len(records.ring) == 2
        records.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["id"] for line in lines] == [f"r-{number}" for number in range(6)]
    assert lines[0]["arrival_unix_s"] == 1.7e9 and lines[0]["first_token_s"] is None
    assert path.stat().st_mode & 0o077 == 0


def test_a_disk_that_is_full(caplog: pytest.LogCaptureFixture, monkeypatch: Any) -> None:
    """Requests go on; what was lost is counted, said once, and the next line is a line again."""
    written = b""
    room = [10, 0, 10_000, 10_000]

    def write(file: int, data: bytes) -> int:
        nonlocal written
        space = room.pop(0)
        if not space:
            raise OSError(28, "No space left on device")
        written += data[:space]
        return min(space, len(data))

    records = Records(10, Path("/dev/null"))
    monkeypatch.setattr(os, "write", write)
    with caplog.at_level(logging.ERROR, "jaxserve.gateway"):
        for number in range(4):
            records.add(record(number))
    assert records.lost == 2 and len(caplog.records) == 1 and len(records.ring) == 4
    torn, *whole = written.splitlines()
    assert len(torn) == 10
    assert [json.loads(line)["id"] for line in whole] == ["r-2", "r-3"]


def test_a_file_that_cannot_be(tmp_path: Path) -> None:
    """One sentence before anything is served."""
    with pytest.raises(InputError, match=r"^--records is .*: "):
        Records(1, tmp_path / "missing" / "x")


def test_which_ended_in_a_window() -> None:
    """The later edge belongs to it; what the ring has forgotten is not claimed."""
    records = Records(3)
    for number in range(3):
        records.add(record(number, ended_s=float(number)))
    found, all_of_them = records.ended_between(0.0, 2.0)
    assert [one.id for one in found] == ["r-2", "r-1"] and all_of_them
    assert not records.ended_between(-1.0, 2.0)[1]
    assert Records(3).ended_between(0.0, 1.0) == ([], True)


def test_a_gateway_writes_them(engine: StubEngine, start: Start, tmp_path: Path) -> None:
    """The file has what the control port shows, and nothing of what was said."""
    path = tmp_path / "records.jsonl"
    gateway = start([engine], records=path, slo=("chat:ttft=100,tpot=100",))
    headers = {"x-class": "chat", "x-priority": "4", "authorization": "Bearer sk-client"}
    body = {"messages": [{"role": "user", "content": "private"}], "stream": True}
    gateway.post(body, headers=headers)
    gateway.post({"stub": {"status": 400}})
    shown = gateway.records(2)
    assert [json.loads(line) for line in path.read_text().splitlines()] == shown
    assert (shown[0]["class_name"], shown[0]["priority"], shown[0]["good"]) == ("chat", 4, True)
    assert (shown[1]["class_name"], shown[1]["good"]) == ("default", None)
    text = path.read_text()
    assert "private" not in text and "sk-client" not in text and engine.url[7:] not in text
