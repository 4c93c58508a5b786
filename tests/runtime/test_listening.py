"""Sockets of servers."""

from __future__ import annotations

import pytest

from jaxserve.errors import InputError
from jaxserve.runtime.listening import address, listen


def test_a_taken_port_is_refused_in_one_sentence() -> None:
    """A free one is found by itself."""
    with listen("127.0.0.1", 0, "--port") as listening:
        port = listening.getsockname()[1]
        assert address(listening) == f"http://127.0.0.1:{port}"
        with pytest.raises(InputError, match=f"--port is {port}, which cannot be used at 127"):
            listen("127.0.0.1", port, "--port")
