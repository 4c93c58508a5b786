"""What compiles for tests that have no server."""

from __future__ import annotations

from concurrent.futures import Future

from server.sessions import programs
from server.sessions.programs import Simulator


class CompiledAtOnce:
    """In the thread that asks."""

    def __init__(self) -> None:
        self.ready: Future[None] = Future()
        self.ready.set_result(None)

    def compiled(self, simulator: Simulator, *, together: bool) -> Future[None]:
        """Compiled when this returns."""
        if not programs.is_compiled(simulator, together=together):
            programs.try_out(simulator, together=together)
        return self.ready
