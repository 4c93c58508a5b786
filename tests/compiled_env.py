"""Reset and step of the environment, compiled once for the tests of all tasks.

The environment is an argument: ``jax.jit(env.step)`` would compile its numbers into a program of
its own.
"""

from __future__ import annotations

import jax

from jaxserve.env import ServeEnv

reset = jax.jit(ServeEnv.reset)
step = jax.jit(ServeEnv.step)
