"""Plays the hard task in the tree that ``benchmarks.paired`` starts it for, one turn for a line.

It imports nothing but ``jaxserve``, and of it what all revisions have that are compared.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp

import jaxserve
from jaxserve.seeds import episode_keys

TASK = "adversarial_multitenant"
WINDOWS = 60
"""Windows of a turn, of every environment."""


def main(arguments: Sequence[str]) -> None:
    """Prints how many windows a turn has once one is compiled and played, then for each line that
    it reads the seconds of a turn, by the clock and of the processor.

    Args:
      arguments: folder that ``jaxserve`` must come from, and number of environments.

    Raises:
      RuntimeError: it comes from elsewhere.
    """
    tree, batch = Path(arguments[0]), int(arguments[1])
    found = Path(jaxserve.__file__ or "").resolve()
    if not found.is_relative_to(tree.resolve()):
        raise RuntimeError(f"jaxserve is that of {found}, not of {tree}")
    env = jaxserve.make(TASK)
    state, _ = jax.jit(jax.vmap(env.reset))(episode_keys(batch, "train"))
    action = jaxserve.make_action(batch_cap=64)
    actions = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (batch,)), action)

    @jax.jit
    def turn(state, actions):
        def one(state, _):
            state, timestep = jax.vmap(env.step)(state, actions)
            return state, jnp.mean(timestep.reward)

        return jax.lax.scan(one, state, None, length=WINDOWS)

    jax.block_until_ready(turn(state, actions))
    print(batch * WINDOWS, flush=True)
    for _ in sys.stdin:
        start, used = time.perf_counter(), time.process_time()
        jax.block_until_ready(turn(state, actions))
        print(time.perf_counter() - start, time.process_time() - used, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
