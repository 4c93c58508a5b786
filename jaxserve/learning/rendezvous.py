"""Rendezvous of processes before JAX connects them: XLA ends a process that waits in vain.

Process 0 listens; every other process sends its number and waits until all are there.
"""

from __future__ import annotations

import contextlib
import socket
import time

from jaxserve.errors import InputError

_GO = "go"
_PAUSE_S = 0.2
_INTRODUCTION_S = 5.0


def meet(coordinator: str, processes: int, process: int, patience_s: float = 300.0) -> None:
    """Returns on all processes when the last of them has come.

    Args:
      coordinator: HOST:PORT where process 0 listens; the port is free again afterwards.
      processes: how many there are.
      process: number of this one, from 0.

    Raises:
      InputError: the port is taken, the host cannot be reached, or a process is missing, comes
        twice or expects another number of processes.
    """
    host, _, port = coordinator.rpartition(":")
    deadline = time.monotonic() + patience_s
    if process == 0:
        _gather(int(port), processes, deadline)
    else:
        _introduce(host, int(port), f"{processes} {process}", deadline)


def _gather(port: int, processes: int, deadline: float) -> None:
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    try:
        server = socket.create_server(("", port), family=family, dualstack_ipv6=dual)
    except OSError as error:
        raise InputError(f"process 0 cannot listen at port {port}: {error.strerror}") from None
    missing = {f"{processes} {process}": str(process) for process in range(1, processes)}
    here: dict[str, socket.socket] = {}
    with server, contextlib.ExitStack() as connections:
        while missing:
            server.settimeout(max(deadline - time.monotonic(), _PAUSE_S))
            try:
                guest = connections.enter_context(server.accept()[0])
            except TimeoutError:
                raise InputError(
                    f"not all {processes} processes came: missing are {', '.join(missing.values())}"
                ) from None
            with contextlib.suppress(OSError):  # a guest that hangs up does not count
                guest.settimeout(_INTRODUCTION_S)
                said = _line(guest)
                if said in missing:
                    del missing[said]
                    here[said] = guest
                else:
                    problem = "is there already" if said in here else f"is not among {processes}"
                    _say(guest, f"process 0 says that this process {problem}")
        for who, guest in here.items():
            try:
                _say(guest, _GO)
            except OSError:
                raise InputError(f"process {who.split()[1]} came and left") from None


def _introduce(host: str, port: int, who: str, deadline: float) -> None:
    while True:
        patience = max(deadline - time.monotonic(), _PAUSE_S)
        try:
            connection = socket.create_connection((host, port), timeout=patience)
            break
        except socket.gaierror:
            raise InputError(f"--coordinator: host {host!r} is unknown") from None
        except OSError as error:
            if time.monotonic() + _PAUSE_S > deadline:
                raise InputError(
                    f"process 0 cannot be reached at {host}:{port}: {error.strerror or error}"
                ) from None
            time.sleep(_PAUSE_S)
    with connection:
        try:
            _say(connection, who)
            connection.settimeout(None)  # process 0 hangs up when it has waited long enough
            answer = _line(connection)
        except OSError:
            answer = ""
    if answer != _GO:
        raise InputError(answer or "process 0 has given up waiting for the others")


def _say(connection: socket.socket, text: str) -> None:
    connection.sendall(f"{text}\n".encode())


def _line(connection: socket.socket) -> str:
    with connection.makefile("r", encoding="utf-8", errors="replace") as lines:
        return lines.readline(200).strip()
