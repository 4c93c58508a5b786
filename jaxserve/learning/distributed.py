"""A run by several processes, on one host or on many: their meeting and their steps in common.

Every process runs the same program. Whatever a process reads from its own clock, files or keyboard
is exchanged before it counts: a process that computes something else leaves the others waiting.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import jax
import numpy as np
from jax.experimental import multihost_utils

from jaxserve import checks
from jaxserve.errors import InputError
from jaxserve.learning.rendezvous import meet

_MAX_PROCESSES = 65_536


def join_processes(coordinator: str | None, processes: int | None, process: int | None) -> None:
    """Makes this process one of ``processes``; alone if nothing is given.

    Must come before the first computation. Returns when all processes have.

    Args:
      coordinator: HOST:PORT where process 0 listens and all others find it.
      process: number of this process, from 0.

    Raises:
      InputError: only some of the three, one out of range, processes that do not meet or that have
        different numbers of devices.
    """
    if coordinator is None or processes is None or process is None:
        if (coordinator, processes, process) != (None, None, None):
            raise InputError("--coordinator, --processes and --process go together; name all three")
        return
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        checks.refuse("--coordinator", coordinator, "HOST:PORT")
    checks.whole("--processes", processes, 1, _MAX_PROCESSES)
    checks.whole("--process", process, 0, processes - 1)
    meet(coordinator, processes, process)
    jax.distributed.initialize(coordinator, processes, process)
    counts = Counter(device.process_index for device in jax.devices())
    if len(set(counts.values())) > 1:
        raise InputError(
            f"the processes have {', '.join(str(counts[i]) for i in range(processes))} devices; "
            "all must have the same number"
        )


def is_first() -> bool:
    """Whether this is the process that prints and writes files: number 0, or the only one."""
    return jax.process_index() == 0


def exchanged(*numbers: float) -> np.ndarray:
    """float32[processes, len(numbers)]: the numbers of every process."""
    return multihost_utils.process_allgather(np.array(numbers, np.float32))


@contextmanager
def together() -> Iterator[None]:
    """Ends all processes where one of them raises an InputError: after the block, all do.

    Raises:
      InputError: this process's own, or one that names a process with its own.
    """
    error = None
    try:
        yield
    except InputError as own:
        error = own
    failed = np.flatnonzero(exchanged(error is not None))
    if error is not None:
        raise error
    if len(failed):
        raise InputError(f"process {failed[0]} cannot train, and says why")
