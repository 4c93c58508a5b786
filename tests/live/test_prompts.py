"""Prompts have the length that is wanted, whatever an engine takes."""

from __future__ import annotations

import asyncio

import pytest

from jaxserve.live.engine_client import ChatClient, EngineClient, Target
from jaxserve.live.prompts import RandomPrompts
from tests.mock_engine.conftest import running
from tests.server.live.paid_engine import PaidEngine


@pytest.mark.parametrize("ids", [True, False])
def test_prompts_have_the_length_that_is_wanted(ids: bool) -> None:
    """By token ids, or by words of five tokens where an engine takes no ids; no two are alike."""

    async def lengths(url: str) -> list[int]:
        async with (EngineClient if ids else ChatClient)(Target(url)) as client:
            prompts = RandomPrompts(0)
            await prompts.learn(client)
            wanted = [prompts.make(tokens) for tokens in (40, 40, 401)]
            assert wanted[0] != wanted[1] and isinstance(wanted[0], list) is ids
            return [(await client.complete(prompt, 2)).prompt_tokens for prompt in wanted]

    with running() if ids else PaidEngine() as engine:
        found = asyncio.run(lengths(engine.url))
    assert found == pytest.approx([40, 40, 401], abs=0 if ids else 2.5)
