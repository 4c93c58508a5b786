"""A sandbox elsewhere as its node sees one: the node waits, and the agent's requests arrive."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import aiohttp

from jaxserve.checks import JsonObject
from jaxserve.rollouts.bounded_process import ProcessExit, ProcessLimits
from jaxserve.rollouts.sandboxes import SandboxCommand, sandbox_options


class WaitingSandbox:
    """Sends an agent's requests and waits; no process runs."""

    def __init__(self, options: JsonObject, outside: Path) -> None:
        """Options: ``seconds`` of the agent; ``requests`` to the model, spread over them."""
        known = sandbox_options(options, "seconds", "requests")
        self._requests = known.whole("requests", 1, 1000)
        self._pause_s = known.number("seconds", 0.0, 3600.0) / self._requests
        self.inside = outside

    async def put(self, name: str) -> None:
        """Does nothing: the agent has no files."""

    async def run(
        self, command: SandboxCommand, output: Callable[[bytes], None], limits: ProcessLimits
    ) -> ProcessExit:
        """Sends each request and waits."""
        url = f"{command.environment['OPENAI_BASE_URL']}/chat/completions"
        headers = {"authorization": f"Bearer {command.environment['OPENAI_API_KEY']}"}
        messages = [{"role": "user", "content": command.environment["INSTRUCTION"]}]
        async with aiohttp.ClientSession(headers=headers, trust_env=False) as client:
            for _ in range(self._requests):
                asked = {"model": "stub", "messages": messages}
                async with client.post(url, json=asked) as answer:
                    if answer.status != 200:
                        return ProcessExit(1)
                    said = (await answer.json())["choices"][0]["message"]
                messages += [said, {"role": "user", "content": "go on"}]
                await asyncio.sleep(self._pause_s)
        return ProcessExit(0)

    async def get(self, name: str) -> None:
        """Does nothing: the agent has no files."""

    async def end(self) -> None:
        """Does nothing: no process runs."""
