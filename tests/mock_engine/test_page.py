"""The commands and the code of docs/mock_engine.md run, and a gateway serves from a mock engine."""

from __future__ import annotations

import json
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import httpx

from server.local import free_port
from tests.docs.snippets import blocks, run_code
from tests.gateway.gateway_thread import RunningGateway
from tests.gateway.test_page import running

PAGE = Path(__file__).resolve().parents[2] / "docs" / "mock_engine.md"


def test_the_page(tmp_path: Path) -> None:
    """A mock engine as on the page, the official client, and knobs that are acknowledged."""
    command, turn = (block.code.strip() for block in blocks(PAGE) if block.language == "sh")
    (chat,) = (block.code for block in blocks(PAGE) if block.language == "python")
    port = str(free_port())
    printed = StringIO()
    with running(command.replace("8000", port), f"http://127.0.0.1:{port}"):
        with redirect_stdout(printed):
            exec(compile(chat.replace("8000", port), str(PAGE), "exec"), {})
        turned = run_code("sh", turn.replace("8000", port), tmp_path)
    assert len(printed.getvalue().split()) == 20
    state, end = json.JSONDecoder().raw_decode(turned)
    steps, _ = json.JSONDecoder().raw_decode(turned[end:])
    assert state["engines"][0]["knobs"]["batch_cap"]["now"] == 16
    assert len(steps["engines"][0]["rows"]) == 20
    assert "vllm:generation_tokens_total{" in turned


def test_behind_a_gateway(engine: Any) -> None:
    """Streams pass, and the gateway counts the tokens that the engine tells."""
    with RunningGateway([f"vllm={engine.url}"]) as gateway:
        asked = {"model": "tiny", "prompt": [1, 2], "max_tokens": 9, "ignore_eos": True}
        answer = gateway.post({**asked, "stream": True}, "/v1/completions")
        assert answer.status_code == 200 and answer.text.endswith("data: [DONE]\n\n")
        (record,) = gateway.records(1)
        assert record["outcome"] == "completed"
        assert record["output_tokens"] == record["token_events"] == 9
        unknown = gateway.post({**asked, "model": "other"}, "/v1/completions")
        assert (unknown.status_code, unknown.json()["error"]["type"]) == (404, "NotFoundError")
        assert httpx.get(f"{gateway.url}/v1/models").json()["data"][0]["id"] == "tiny"
