"""Engines on the command line: understood, or refused in one sentence without a secret in it."""

from __future__ import annotations

import pytest

from jaxserve.errors import InputError
from jaxserve.gateway.engines.specs import EngineSpec, parse_engines, pool_names


def test_all_of_it() -> None:
    """Kind, address, options and the key of a variable."""
    vllm, sglang = parse_engines(
        (
            "vllm=http://10.0.0.5:8000/base/,tier=1,depth=4,cap=32,priority=1,key=THE_KEY",
            "sglang=https://host,pool=mine",
        ),
        {"THE_KEY": "sk-secret"},
    )
    assert vllm == EngineSpec(
        kind="vllm",
        url="http://10.0.0.5:8000/base",
        name="vllm-0",
        pool="tier1-depth4",
        tier=1,
        depth=4,
        cap=32,
        takes_priority=True,
        key="sk-secret",
    )
    assert sglang == EngineSpec("sglang", "https://host", "sglang-1", "mine", logprobs="scaled")
    assert "sk-secret" not in repr(vllm)
    assert pool_names((vllm, sglang, vllm)) == ("tier1-depth4", "mine")


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ((), "--engine is missing"),
        (("http://a:1",), "'http://a:1' is not understood"),
        (("tgi=http://a:1",), "it must be like vllm=http://127.0.0.1:8000"),
        (("vllm=",), "it must be an address such as"),
        (("vllm=ftp://a",), "it must be an address such as"),
        (("vllm=http://a:99999",), "it must be an address such as"),
        (("vllm=http://a:0",), "it must be an address such as"),
        (("vllm=http://[a",), "it must be an address such as"),
        (("vllm=http://a?x=1",), "it must be an address such as"),
        (("vllm=http://a,cap",), "option 'cap' is not understood; allowed are tier, depth"),
        (("vllm=http://a,cap=1,cap=2",), "each once"),
        (("vllm=http://a,cap=0",), "cap is 0; it must be a whole number from 1 to 100000"),
        (("vllm=http://a,tier=3",), "tier is 3; it must be a whole number from 0 to 2"),
        (("vllm=http://a,depth=-1",), "depth is '-1'"),
        (("vllm=http://a,pool=a b",), "pool='a b'; a pool's name has at most 64 letters"),
        (("vllm=http://a,pool=" + 65 * "a",), "digits, dots, dashes and underscores"),
        (("sglang=http://a,priority=1",), "priority is for vllm"),
        (("vllm=http://a,key=NOT_SET",), "the variable NOT_SET is empty or not set"),
        (("vllm=http://a", "sglang=http://a/"), "http://a is given twice"),
    ],
)
def test_refusals(texts: tuple[str, ...], message: str) -> None:
    """What is wrong is named."""
    with pytest.raises(InputError, match=r"^--engine") as refused:
        parse_engines(texts, {})
    assert message in str(refused.value)


def test_names_of_pools() -> None:
    """All that the refusal says is allowed."""
    name = "A_z-0.9" + 57 * "a"
    assert parse_engines((f"vllm=http://a,pool={name}",), {})[0].pool == name


@pytest.mark.parametrize(
    "text", ["vllm=http://me:hunter2@a", "x=http://me:hunter2@a", "vllm=http://a,key=sk-hunter2"]
)
def test_no_secret_is_shown(text: str) -> None:
    """Not even one that stands where none should."""
    with pytest.raises(InputError) as refused:
        parse_engines((text,), {})
    assert "hunter2" not in str(refused.value)
