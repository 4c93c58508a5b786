"""Settings every test shares: compiled programs outlive a run, and examples are reproducible."""

import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# JAX reads these when it is first imported, and the commands that tests start inherit them.
os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR", str(Path(__file__).resolve().parent.parent / ".jax_cache")
)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

# A background job of a shell ignores Ctrl-C, and so would the commands that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The first example of a jitted function pays for compilation, so a deadline would time XLA.
settings.register_profile(
    "jaxserve",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("jaxserve")


@pytest.fixture(scope="module", autouse=True)
def _programs_of_one_file_only():
    """Drops the programs a file compiled when its last test is done.

    Each holds several memory maps, of which Linux grants a process 65,530; past them XLA ends
    the process with a segmentation fault. What a later file needs is in the cache on disk.
    """
    import jax

    yield
    jax.clear_caches()
