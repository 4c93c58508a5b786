"""Speed of the environment: windows per second, cost against batch size, compile time, one step.

Every figure is the median of several runs in this process; ratios compare figures of one run.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.interpolate import RegularGridInterpolator

import jaxserve
from jaxserve.runtime.devices import on_each, spread
from jaxserve.seeds import episode_keys
from jaxserve.sim.machine.cost_model import CostModel
from jaxserve.sim.machine.stack import Stack, serve
from jaxserve.sim.machine.tabulated import TabulatedTimer
from jaxserve.sim.reference.own_log import ServedBy, simulate
from jaxserve.sim.table.file import read_table_file
from jaxserve.sim.traffic.traces import Trace

RUNS = 5
WINDOWS = 20
GRID_SHAPE = (9, 5, 5, 3, 8)
LOOKED_UP = ("ttft_p50_ms", "ttft_p99_ms", "tpot_ms", "tps", "gpu_mem_gb")


def median_s(run: Callable[[], Any], runs: int = RUNS) -> float:
    """Median seconds of ``run`` after a warm-up call."""
    run()
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def batched_windows_per_s(task: str, batch: int, devices: int) -> tuple[float, float]:
    """Windows per second of ``env.step`` under vmap and scan, and seconds to compile.

    Args:
      task: name of the task.
      batch: environments, divided evenly among devices.
      devices: number of devices.
    """
    env = jaxserve.make(task)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:devices]), tuple(spread()))
    place = jax.sharding.NamedSharding(mesh, spread())
    state, _ = jax.device_put(jax.jit(jax.vmap(env.reset))(episode_keys(batch, "train")), place)
    action = jaxserve.make_action(batch_cap=64)
    actions = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (batch,)), action)
    actions = jax.device_put(actions, place)

    def windows(state, actions):
        def one(state, _):
            state, timestep = jax.vmap(env.step)(state, actions)
            return state, jnp.mean(timestep.reward)

        state, rewards = jax.lax.scan(one, state, None, length=WINDOWS)
        return state, rewards[None]

    run = on_each(mesh, windows, spread(), spread(), out=spread())
    start = time.perf_counter()
    compiled = jax.jit(run).lower(state, actions).compile()
    compile_s = time.perf_counter() - start
    seconds = median_s(lambda: jax.block_until_ready(compiled(state, actions)))
    return batch * WINDOWS / seconds, compile_s


def single_step_s(task: str) -> float:
    """Seconds of one un-batched, jitted step called from Python."""
    env = jaxserve.make(task)
    step = jax.jit(env.step)
    state, _ = jax.jit(env.reset)(episode_keys(1)[0])
    action = jaxserve.make_action(batch_cap=64)
    count = 200

    def run():
        current = state
        for _ in range(count):
            current, timestep = step(current, action)
        jax.block_until_ready(timestep.reward)

    return median_s(run) / count


def scipy_steps_per_s(table: str) -> float:
    """Steps per second of a simulator without dynamics: five SciPy look-ups of one point each."""
    axes = [np.arange(size, dtype=float) for size in GRID_SHAPE]
    columns = read_table_file(table).columns
    interpolators = [RegularGridInterpolator(axes, columns[name]) for name in LOOKED_UP]
    point = np.array([[3.4, 1.2, 1.0, 0.0, 3.0]])
    count = 200

    def run():
        for _ in range(count):
            for interpolator in interpolators:
                interpolator(point)

    return count / median_s(run)


def reference_requests_per_s(requests: int, duration_s: float) -> float:
    """Requests per second that the reference simulator serves on one core: Poisson arrivals with
    lognormal lengths of about 1,000 and 200 tokens, on eight H100 with Llama-3.1-8B."""
    rng = np.random.default_rng(0)
    arrival_s = np.sort(rng.uniform(0.0, duration_s, requests))
    lengths = [np.rint(rng.lognormal(np.log(mean), 0.8, requests)) for mean in (1000.0, 200.0)]
    prompt, output = (np.clip(each, 1, 16_000).astype(np.int32) for each in lengths)
    trace = Trace(arrival_s - arrival_s[0], prompt, output)
    timer = TabulatedTimer(CostModel.of(*serve("h100-sxm-80gb", "llama-3.1-8b", Stack())))
    by = ServedBy(kv_tokens=400_000, gpus=8)
    return requests / median_s(lambda: simulate(trace, timer, by))


def gymnax_steps_per_s(batch: int) -> float | None:
    """Steps per second of gymnax CartPole, the ceiling; None without gymnax."""
    try:
        import gymnax
    except ImportError:
        return None
    env, params = gymnax.make("CartPole-v1")
    keys = jax.random.split(jax.random.key(0), batch)
    _, state = jax.jit(jax.vmap(env.reset, in_axes=(0, None)))(keys, params)
    actions = jnp.zeros(batch, jnp.int32)

    @jax.jit
    def run(state):
        def one(state, _):
            out = jax.vmap(env.step, in_axes=(0, 0, 0, None))(keys, state, actions, params)
            return out[1], jnp.mean(out[2])

        return jax.lax.scan(one, state, None, length=WINDOWS)

    return batch * WINDOWS / median_s(lambda: jax.block_until_ready(run(state)))


def state_bytes(task: str) -> int:
    """Bytes of one environment's state."""
    state, _ = jaxserve.make(task).reset(episode_keys(1)[0])

    def size(leaf: jax.Array) -> int:
        is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return (jax.random.key_data(leaf) if is_key else leaf).nbytes

    return sum(map(size, jax.tree.leaves(state)))
