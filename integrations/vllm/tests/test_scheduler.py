"""Knobs of vLLM's own scheduler, without a model, a worker or a server."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm.v1", reason="vLLM is not installed")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from vllm.v1.core.sched.async_scheduler import AsyncScheduler

from jaxserve_vllm.bare import BareEngine, BareSettings
from jaxserve_vllm.engine_control.command import CommandError
from jaxserve_vllm.episodes import play
from jaxserve_vllm.scheduler import ControlledScheduler

MAX_LENGTH = 512
BLOCK = 16
TABLE = {"num_speculative_tokens_per_batch_size": [(1, 16, 4)]}


class Engine(BareEngine):
    """A scheduler under test."""

    def __init__(
        self,
        *,
        drafts: int = 0,
        dynamic: bool = True,
        scheduler: type = ControlledScheduler,
        **settings: Any,
    ) -> None:
        if drafts:
            settings["speculation"] = {
                "method": "ngram",
                "num_speculative_tokens": drafts,
                "prompt_lookup_max": 3,
                "prompt_lookup_min": 2,
                **(TABLE if dynamic else {}),
            }
        super().__init__(BareSettings(**settings), scheduler)

    def ask(self, name: str, prompt: int = 20, output: int = 40, priority: int = 0) -> None:
        now = len(self.scheduler.requests) + len(self.finished)
        self.add(name, [7] * prompt, output, priority, arrival_s=float(now))

    def run(self) -> None:
        """Steps until nothing is left to do."""
        for _ in range(5000):
            if not self.scheduler.has_unfinished_requests():
                return
            self.step()
        raise AssertionError("requests are stuck")

    def state(self) -> dict[str, Any]:
        return self.scheduler.answer({"ask": "state"})

    def now(self, knob: str) -> Any:
        return self.state()["knobs"][knob]["now"]


def test_batch_cap() -> None:
    """No more run than the cap; those above a lowered one run to their end, and nothing is lost."""
    engine = Engine()
    for i in range(40):
        engine.ask(str(i), output=10 + i)
    assert engine.put(batch_cap=4)["knobs"]["batch_cap"]["now"] == 4
    engine.step()
    assert len(engine.scheduler.running) == 4
    engine.put(batch_cap=16)
    engine.step()
    assert len(engine.scheduler.running) == 16
    engine.put(batch_cap=2)
    started = len(engine.first)
    engine.step()
    assert len(engine.scheduler.running) == 16
    while len(engine.scheduler.running) > 2:
        engine.step()
        assert len(engine.first) <= max(started, 16)
    for _ in range(20):
        engine.step()
        assert len(engine.scheduler.running) <= 2
    engine.scheduler.answer({"ask": "release"})
    engine.run()
    assert engine.finished == {str(i): 10 + i for i in range(40)}
    assert engine.state()["preemptions"] == 0


def test_token_budget() -> None:
    """No step has more tokens, and prompts longer than that are cut into pieces."""
    engine = Engine()
    for i in range(12):
        engine.ask(str(i), prompt=200)
    assert engine.step().total_num_scheduled_tokens == MAX_LENGTH
    for budget in (64, 16, 300):
        engine.put(token_budget=budget)
        tokens = [engine.step().total_num_scheduled_tokens for _ in range(4)]
        assert 0 < max(tokens) <= budget
    engine.run()
    assert engine.finished == {str(i): 40 for i in range(12)}


def test_kv_budget() -> None:
    """Shrunk under load, the cache preempts down to the budget, and gives everything back."""
    engine = Engine()
    for i in range(32):
        engine.ask(str(i), prompt=60, output=60)
    for _ in range(10):
        engine.step()
    before = engine.state()
    assert before["kv_blocks_used"] > 64
    shrunk = engine.put(kv_budget_fraction=0.5)
    assert shrunk["knobs"]["kv_budget_fraction"]["now"] == 0.5
    assert shrunk["kv_blocks_budget"] == 64
    for _ in range(BLOCK):  # by then every sequence has asked for a block
        engine.step()
    for _ in range(40):
        engine.step()
        assert engine.state()["kv_blocks_used"] <= 64
        assert engine.scheduler.kv_cache_manager.usage <= 1
    assert engine.state()["preemptions"] > 0
    engine.put(kv_budget_fraction=1.0)
    engine.run()
    assert engine.finished == {str(i): 60 for i in range(32)}
    assert engine.state()["kv_blocks_used"] == 0


def test_the_least_kv_budget_holds_the_longest_request() -> None:
    """Otherwise a request could wait for ever."""
    engine = Engine()
    least = engine.state()["knobs"]["kv_budget_fraction"]["least"]
    assert engine.put(kv_budget_fraction=least)["kv_blocks_budget"] < 40
    for i in range(3):
        engine.ask(str(i), prompt=MAX_LENGTH - 40, output=40)
    engine.run()
    assert engine.finished == dict.fromkeys("012", 40)
    assert "refused" in engine.put(kv_budget_fraction=least * 0.99)


def test_a_budget_does_not_stop_a_reset_of_the_prefix_cache() -> None:
    """vLLM resets it only when every block is free."""
    engine = Engine()
    engine.put(kv_budget_fraction=0.5)
    assert engine.scheduler.reset_prefix_cache()


def test_priority_routing() -> None:
    """Switched with requests waiting, the order of those that wait follows, both ways."""
    engine = Engine()
    engine.put(batch_cap=1, priority_routing=0)
    for i in range(12):
        engine.ask(str(i), output=4, priority=i % 2)
    while len(engine.first) < 3:
        engine.step()
    engine.put(priority_routing=1)
    while len(engine.first) < 6:
        engine.step()
    engine.put(priority_routing=0)
    engine.run()
    assert [int(name) for name in engine.first] == [0, 1, 2, 4, 6, 8, 3, 5, 7, 9, 10, 11]
    assert set(engine.finished.values()) == {4}


def test_speculation_depth() -> None:
    """Each sequence gets as many drafts as the depth says, from the step after next at the latest;
    without a lease vLLM's own table holds."""
    engine = Engine(drafts=4)
    assert engine.state()["knobs"]["speculation_depth"] == {
        "offered": True,
        "now": 4,
        "static": 4,
        "least": 0,
        "most": 4,
    }
    for i in range(3):
        engine.ask(str(i), output=200)
    for depth in (4, 0, 2, 1, 3):
        assert engine.put(speculation_depth=depth)["knobs"]["speculation_depth"]["now"] == depth
        engine.step()
        engine.step()
        drafts = engine.step().scheduled_spec_decode_tokens
        assert {len(drafts.get(str(i), ())) for i in range(3)} == {depth}
    engine.run()
    assert engine.finished == dict.fromkeys("012", 200)


def test_a_lease_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The static values come back before the next step, those of ``JAXSERVE_STATIC`` included."""
    monkeypatch.setenv("JAXSERVE_STATIC", '{"batch_cap": 3}')
    engine = Engine()
    for i in range(12):
        engine.ask(str(i))
    engine.step()
    assert len(engine.scheduler.running) == 3
    assert engine.put(lease_s=0.2, batch_cap=12)["mode"] == "leased"
    engine.step()
    assert len(engine.scheduler.running) == 12
    while engine.state()["mode"] == "leased":
        pass
    assert engine.now("batch_cap") == 3
    engine.run()
    assert set(engine.finished.values()) == {40}


def test_static_values_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine does not start with values that it does not allow."""
    monkeypatch.setenv("JAXSERVE_STATIC", '{"batch_cap": 300}')
    with pytest.raises(CommandError, match=r"JAXSERVE_STATIC: batch_cap is 300; .* 1 to 16"):
        Engine()


def test_a_command_by_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command is taken before the next step; one out of range changes nothing."""
    path = tmp_path / "command.json"
    monkeypatch.setenv("JAXSERVE_CONTROL_FILE", str(path))
    engine = Engine()
    for i in range(12):
        engine.ask(str(i))
    path.write_text('{"lease_s": 60, "knobs": {"batch_cap": 2}}')
    engine.step()
    assert len(engine.scheduler.running) == 2
    path.write_text('{"lease_s": 60, "knobs": {"batch_cap": 2000}}')
    engine.step()
    assert engine.now("batch_cap") == 2


def test_knobs_that_are_not_offered() -> None:
    """Each with the reason, and refused with it."""
    engine = Engine(policy="fcfs", chunked=False, drafts=2, dynamic=False)
    knobs = engine.state()["knobs"]
    reasons = {name: knob["reason"] for name, knob in knobs.items() if not knob["offered"]}
    assert {name: reason.split(" ")[0] for name, reason in reasons.items()} == {
        "token_budget": "vLLM",
        "speculation_depth": "vLLM",
        "priority_routing": "vLLM",
        "quantization_tier": "vLLM",
        "prefill_decode_split": "vLLM's",
    }
    assert "chunked prefill" in reasons["token_budget"]
    assert "num_speculative_tokens_per_batch_size" in reasons["speculation_depth"]
    assert "--scheduling-policy priority" in reasons["priority_routing"]
    refused = engine.put(token_budget=64)
    assert refused == {"refused": f"token_budget cannot be turned: {reasons['token_budget']}"}


def test_left_alone_it_is_vllms_scheduler() -> None:
    """Every step of a run with preemptions has the same requests with the same tokens."""
    engines = [Engine(blocks=40, scheduler=kind) for kind in (AsyncScheduler, ControlledScheduler)]
    for i in range(30):
        for engine in engines:
            engine.ask(str(i), prompt=10 + 7 * i, output=20 + i, priority=i % 3)
    while engines[0].scheduler.has_unfinished_requests():
        own, ours = (engine.step().num_scheduled_tokens for engine in engines)
        assert ours == own
    assert engines[0].finished == engines[1].finished
    assert engines[1].state()["preemptions"] > 0


def test_the_trace_of_steps() -> None:
    """Every step is there with the load that was scheduled."""
    engine = Engine()
    for i in range(4):
        engine.ask(str(i), prompt=300)
    outputs = [engine.step() for _ in range(6)]
    trace = json.loads(json.dumps(engine.scheduler.answer({"ask": "steps", "after": 0})))
    rows = [dict(zip(trace["columns"], row, strict=True)) for row in trace["rows"]]
    assert [row["decode_tokens"] + row["prompt_tokens"] for row in rows] == [
        output.total_num_scheduled_tokens for output in outputs
    ]
    assert [row["decode_seqs"] for row in rows] == [0, 1, 3, 4, 4, 4]
    assert rows[3]["kv_tokens"] == 303 + 302 + 302 + 301
    assert all(row["seconds"] > 0 for row in rows)
    assert engine.state()["steps"] == 6


def test_an_episode_is_played_step_by_step() -> None:
    """Chunks, preemption and a knob turned, as the simulator is held against them."""
    episode = {
        "blocks": 6,
        "block_tokens": 16,
        "max_length": 64,
        "batch_cap": 4,
        "token_budget": 40,
        "priority_routing": False,
        "watermark": 0.0,
        "prefix_caching": False,
        "speculation_depth": 0,
        "requests": [[0, 44, 6, 0], [0, 44, 2, 0], [9, 3, 1, 1]],
        "turns": [[3, {"token_budget": 1}], [7, {"token_budget": 40}]],
    }
    assert play(episode) == [
        [[[0, 40]], []],
        [[[0, 4], [1, 36]], []],
        [[[0, 1], [1, 8]], []],
        *[[[[0, 1]], []]] * 3,
        [[[0, 1]], [1]],
        [[[1, 40]], []],
        [[[1, 5]], []],
        [[[2, 3]], []],
    ]
