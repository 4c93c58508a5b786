"""Prompts have the length that is wanted, whatever an engine takes."""

from __future__ import annotations

import asyncio

import pytest

from jaxserve.live.engine_client import EngineClient, Target
from jaxserve.live.prompts import RandomPrompts
from tests.live.calibration.batching import HttpEngine
from tests.live.calibration.test_fit import linear


@pytest.mark.parametrize("ids", [True, False])
def test_prompts_have_the_length_that_is_wanted(ids: bool) -> None:
    """By token ids, or by words where an engine takes no ids; no two are alike."""

    async def lengths(client: EngineClient) -> list[int]:
        prompts = RandomPrompts(0)
        await prompts.learn(client)
        wanted = [prompts.make(tokens) for tokens in (40, 40, 401)]
        assert wanted[0] != wanted[1] and isinstance(wanted[0], list) is ids
        return [(await client.complete(prompt, 2)).prompt_tokens for prompt in wanted]

    async def run(url: str) -> list[int]:
        async with EngineClient(Target(url)) as client:
            return await lengths(client)

    with HttpEngine(linear(a=1e-3, b=1e-6, c=0.0, d=0.0, e=0.0), ids=ids) as engine:
        assert asyncio.run(run(engine.url)) == pytest.approx([40, 40, 401], abs=0 if ids else 1)
