"""Numbers from files to NumPy and on to the device."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pytest

from jaxserve.arrays.convert import numpy_of, on_device


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([1.5, 2.5]), [1.5, 2.5]),
        (pa.array([3, 4], pa.int64()), [3, 4]),
        (pa.chunked_array([[1.0], [2.0, None]]), [1.0, 2.0, np.nan]),
        (pa.chunked_array([], pa.float64()), []),
        (pa.array([1.0, 2.0, 3.0]).slice(1), [2.0, 3.0]),
    ],
)
def test_values(column: Any, expected: list[float]) -> None:
    """Also of chunks, slices and columns without rows."""
    np.testing.assert_array_equal(numpy_of(column), expected)


@pytest.mark.parametrize("values", [True, 3, 2.5, [1.0, 7.9], np.arange(3)])
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.bool_])
def test_the_same_as_from_jax(values: Any, dtype: Any) -> None:
    """To the bit, and not weakly typed."""
    found, expected = on_device(values, dtype), jnp.asarray(values, dtype)
    np.testing.assert_array_equal(found, expected)
    assert found.aval == expected.aval


def test_nobody_else_holds_its_memory() -> None:
    """What becomes of the NumPy array afterwards does not show."""
    for length in (1, 4, 1000, 4096):
        source = np.zeros(length, np.float32)
        found = on_device(source)
        source[:] = 7.0
        np.testing.assert_array_equal(found, np.zeros(length))


@pytest.mark.parametrize("task", ["bursty_workload", "azure_code", "trace_replay"])
def test_a_task_is_made_at_once(task: str) -> None:
    """Nothing is compiled for it, and what pyarrow would import beside stays away."""
    program = f"""
import sys, jax, jaxserve
compiled = []
jax.monitoring.register_event_duration_secs_listener(
    lambda name, seconds, **about: compiled.append(name) if "compile" in name else None
)
jaxserve.make({task!r})
print(compiled, {{"pandas", "flax"}} & sys.modules.keys())
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert found.stdout == "[] set()\n", found.stdout + found.stderr
