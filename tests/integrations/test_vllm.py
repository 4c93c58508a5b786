"""Knobs of a real vLLM, turned while it serves: a tiny model on an emulated device."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from jaxserve import cli
from jaxserve.live.episode_file import EpisodeWriter
from jaxserve.live.gateway_client import GatewayClient
from jaxserve.live.operate import Conduct, Controller
from jaxserve.live.show import Report
from jaxserve.live.supervisor import Mode, Rules
from jaxserve.spaces import make_action
from tests.gateway.gateway_thread import RunningGateway
from tests.integrations.environments import ROOT
from tests.integrations.vllm_environment import vllm_python
from tests.integrations.vllm_server import vllm_server
from tests.live.deployment import TASK, Moody, setup_of

pytestmark = pytest.mark.deep

TOKEN = "a-token-of-this-test-only"
BATCH_CAP, TOKEN_BUDGET, DEPTH, BLOCKS = 32, 512, 4, 128
PROMPT, OUTPUT = 48, 48
STREAMS = 50


@pytest.fixture(scope="module")
def python() -> Path:
    return vllm_python()


@pytest.fixture(scope="module")
def url(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that speculates, so that vLLM has every knob."""
    folder = tmp_path_factory.mktemp("vllm")
    make = [python, "-m", "jaxserve_vllm.cyclic_model", folder / "model"]
    subprocess.run(make, check=True, capture_output=True)
    times = folder / "times.json"
    times.write_text(json.dumps({"seconds": {"step": 0.03, "token": 5e-5}}))
    speculation = {
        "method": "ngram",
        "num_speculative_tokens": DEPTH,
        "prompt_lookup_max": 3,
        "prompt_lookup_min": 2,
        "num_speculative_tokens_per_batch_size": [[1, BATCH_CAP, DEPTH]],
    }
    options = ["--max-model-len", "256", "--max-num-seqs", str(BATCH_CAP)]
    options += ["--max-num-batched-tokens", str(TOKEN_BUDGET)]
    options += ["--block-size", "32", "--num-gpu-blocks-override", str(BLOCKS)]
    options += ["--no-enable-prefix-caching"]
    options += ["--scheduling-policy", "priority"]
    options += ["--speculative-config", json.dumps(speculation)]
    options += ["--scheduler-cls", "jaxserve_vllm.scheduler.ControlledScheduler"]
    options += ["--worker-cls", "jaxserve_vllm.worker.EmulatedWorker"]
    settings = {
        "VLLM_PLUGINS": "jaxserve",
        "JAXSERVE_CONTROL_TOKEN": TOKEN,
        "JAXSERVE_EMULATE": str(times),
    }
    with vllm_server(python, folder / "model", options, settings) as address:
        yield address


@dataclass
class Stream:
    """What came of a request."""

    priority: int
    status: int = 0
    tokens: int = 0
    first_s: float = 0.0
    ended: bool = False


@dataclass
class Engine:
    """The one engine behind a server."""

    client: httpx.AsyncClient
    streams: list[Stream] = field(default_factory=list)

    async def ask(self, method: str, path: str, **kwargs: Any) -> dict[str, Any]:
        answer = await self.client.request(method, f"/jaxserve/{path}", **kwargs)
        assert answer.status_code == 200, answer.text
        [engine] = answer.json()["engines"]
        return engine

    async def put(self, lease_s: float = 600.0, **knobs: float) -> dict[str, Any]:
        """Turns knobs, and sees that they are acknowledged."""
        state = await self.ask("PUT", "control", json={"lease_s": lease_s, "knobs": knobs})
        assert state["mode"] == "leased"
        for name, value in knobs.items():
            assert state["knobs"][name]["now"] == pytest.approx(value, abs=1 / BLOCKS)
        return state

    async def next_steps(self, count: int = 25) -> list[dict[str, float]]:
        """The next ``count`` steps or more, but for two that may be under way."""
        latest = (await self.ask("GET", "control"))["steps"] + 2
        trace: dict[str, Any] = {"rows": []}
        while len(trace["rows"]) < count:
            await asyncio.sleep(0.1)
            trace = await self.ask("GET", f"steps?after={latest}")
        return [dict(zip(trace["columns"], row, strict=True)) for row in trace["rows"]]

    async def stream(self, output: int = OUTPUT, priority: int = 0) -> Stream:
        """One request, read to its end."""
        stream = Stream(priority)
        self.streams.append(stream)
        body = {
            "model": "tiny",
            "prompt": [8 + i % 8 for i in range(PROMPT)],
            "max_tokens": output,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            "priority": priority,
        }
        async with self.client.stream("POST", "/v1/completions", json=body) as answer:
            stream.status = answer.status_code
            async for line in answer.aiter_lines():
                if line == "data: [DONE]":
                    stream.ended = True
                elif line.startswith("data: "):
                    stream.first_s = stream.first_s or time.monotonic()
                    usage = json.loads(line.removeprefix("data: ")).get("usage")
                    stream.tokens = usage["completion_tokens"] if usage else 0
        return stream


@asynccontextmanager
async def engine_at(url: str) -> AsyncIterator[Engine]:
    """The engine, left as it was started."""
    # vLLM closes connections that are idle for 5 s, and on a busy machine we may be late to notice.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    headers = {"authorization": f"Bearer {TOKEN}"}
    async with httpx.AsyncClient(
        base_url=url, headers=headers, limits=limits, timeout=None
    ) as client:
        engine = Engine(client)
        yield engine
        state = await engine.ask("DELETE", "control")
        assert state["mode"] == "static"
        lost = [s for s in engine.streams if (s.status, s.ended) != (200, True)]
        assert not lost


async def turn_every_knob(engine: Engine) -> list[str]:
    """Turns knobs of an engine under load; sentences about what the engine did then."""
    did = []
    await engine.put(speculation_depth=0)  # so that requests are long enough to fill the batch
    for cap in (4, 16, 2, BATCH_CAP):
        state = await engine.put(batch_cap=cap)
        while state["running"] > cap:  # those above the cap run to their end
            await asyncio.sleep(0.05)
            state = await engine.ask("GET", "control")
        steps = await engine.next_steps()
        most = max(step["running"] for step in steps)
        assert most == cap or BATCH_CAP / 2 < most < cap == BATCH_CAP
        did.append(f"batch_cap {cap}: at most {most} running in {len(steps)} steps")
    for budget in (16, 128, TOKEN_BUDGET):
        await engine.put(token_budget=budget)
        steps = await engine.next_steps()
        most = max(step["decode_tokens"] + step["prompt_tokens"] for step in steps)
        assert most == budget or budget > most > 16
        did.append(f"token_budget {budget}: at most {most} tokens in {len(steps)} steps")
    for fraction in (0.5, 0.1, 1.0):
        before = await engine.put(kv_budget_fraction=fraction)
        state = before
        while state["kv_blocks_used"] > state["kv_blocks_budget"]:
            await asyncio.sleep(0.1)
            state = await engine.ask("GET", "control")
        used = []
        while len(used) < 20:
            await asyncio.sleep(0.1)
            state = await engine.ask("GET", "control")
            used.append(state["kv_blocks_used"])
        budget = state["kv_blocks_budget"]
        assert budget == round(fraction * (BLOCKS - 1))
        assert 0 < max(used) <= budget
        preempted = state["preemptions"] - before["preemptions"]
        did.append(
            f"kv_budget_fraction {fraction}: at most {max(used)} of {budget} blocks, "
            f"{preempted} preemptions"
        )
    for depth in (0, 2, 1, DEPTH):
        await engine.put(speculation_depth=depth)
        steps = [step for step in await engine.next_steps() if step["decode_seqs"]]
        drafted = [step["decode_tokens"] / step["decode_seqs"] - 1 for step in steps]
        assert {step["depth"] for step in steps} == {depth}
        assert max(drafted) <= depth
        assert depth == 0 or max(drafted) > depth / 2
        did.append(f"speculation_depth {depth}: {sum(drafted) / len(drafted):.2f} drafted")
    for routing in (0, 1):
        state = await engine.put(priority_routing=routing)
        did.append(f"priority_routing {routing}: with {state['waiting']} waiting")
        await engine.next_steps()
    return did


def test_every_knob_is_turned_while_50_requests_stream(url: str) -> None:
    """Each value is acknowledged and obeyed; no stream breaks, and no token is lost."""

    async def go() -> None:
        async with engine_at(url) as engine:
            going = True

            async def client() -> None:
                while going:
                    stream = await engine.stream()
                    assert stream.tokens == OUTPUT

            async with asyncio.TaskGroup() as clients:
                for _ in range(STREAMS):
                    clients.create_task(client())
                did = await turn_every_knob(engine)
                going = False
            assert len(engine.streams) > STREAMS
            print(*did, f"{len(engine.streams)} streams complete", sep="\n")

    asyncio.run(go())


def test_a_lease_expires_by_itself(url: str) -> None:
    """The engine says so, and runs as it was started."""

    async def go() -> None:
        async with engine_at(url) as engine:
            state = await engine.put(lease_s=2.0, batch_cap=1, kv_budget_fraction=0.25)
            assert 0 < state["lease_left_s"] <= 2
            async with asyncio.TaskGroup() as clients:
                for _ in range(STREAMS):
                    clients.create_task(engine.stream(180))
                most = 0
                while state["mode"] == "leased":
                    most = state["running"]
                    await asyncio.sleep(0.1)
                    state = await engine.ask("GET", "control")
                running = 0
                while running <= 1 and not all(stream.ended for stream in engine.streams):
                    await asyncio.sleep(0.1)
                    running = (await engine.ask("GET", "control"))["running"]
            print(f"running before and after the end of the lease: {most}, {running}")
            assert most <= 1 < running
            assert state["lease_left_s"] == 0
            knobs = {name: knob for name, knob in state["knobs"].items() if knob["offered"]}
            assert {name: knob["now"] for name, knob in knobs.items()} == {
                "batch_cap": BATCH_CAP,
                "token_budget": TOKEN_BUDGET,
                "kv_budget_fraction": 1.0,
                "speculation_depth": DEPTH,
                "priority_routing": 1,
            }
            assert {stream.tokens for stream in engine.streams} == {180}

    asyncio.run(go())


def test_operated_in_shadow_then_guarded(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shadow turns nothing, where guarded mode turns; requests stream meanwhile and none is
    lost. A busy machine may miss the deadline of some windows."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JAXSERVE_CONTROL_TOKEN", TOKEN)
    Path("chat.json").write_text(json.dumps(TASK))
    [stream] = TASK["streams"]
    slo = f"chat:ttft={stream['ttft_slo_s']},tpot={stream['tpot_slo_s']}"
    with RunningGateway([f"vllm={url},control=JAXSERVE_CONTROL_TOKEN"], slo=(slo,)) as gateway:
        make = ["live-task", "--task", "chat.json", "--gateway", gateway.control_url]
        assert cli.main([*make, "--out", "mine.json"]) == 0
        setup = setup_of("mine.json")

        async def operate(mode: Mode, looks: Callable[[Report], Awaitable[bool]]) -> None:
            """Until ``looks``, asked after every window, has seen enough."""
            reports: asyncio.Queue[Report] = asyncio.Queue()
            log = EpisodeWriter(Path(f"{mode}.jsonl"), {"task": "mine", "agent": "moody"})
            client = GatewayClient(gateway.control_url, patience_s=setup.spec.window_s / 4)
            policy, static = Moody([20.0]), make_action(batch_cap=BATCH_CAP)
            with log:
                async with client, asyncio.TaskGroup() as beside:
                    conduct = Conduct(mode, Rules(fewest=1e9, recover=1))
                    controller = Controller(setup, policy, static, client, log, conduct)
                    running = beside.create_task(controller.run(None, reports.put_nowait))
                    while not await looks(await reports.get()):
                        pass
                    running.cancel()

        async def go() -> None:
            async with engine_at(url) as engine:
                at_gateway = Engine(httpx.AsyncClient(base_url=gateway.url, timeout=None))
                going = True

                async def client() -> None:
                    while going:
                        assert (await at_gateway.stream()).tokens == OUTPUT

                before = await engine.ask("DELETE", "control")
                told: list[dict[str, float]] = []

                async def three_windows(report: Report) -> bool:
                    state = await engine.ask("GET", "control")
                    assert (state["mode"], state["version"]) == ("static", before["version"])
                    told.extend([report.command] if report.command else [])
                    return len(told) == 3

                async def obeyed(report: Report) -> bool:
                    state = await engine.ask("GET", "control")
                    return state["knobs"]["batch_cap"]["now"] == 20

                async with at_gateway.client, asyncio.TaskGroup() as clients:
                    for _ in range(4):
                        clients.create_task(client())
                    await operate(Mode.SHADOW, three_windows)
                    assert {knobs["batch_cap"] for knobs in told} == {20}
                    await operate(Mode.GUARDED, obeyed)
                    going = False
                lost = [s for s in at_gateway.streams if (s.status, s.ended) != (200, True)]
                assert len(at_gateway.streams) > 4 and not lost

        asyncio.run(go())


def test_vllms_own_scheduler(python: Path) -> None:
    """The plug-in's tests with vLLM's scheduler in a process, without a server."""
    command = [python, "-m", "pytest", "-p", "no:cacheprovider", "tests/test_scheduler.py"]
    done = subprocess.run(
        command, cwd=ROOT / "integrations" / "vllm", capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-5000:]
