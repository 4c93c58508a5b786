"""Metrics of engines: the same words for all kinds, and garbage is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.errors import InputError
from jaxserve.gateway.engines.admission import build_pools
from jaxserve.gateway.engines.scrape import (
    EngineMetrics,
    EngineMetricsReader,
    parse_metrics,
    parse_pool_tokens,
)
from jaxserve.gateway.engines.specs import EngineSpec
from jaxserve.gateway.engines.upstream import Upstream
from server.local import free_port
from tests.gateway.knob_engines import VLLM_METRICS, PluginEngine

pytestmark = pytest.mark.anyio
SGLANG_METRICS = """\
sglang:num_running_reqs{model_name="tiny",tp_rank="0"} 4
sglang:num_queue_reqs{model_name="tiny",tp_rank="0"} 2
sglang:token_usage{model_name="tiny",tp_rank="0"} 0.5
sglang:max_total_num_tokens{model_name="tiny",tp_rank="0"} 5000
sglang:prompt_tokens_total{model_name="tiny"} 900
sglang:generation_tokens_total{model_name="tiny"} 100
"""


def test_vllm() -> None:
    """By vLLM's names; what it does not show is None."""
    found = parse_metrics("vllm", VLLM_METRICS)
    assert found == EngineMetrics(
        running=3.0,
        waiting=5.0,
        kv_use=0.25,
        preemptions=7.0,
        prompt_tokens=1000.0,
        output_tokens=200.0,
        kv_tokens=1600.0,
        started_unix_s=1.7e9,
    )


def test_sglang() -> None:
    """By SGLang's names, which are not vLLM's."""
    found = parse_metrics("sglang", SGLANG_METRICS)
    assert (found.running, found.waiting, found.kv_use, found.kv_tokens) == (4, 2, 0.5, 5000)
    assert (found.prompt_tokens, found.output_tokens, found.preemptions) == (900, 100, None)
    with pytest.raises(InputError, match="no vllm:num_requests_running"):
        parse_metrics("vllm", SGLANG_METRICS)


def test_data_parallel_engines_behind_one_address() -> None:
    """Counts are added up, shares averaged."""
    other = VLLM_METRICS.replace('engine="0"', 'engine="1"').replace("} 0.25", "} 0.75")
    found = parse_metrics("vllm", VLLM_METRICS + other)
    assert (found.running, found.output_tokens, found.kv_use) == (6.0, 400.0, 0.5)
    assert found.started_unix_s == 1.7e9 and found.kv_tokens == 3200.0
    assert parse_pool_tokens(VLLM_METRICS + other) == 3200.0


def test_a_pool_that_is_not_known_yet() -> None:
    """vLLM writes None there before it has measured its memory."""
    text = VLLM_METRICS.replace('num_gpu_blocks="100"', 'num_gpu_blocks="None"')
    assert parse_metrics("vllm", text).kv_tokens is None
    assert parse_pool_tokens(text) is parse_pool_tokens("") is parse_pool_tokens("# \n") is None


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1.0", "many", "", "0x10"])
def test_values_that_are_none(value: str) -> None:
    """No NaN goes further."""
    text = VLLM_METRICS.replace("} 0.25", f"}} {value}")
    with pytest.raises(InputError, match="the engine's metrics"):
        parse_metrics("vllm", text)


GARBAGE = st.text(max_size=60) | st.builds(
    lambda place, junk: VLLM_METRICS[:place] + junk + VLLM_METRICS[place + len(junk) :],
    st.integers(0, len(VLLM_METRICS)),
    st.text(st.sampled_from('{}",= \\\n#eN-1x\u2028'), min_size=1, max_size=12),
)


@given(text=GARBAGE, kind=st.sampled_from(["vllm", "sglang"]))
def test_garbage(text: str, kind: str) -> None:
    """Finite numbers from 0 on, or one sentence."""
    try:
        assert (parse_pool_tokens(text) or 0.0) >= 0.0
        found = parse_metrics(kind, text)
    except InputError as error:
        assert "\n" not in str(error)
        return
    for value in vars(found).values():
        assert value is None or 0.0 <= value < float("inf")


async def test_readings_of_all_engines() -> None:
    """One that cannot be read has an error in place of figures, and holds nobody up."""
    upstream = Upstream(5.0)
    upstream.start()
    with PluginEngine() as well, PluginEngine() as mad:
        mad.metrics = b"\xff\xfe{{{"
        urls = [well.url, mad.url, f"http://127.0.0.1:{free_port()}"]
        specs = [EngineSpec("vllm", url, f"vllm-{i}", "p") for i, url in enumerate(urls)]
        found = await EngineMetricsReader(build_pools(specs, 10, 2), upstream).read()
        await upstream.close()
    assert found["vllm-0"]["output_tokens"] == 200.0 and "error" not in found["vllm-0"]
    said = "engine vllm-1: the engine's metrics have no vllm:num_requests_running"
    assert found["vllm-1"] == {"error": said}
    assert found["vllm-2"] == {"error": "engine vllm-2 cannot be reached"}
