"""The analytic load test against one that is played through iteration by iteration."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.sim.machine.cost_model import MIN_CHUNK_SHARE, CostModel
from jaxserve.sim.machine.hardware import load_gpu
from jaxserve.sim.machine.memory import kv_capacity_tokens
from jaxserve.sim.machine.models import load_model
from jaxserve.sim.machine.stack import Stack, serve
from jaxserve.sim.table.closed_loop import closed_loop

GPU, MODEL = load_gpu("h100-sxm-80gb"), load_model("llama-3.1-8b")
COST = CostModel.of(GPU, MODEL)
BUDGET = 2048

concurrencies = st.integers(1, 512)
lengths = st.integers(16, 8192)
outputs = st.integers(8, 1024)


class Playthrough:
    """A closed loop of one engine, request by request; output lengths vary by half."""

    def __init__(self, concurrency: int, prompt: int, output: int, kv_tokens: float) -> None:
        self.rng = np.random.default_rng(0)
        self.prompt, self.output, self.kv_tokens = prompt, output, kv_tokens
        self.now = 0.0
        self.waiting = [self.request() for _ in range(concurrency)]
        self.prefilling: list[dict] = []
        self.decoding: list[dict] = []
        self.finished: list[tuple[float, float, float]] = []  # TTFT, TPOT, time

    def request(self) -> dict:
        tokens = max(2, round(self.output * self.rng.uniform(0.5, 1.5)))
        return {"arrival": self.now, "output": tokens, "computed": 0, "generated": 0}

    def step(self) -> None:
        """One iteration: decode everything, fill the token budget with prefill, in order."""
        room = max(BUDGET - len(self.decoding), int(MIN_CHUNK_SHARE * BUDGET))
        final = self.prompt + self.output / 2 + 8
        held = final * len(self.prefilling)
        held += sum(self.prompt + r["generated"] + 8 for r in self.decoding)
        while self.waiting and held + final <= self.kv_tokens and len(self.prefilling) < room:
            self.prefilling.append(self.waiting.pop(0))
            held += final
        chunks = []
        for request in self.prefilling:
            chunk = min(self.prompt - request["computed"], room)
            room -= chunk
            if chunk:
                chunks.append((request, chunk))
        self.now += COST.iteration_s(
            decode_seqs=len(self.decoding),
            kv_tokens=sum(self.prompt + r["generated"] for r in self.decoding),
            chunks=tuple((chunk, request["computed"]) for request, chunk in chunks),
        )
        for request in list(self.decoding):
            request["generated"] += 1
            if request["generated"] == request["output"]:
                self.decoding.remove(request)
                ttft_s = request["first"] - request["arrival"]
                tpot_s = (self.now - request["first"]) / (request["output"] - 1)
                self.finished.append((ttft_s, tpot_s, self.now))
                self.waiting.append(self.request())
        for request, chunk in chunks:
            request["computed"] += chunk
            if request["computed"] == self.prompt:
                self.prefilling.remove(request)
                request |= {"generated": 1, "first": self.now}
                self.decoding.append(request)


@pytest.mark.parametrize(
    ("concurrency", "prompt", "output", "kv_fraction"),
    [
        (1, 512, 64, 1.0),
        (4, 1024, 128, 1.0),
        (32, 1024, 128, 1.0),
        (64, 256, 256, 1.0),
        (128, 512, 128, 1.0),
        (16, 4096, 128, 1.0),  # chunked prefill
        (64, 4096, 64, 1.0),  # more prefill than iterations can carry
        (64, 2048, 64, 0.25),  # more requests than KV
    ],
)
def test_agrees_with_a_playthrough(
    concurrency: int, prompt: int, output: int, kv_fraction: float
) -> None:
    """TPOT and throughput are right to 7 %, TTFT roughly, whatever the limit is."""
    kv_tokens = kv_capacity_tokens(GPU, MODEL, 0, kv_fraction, False)
    play = Playthrough(concurrency, prompt, output, kv_tokens)
    warm_up, count = max(2 * concurrency, 20), max(5 * concurrency, 60)
    while len(play.finished) < warm_up + count:
        play.step()
    ttft_s, tpot_s, _ = np.array(play.finished[warm_up:]).T
    requests_per_s = len(ttft_s) / (play.finished[-1][2] - play.finished[warm_up - 1][2])
    loop = closed_loop(COST, concurrency, prompt, output, kv_tokens=kv_tokens, token_budget=BUDGET)
    assert float(loop.tpot_s) == pytest.approx(tpot_s.mean(), rel=0.07)
    assert float(loop.requests_per_s) == pytest.approx(requests_per_s, rel=0.07)
    assert float(loop.ttft_p50_s) == pytest.approx(np.median(ttft_s), rel=0.30)
    assert float(loop.ttft_p99_s) == pytest.approx(np.quantile(ttft_s, 0.99), rel=0.35)


def test_one_request_alone() -> None:
    """At concurrency 1 nothing interferes: TTFT is the lone prefill, TPOT the lone decode."""
    loop = closed_loop(COST, 1, 700, 200)
    assert float(loop.ttft_p50_s) == pytest.approx(float(COST.prefill_alone_s(700)))
    assert float(loop.ttft_p99_s) == pytest.approx(float(COST.prefill_alone_s(700)))
    assert float(loop.tpot_s) == pytest.approx(float(COST.decode_s(1, 800)))


@given(concurrencies, lengths, outputs, st.floats(0.05, 1.0))
def test_little(concurrency: int, prompt: int, output: int, kv_fraction: float) -> None:
    """Requests in flight are rate times time in flight, up to rounding in the collision terms."""
    kv_tokens = kv_capacity_tokens(GPU, MODEL, 0, kv_fraction, False)
    loop = closed_loop(COST, concurrency, prompt, output, kv_tokens=kv_tokens)
    in_flight = loop.requests_per_s * (loop.ttft_p50_s + (output - 1) * loop.tpot_s)
    # The median TTFT has up to half a prompt's prefill less than the mean.
    assert in_flight <= concurrency * (1 + 1e-6) + 1e-6
    slack = loop.requests_per_s * COST.prefill_added_s(loop.batch, prompt)
    assert in_flight >= concurrency - slack - 1e-6


@given(concurrencies, concurrencies, lengths, outputs)
def test_more_load_is_slower_for_each_and_faster_for_all(
    few: int, many: int, prompt: int, output: int
) -> None:
    """With concurrency TTFT and throughput rise; waiting takes over where a limit binds."""
    few, many = sorted((few, many))
    light = closed_loop(COST, few, prompt, output)
    heavy = closed_loop(COST, many, prompt, output)
    assert heavy.ttft_p50_s >= light.ttft_p50_s * (1 - 1e-9)
    assert heavy.requests_per_s >= light.requests_per_s * 0.97
    assert heavy.ttft_p99_s >= heavy.ttft_p50_s


def test_kv_is_a_cliff() -> None:
    """More KV than the requests need changes nothing; less makes them wait."""
    point = (COST, 64, 1024, 256)
    enough, plenty = (closed_loop(*point, kv_tokens=tokens) for tokens in (80_000, 800_000))
    scarce = closed_loop(*point, kv_tokens=20_000)
    assert enough == plenty
    assert scarce.batch < enough.batch
    assert scarce.ttft_p50_s > 10 * enough.ttft_p50_s


def test_speculation_divides_the_steps() -> None:
    """Tokens per step count; verifying them costs the deeper iteration."""
    loop = closed_loop(COST, 1, 512, 129, depth=3, tokens_per_step=2.0)
    assert float(loop.tpot_s) == pytest.approx(float(COST.decode_s(1, 512 + 64.5, 3)) / 2)


def test_arguments_broadcast() -> None:
    """A grid is one call, and each point is what it is alone."""
    grid = closed_loop(COST, np.array([[4], [40]]), np.array([128, 1024, 4096]), 100)
    assert grid.tpot_s.shape == (2, 3)
    alone = closed_loop(COST, 40, 1024, 100)
    assert grid.ttft_p99_s[1, 1] == pytest.approx(float(alone.ttft_p99_s))
    assert grid.tpot_s[1, 1] == pytest.approx(float(alone.tpot_s))


@pytest.mark.parametrize(("concurrency", "prompt", "output"), [(1, 512, 64), (24, 2048, 96)])
def test_prompts_with_iterations_of_their_own_pause_the_round(
    concurrency: int, prompt: int, output: int
) -> None:
    """Equal requests stay in step: a round prefills all prompts one after the other and then
    decodes; requests of various lengths meet every prompt while they decode."""
    cost = CostModel.of(*serve("h100-sxm-80gb", "llama-3.1-8b", Stack("sglang")))
    place, steps = np.arange(concurrency), output - 1
    prompt_s = float(cost.prefill_added_s(concurrency, prompt))
    first_s = prompt_s * (place + 1) + (cost.host_s if concurrency == 1 else 0.0)
    decode_s = float(cost.decode_s(concurrency, prompt + output / 2))
    tpot_s = decode_s + prompt_s * (concurrency - 1 - place) / steps
    loop = closed_loop(cost, concurrency, prompt, output)
    assert float(loop.tpot_s) == pytest.approx(tpot_s.mean(), rel=0.01)
    assert float(loop.ttft_p50_s) == pytest.approx(first_s.mean(), rel=0.05)
    cycle_s = first_s.max() + steps * decode_s
    assert float(loop.requests_per_s) == pytest.approx(concurrency / cycle_s, rel=0.01)
    apart = closed_loop(cost, concurrency, prompt, output, in_step=False)
    paused_s = float(apart.tpot_s) - decode_s
    assert paused_s == pytest.approx(2 * (tpot_s.mean() - decode_s), rel=0.02, abs=1e-9)
