"""A user's trace on the reference simulator, and his log beside it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve import cli
from jaxserve.errors import InputError
from jaxserve.sim.machine.acceptance import Drafts, tokens_per_step
from jaxserve.sim.reference.own_log import (
    Quantity,
    ServedBy,
    check_unit,
    frontend_of,
    quantities,
    simulate,
    unserved_note,
    unstreamed_note,
)
from jaxserve.sim.table.file import read_table_file
from jaxserve.sim.traffic.prompt_blocks import from_ids
from jaxserve.sim.traffic.request_logs import RequestLog
from jaxserve.sim.traffic.traces import Trace
from tests.examples_drawn import FEW

_TABLE = "llama-3.1-8b__h100-sxm-80gb"
_COST = read_table_file(_TABLE).metadata.cost_model


def _trace(count: int = 60) -> Trace:
    rng = np.random.default_rng(0)
    arrival_s = np.cumsum(rng.exponential(0.02, count))
    return Trace(
        arrival_s - arrival_s[0],
        rng.integers(10, 3000, count).astype(np.int32),
        rng.integers(1, 200, count).astype(np.int32),
    )


def test_its_own_log_is_reproduced() -> None:
    """Without an error in any quantity, and in the order of the trace."""
    trace = _trace()
    log = simulate(trace, _COST, ServedBy(kv_tokens=20_000))
    assert (log["id"] == np.arange(len(trace))).all()
    assert np.isfinite(log["finish_s"]).all()
    tpot_s = np.where(trace.output_tokens > 1, log["tpot_s"], np.nan)
    found = quantities(RequestLog(trace, log["ttft_s"], tpot_s), log)
    assert len(found) == 7
    assert all(each.error == pytest.approx(0.0, abs=1e-9) for each in found)


def test_requests_without_latencies_are_played_and_not_compared() -> None:
    """The other latencies are compared with those of the same requests; throughput is not."""
    trace = _trace()
    log = simulate(trace, _COST, ServedBy(kv_tokens=20_000))
    tpot_s = np.where(trace.output_tokens > 1, log["tpot_s"], np.nan)
    hidden = np.arange(len(trace)) % 2 == 0
    part = [np.where(hidden, np.nan, times) for times in (log["ttft_s"], tpot_s)]
    found = RequestLog(trace, part[0], part[1], of_client=True)
    *latencies, throughput = quantities(found, log)
    assert all(each.error == pytest.approx(0.0, abs=1e-9) for each in latencies)
    assert throughput.measured is None
    assert frontend_of(found, log) in (None, 0.0)
    assert str(unstreamed_note(found)).startswith("30 of 60 requests were not streamed")
    assert unstreamed_note(RequestLog(trace, log["ttft_s"], tpot_s)) is None


def test_more_engines_and_a_front_end() -> None:
    """Engines share the load; the front end adds to TTFT and to nothing else."""
    trace = _trace()
    one = simulate(trace, _COST, ServedBy(kv_tokens=20_000, batch_cap=4))
    two = simulate(trace, _COST, ServedBy(kv_tokens=20_000, batch_cap=4, gpus=2))
    far = simulate(trace, _COST, ServedBy(kv_tokens=20_000, batch_cap=4, frontend_s=0.5))
    assert two["ttft_s"].mean() < one["ttft_s"].mean()
    np.testing.assert_allclose(far["ttft_s"], one["ttft_s"] + 0.5)
    np.testing.assert_allclose(far["tpot_s"], one["tpot_s"])


@FEW
@given(seed=st.integers(0, 2**32 - 1), kv_blocks=st.integers(80, 400), first=st.integers(0, 40))
def test_what_was_served_before_is_still_cached(seed: int, kv_blocks: int, first: int) -> None:
    """Requests that never meet find in the caches what they find when all are played, evicted
    blocks included."""
    rng = np.random.default_rng(seed)
    ids, prompts = [], rng.integers(16, 1_200, 40).astype(np.int32)
    for number, prompt in enumerate(prompts.tolist()):
        shared = rng.integers(0, 1 + -(-prompt // 16))
        stem = rng.integers(0, 4)
        ids.append(
            [f"{stem}.{place}" for place in range(shared)]
            + [f"of {number}.{place}" for place in range(shared, -(-prompt // 16))]
        )
    blocks = from_ids(ids, prompts, 16)
    outputs = rng.integers(1, 60, 40).astype(np.int32)
    trace = Trace(100.0 * np.arange(40), prompts, outputs, blocks=blocks)
    by = ServedBy(kv_tokens=16 * kv_blocks, prefix_caching=True)
    whole = simulate(trace, _COST, by)
    before = trace.chosen(slice(0, first)) if first else None
    part = simulate(trace.chosen(slice(first, 40)), _COST, by, before)
    np.testing.assert_array_equal(part["cached_tokens"], whole["cached_tokens"][first:])


def test_drafts_shorten_tokens() -> None:
    """By no more than the tokens that a step makes, since drafts take time too."""
    trace = _trace(20)
    plain = simulate(trace, _COST, ServedBy(kv_tokens=200_000))
    drafts = Drafts("sharegpt/eagle", (3,))
    drafted = simulate(trace, _COST, ServedBy(kv_tokens=200_000, drafts=drafts))
    speedup = plain["tpot_s"].mean() / drafted["tpot_s"].mean()
    assert 1.2 < speedup < tokens_per_step("sharegpt/eagle")[3]


def test_a_split_spares_tokens_the_prompts() -> None:
    """Decoding engines never wait for a prompt; the time to hand KV over comes after the first
    token."""
    trace = _trace()
    mixed = simulate(trace, _COST, ServedBy(kv_tokens=200_000, gpus=2))
    split = simulate(trace, _COST, ServedBy(kv_tokens=200_000, gpus=2, prefill_gpus=1))
    assert split["tpot_s"].mean() < mixed["tpot_s"].mean()
    slow = simulate(
        trace,
        _COST,
        ServedBy(kv_tokens=200_000, gpus=2, prefill_gpus=1, handover_s_per_token=1e-5),
    )
    several = trace.output_tokens > 1
    assert (slow["finish_s"][several] > split["finish_s"][several]).mean() > 0.9
    np.testing.assert_allclose(slow["ttft_s"], split["ttft_s"])


def test_what_no_engine_has_room_for_is_counted() -> None:
    """It does not hold up the others."""
    log = simulate(_trace(), _COST, ServedBy(kv_tokens=1024))
    refused = log["rejected"] | log["lost"]
    assert 0 < refused.sum() < len(log)
    assert np.isfinite(log["finish_s"][~refused]).all()


def test_a_request_that_no_engine_has_room_for_delays_nobody() -> None:
    """The next one comes at once, although nothing else happens at that time."""
    arrival_s = np.array([0.0, 0.0, 0.0, 50.0])
    trace = Trace(arrival_s, np.array([900, 10, 10, 10], np.int32), np.full(4, 5, np.int32))
    log = simulate(trace, _COST, ServedBy(kv_tokens=320, batch_cap=1, token_budget=64))
    assert log["rejected"].tolist() == [True, False, False, False]
    assert log["first_scheduled_s"][1] == 0.0 and log["finish_s"][2] < 1.0


def test_requests_beyond_the_model_are_rejected() -> None:
    """Prompt and output together, as vLLM counts; the sentence says how many, and none is an
    error."""
    trace = _trace()
    by = ServedBy(kv_tokens=20_000, context_tokens=1000)
    log = simulate(trace, _COST, by)
    np.testing.assert_array_equal(log["rejected"], trace.total_tokens > 1000)
    note = unserved_note(trace, log, by) or ""
    assert note.startswith(f"{log['rejected'].sum()} of 60 requests")
    none = dataclasses.replace(by, context_tokens=10)
    with pytest.raises(InputError, match=r"none of the 60 requests.*context of 10"):
        unserved_note(trace, simulate(trace, _COST, none), none)
    assert unserved_note(trace, log[:0], by) is None


@given(st.integers(1, 12), st.integers(1, 2))
@FEW
def test_a_closed_loop_keeps_so_many_in_flight(concurrency: int, gpus: int) -> None:
    """Never more, and always as many while there are others; the next begins when one ends, by a
    client behind the front end."""
    trace = _trace(30)
    by = ServedBy(kv_tokens=20_000, concurrency=concurrency, gpus=gpus, frontend_s=0.01)
    log = simulate(trace, _COST, by)
    ended_s = log["finish_s"] + 0.01
    begun_s = log["arrival_s"]
    assert (begun_s[:concurrency] == 0.0).all()
    for time_s in begun_s[concurrency:]:
        in_flight = ((begun_s <= time_s) & (ended_s > time_s)).sum()
        assert in_flight <= concurrency
        assert in_flight == concurrency or time_s == begun_s.max()
        assert np.isclose(ended_s, time_s).any()


def test_a_closed_loop_goes_on_behind_rejected_requests() -> None:
    """They take no place in it."""
    by = ServedBy(kv_tokens=20_000, concurrency=2, context_tokens=1000)
    log = simulate(_trace(), _COST, by)
    assert np.isfinite(log["finish_s"][~log["rejected"]]).all()


@pytest.mark.parametrize("frontend_s", [0.0, 0.014, 0.3])
def test_the_front_end_of_a_clients_log(frontend_s: float) -> None:
    """It is found again in a log of requests that seldom wait; an engine's own log has none."""
    trace = _trace()
    calm = dataclasses.replace(trace, arrival_s=10.0 * trace.arrival_s)
    by = ServedBy(kv_tokens=200_000)
    here, there = (
        simulate(calm, _COST, dataclasses.replace(by, frontend_s=s)) for s in (0.0, frontend_s)
    )
    log = RequestLog(calm, there["ttft_s"], there["tpot_s"], of_client=True)
    assert frontend_of(log, here) == pytest.approx(frontend_s, abs=1e-6)
    assert frontend_of(dataclasses.replace(log, of_client=False), here) is None


def test_prompts_that_begin_alike_are_found() -> None:
    """With prefix caching, and only where the trace says which do."""
    trace = _trace()
    ids = [[i % 3] * -(-int(n) // 512) for i, n in enumerate(trace.prompt_tokens)]
    blocks = from_ids(ids, trace.prompt_tokens.astype(np.int64), 512)
    named = dataclasses.replace(trace, blocks=blocks)
    plain, caching = ServedBy(kv_tokens=200_000), ServedBy(kv_tokens=200_000, prefix_caching=True)
    assert (simulate(trace, _COST, caching)["cached_tokens"] == 0).all()
    without, found = (simulate(named, _COST, by) for by in (plain, caching))
    assert (without["cached_tokens"] == 0).all()
    assert found["cached_tokens"].sum() > 0.5 * trace.prompt_tokens.sum()
    assert (found["cached_tokens"] < trace.prompt_tokens).all()
    assert found["ttft_s"].mean() < without["ttft_s"].mean()


def test_bad_engines() -> None:
    """Are refused."""
    with pytest.raises(InputError, match="batch_cap is 0"):
        ServedBy(kv_tokens=1024, batch_cap=0)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It prints simulated beside measured, and writes the requests."""
    path, out = tmp_path / "log.jsonl", tmp_path / "out.csv"
    names = ("queued_ts", "input_toks", "output_toks", "first_token_ts", "last_token_ts")
    rows = [(float(i), 500, 50, i + 0.1, i + 0.6) for i in range(5)]
    path.write_text("\n".join(json.dumps(dict(zip(names, row, strict=True))) for row in rows))
    options = ["--table", _TABLE, "--batch-cap", "8", "--csv", str(out)]
    assert cli.main(["simulate", str(path), *options]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "5 requests in 4 s" in printed and "TTFT mean, ms" in printed and "100 -" in printed
    assert len(out.read_text().splitlines()) == 6
    assert cli.main(["simulate", "--trace", str(path), *options]) == 0
    assert "5 requests in 4 s" in " ".join(capsys.readouterr().out.split())
    for files in ([], [str(path), "--trace", str(path)]):
        assert cli.main(["simulate", *files, *options]) == 2
        assert "name one file of requests" in capsys.readouterr().err
    assert cli.main(["simulate", str(path), "--hardware", "h100-sxm-80gb"]) == 2
    assert "name either --table, or --hardware and --model" in capsys.readouterr().err


def test_the_command_says_that_a_clock_was_coarse(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Requests are spread over its tick."""
    path = tmp_path / "trace.jsonl"
    rows = [
        {"timestamp": 3000 * (i // 2), "input_length": 9, "output_length": i + 1, "hash_ids": [i]}
        for i in range(40)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    assert cli.main(["simulate", str(path), "--table", _TABLE, "--batch-cap", "8"]) == 0
    assert "times were recorded every 3 s; requests of one time" in capsys.readouterr().out


def test_requests_beyond_the_table_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are served as they are, and the command says so, where the model's context allows."""
    path = tmp_path / "log.jsonl"
    table = tmp_path / "long.parquet"
    model = tmp_path / "long.json"
    model.write_text(json.dumps(_LONG_MODEL))
    build = ["table", "build", "--hardware", "h100-sxm-80gb", "--model", str(model)]
    assert cli.main([*build, "--out", str(table)]) == 0
    rows = [
        {"timestamp": i, "input_length": n, "output_length": 4, "chat_id": i}
        for i, n in enumerate((500, 200_000))
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    options = ["simulate", "--trace", str(path), "--token-budget", "8192"]
    assert cli.main([*options, "--table", str(table), "--model", str(model)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert (
        "1 of 2 requests are longer, prompt and output together, than the 131,072 tokens" in printed
    )
    assert "the cost model of the table computes them all the same" in printed
    assert cli.main([*options, "--table", _TABLE]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "1 of 2 requests (50.0%) are rejected" in printed and "context of 131,072" in printed
    path.write_text(json.dumps(rows[1]))
    assert cli.main([*options, "--table", _TABLE]) == 2
    assert "none of the 1 requests can be served" in capsys.readouterr().err


_LONG_MODEL = {
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_attention_heads": 16,
    "num_hidden_layers": 8,
    "num_key_value_heads": 4,
    "vocab_size": 32_000,
    "max_position_embeddings": 1_000_000,
}


@pytest.mark.parametrize(("factor", "refused"), [(1e3, True), (1e-3, True), (3.0, False)])
def test_times_of_another_unit_are_refused(factor: float, refused: bool) -> None:
    """No engine is a thousand times slower or faster; one that is three times slower is shown."""
    found = [Quantity("TPOT p50, ms", 7.0, 7.0 * factor)]
    if not refused:
        check_unit(found)
        return
    with pytest.raises(InputError, match="name the unit"):
        check_unit(found)
