"""Processes that are to train together meet, or each learns why not."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from jaxserve.errors import InputError
from jaxserve.learning.rendezvous import meet
from server.local import free_port


def outcomes(*participants: tuple[int, int], patience_s: float = 20.0) -> list[str]:
    """What each participant (processes, process) is told, in that order; "" if all is well."""
    coordinator = f"127.0.0.1:{free_port()}"

    def take_part(participant: tuple[int, int]) -> str:
        try:
            meet(coordinator, *participant, patience_s=patience_s)
        except InputError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(len(participants)) as pool:
        return list(pool.map(take_part, participants))


def test_all_come() -> None:
    """Nobody goes on before everybody is there, whoever comes first; one alone need not wait."""
    assert outcomes((3, 2), (3, 0), (3, 1)) == ["", "", ""]
    assert outcomes((1, 0)) == [""]


def test_somebody_is_missing() -> None:
    """Process 0 names who did not come, and sends the others away."""
    first, second = outcomes((4, 0), (4, 2), patience_s=1.0)
    assert first == "not all 4 processes came: missing are 1, 3"
    assert second == "process 0 has given up waiting for the others"


def test_somebody_comes_twice() -> None:
    """The second process of a number is told so; the others wait on."""
    told = outcomes((3, 0), (3, 1), (3, 1), patience_s=2.0)
    assert told[0] == "not all 3 processes came: missing are 2"
    assert sorted(told[1:]) == [
        "process 0 has given up waiting for the others",
        "process 0 says that this process is there already",
    ]


def test_somebody_counts_otherwise() -> None:
    """Processes must agree on how many they are."""
    told = outcomes((2, 0), (3, 1), patience_s=1.0)
    assert told == [
        "not all 2 processes came: missing are 1",
        "process 0 says that this process is not among 2",
    ]


def test_strangers_do_not_count() -> None:
    """A connection that is hung up, or says nonsense, changes nothing."""
    port = free_port()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(meet, f"127.0.0.1:{port}", 2, 0, 20.0)
        for words in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff\n"):
            for _ in range(100):
                try:
                    with socket.create_connection(("127.0.0.1", port), timeout=1.0) as stranger:
                        stranger.sendall(words)
                    break
                except ConnectionRefusedError:
                    continue
        pool.submit(meet, f"127.0.0.1:{port}", 2, 1, 20.0).result(30.0)
        first.result(30.0)


def test_nobody_listens() -> None:
    """Without process 0 the others give up with a sentence, and at once if the host is unknown."""
    port = free_port()
    with pytest.raises(InputError, match=f"process 0 cannot be reached at 127.0.0.1:{port}: .*ref"):
        meet(f"127.0.0.1:{port}", 2, 1, patience_s=0.5)
    with pytest.raises(InputError, match=r"host 'nowhere\.invalid' is unknown"):
        meet("nowhere.invalid:1234", 2, 1)


def test_the_port_is_taken() -> None:
    """Process 0 says so."""
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"process 0 cannot listen at port {port}: .*in use"):
            meet(f"127.0.0.1:{port}", 2, 0)
