"""Numbers from files to NumPy, and from NumPy to the device, by the shortest way.

Making a task takes half a second less for it: a program that is started for one command notices.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, DTypeLike, NDArray


def numpy_of(column: pa.Array | pa.ChunkedArray) -> NDArray[Any]:
    """A column of numbers; nulls become NaN.

    Without nulls it does not go through pyarrow's own conversion, which imports pandas where that
    is installed.
    """
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if whole.null_count:
        return whole.to_numpy(zero_copy_only=False)
    return np.from_dlpack(whole)


def on_device(values: ArrayLike, dtype: DTypeLike = np.float32) -> jax.Array:
    """``jnp.asarray(values, dtype)``, which by itself compiles a program for every shape and type
    that it converts.

    The array is a copy of its own: JAX may share the memory of the NumPy array that it is given.
    """
    return jax.device_put(np.array(values, dtype))
