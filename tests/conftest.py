"""Settings every test shares: compiled programs outlive a run, and examples are reproducible."""

import os
from pathlib import Path

from hypothesis import HealthCheck, settings

# JAX reads these when it is first imported, and the commands that tests start inherit them.
os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR", str(Path(__file__).resolve().parent.parent / ".jax_cache")
)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

# The first example of a jitted function pays for compilation, so a deadline would time XLA.
settings.register_profile(
    "jaxserve",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("jaxserve")
