"""The compiled deployment is the reference simulator, request by request."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxserve.sim.machine import tabulated
from jaxserve.sim.machine.cost_model import CostModel
from jaxserve.sim.machine.stack import Stack, serve
from jaxserve.sim.machine.tabulated import TabulatedTimer
from jaxserve.sim.reference import compiled, compiled_columns, own_log
from jaxserve.sim.reference.own_log import ServedBy, simulate
from jaxserve.sim.traffic.traces import Trace

_SERVED = {
    "constants": serve("l40s-48gb", "llama-3.1-8b", None),
    "vllm": serve("h100-sxm-80gb", "llama-3.1-8b", Stack()),
    "trtllm": serve("h100-sxm-80gb", "deepseek-v3", Stack("trtllm", attention_data_parallel=True)),
}
TIMERS = {name: TabulatedTimer(CostModel.of(*gpu), 0, 1.1) for name, gpu in _SERVED.items()}


def _in_python(trace: Trace, timer: TabulatedTimer, by: ServedBy) -> np.ndarray:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(own_log, "_COMPILED", len(trace))
        return simulate(trace, timer, by)


def _trace(seed: int, count: int, rate: float, longest: int) -> Trace:
    """Bursts, some requests of one time, prompts and outputs of every length down to one token."""
    rng = np.random.default_rng(seed)
    gaps_s = rng.gamma(0.5, 2.0 / rate, count) * (rng.random(count) < 0.8)
    arrival_s = np.cumsum(gaps_s)
    lengths = np.exp(rng.uniform(0.0, np.log(longest), (2, count))).astype(np.int32)
    return Trace(arrival_s - arrival_s[0], lengths[0], np.maximum(lengths[1] // 8, 1))


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(sorted(TIMERS)),
    seed=st.integers(0, 10_000),
    count=st.integers(1, 150),
    rate=st.floats(0.5, 50.0),
    longest=st.sampled_from([200, 3000]),
    gpus=st.integers(1, 4),
    batch_cap=st.sampled_from([1, 4, 16, 256]),
    token_budget=st.sampled_from([8, 256, 2048]),
    kv_tokens=st.sampled_from([300, 2000, 6000, 100_000]),
    concurrency=st.sampled_from([None, None, 1, 7, 64]),
    context_tokens=st.sampled_from([None, 1500]),
)
def test_the_log_is_that_of_the_simulator(
    name: str, seed: int, count: int, rate: float, longest: int, **served: int | None
) -> None:
    """Of light and heavy traffic, with preemptions and requests that fit no engine."""
    trace, timer = _trace(seed, count, rate, longest), TIMERS[name]
    by = ServedBy(frontend_s=0.02, **served)  # type: ignore[arg-type]
    expected, found = _in_python(trace, timer, by), own_log._compiled(trace, timer, by)
    for column in expected.dtype.names or ():
        np.testing.assert_allclose(
            found[column], expected[column], rtol=1e-9, atol=1e-9, err_msg=column
        )


def test_pressure_on_memory_preempts_in_both() -> None:
    """The comparison above is of no use unless sequences are preempted."""
    trace = _trace(1, 400, 20.0, 3000)
    by = ServedBy(kv_tokens=6000, batch_cap=64, token_budget=512)
    log = simulate(trace, TIMERS["constants"], by)
    assert log["preemptions"].sum() > 10
    assert (log["preemptions"] == _in_python(trace, TIMERS["constants"], by)["preemptions"]).all()


def test_what_compiled_code_lacks_is_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefix caches whose sequences were preempted, and deployments that are split."""
    trace, timer = _trace(1, 400, 20.0, 3000), TIMERS["constants"]
    called: list[int] = []
    plain = compiled.serve
    monkeypatch.setattr(
        compiled, "serve", lambda *args, **options: called.append(1) or plain(*args, **options)
    )
    simulate(trace, timer, ServedBy(kv_tokens=100_000, prefill_gpus=1, gpus=2))
    assert not called
    caching = ServedBy(kv_tokens=6000, batch_cap=64, token_budget=512, prefix_caching=True)
    cached = simulate(trace, timer, caching)
    assert called and cached["preemptions"].any()
    assert (cached["finish_s"] == _in_python(trace, timer, caching)["finish_s"]).all()


def test_code_compiled_with_other_equations_is_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numba itself looks at the file of a function alone, not at those of what it calls."""
    before = compiled_columns._folder()
    assert before is not None and before == compiled_columns._folder()
    other = tmp_path / "tabulated.py"
    other.write_text(Path(tabulated.__file__).read_text() + "# another equation\n")
    monkeypatch.setattr(tabulated, "__file__", str(other))
    after = compiled_columns._folder()
    assert after is not None and after != before
    monkeypatch.setattr(compiled_columns, "cache_folder", lambda: None)
    assert compiled_columns._folder() is None
