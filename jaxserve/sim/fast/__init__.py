"""The fast simulator: control windows of scheduler ticks on arrays, for ``jit`` and ``vmap``."""
