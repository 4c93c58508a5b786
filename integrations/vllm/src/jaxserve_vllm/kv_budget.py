"""A KV cache that is used in part only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class KvBudget:
    """Withholds blocks of a vLLM block pool by letting it say that fewer are free than are.

    vLLM asks the pool before it admits a request or lets one grow. Over the budget it does what it
    does with a smaller cache: it admits nobody, and preempts when a running request must grow. No
    memory is freed, and cached prefixes in withheld blocks stay.
    """

    def __init__(self, pool: Any) -> None:
        self.total = pool.num_gpu_blocks - 1  # block 0 is a placeholder that is never handed out
        self.withheld = 0
        self._truly_free = pool.get_num_free_blocks
        hand_out = pool.get_new_blocks

        def get_new_blocks(count: int) -> Any:
            # What vLLM has decided to take is there, whatever the budget has become since.
            with self.lifted():
                return hand_out(count)

        pool.get_num_free_blocks = lambda: max(0, self._truly_free() - self.withheld)
        pool.get_new_blocks = get_new_blocks
        pool.get_usage = self.usage

    @property
    def blocks(self) -> int:
        """Blocks of the budget."""
        return self.total - self.withheld

    @blocks.setter
    def blocks(self, blocks: int) -> None:
        self.withheld = self.total - blocks

    @property
    def used(self) -> int:
        """Blocks in use; more than the budget for a while after it has shrunk."""
        return self.total - self._truly_free()

    def usage(self) -> float:
        """Share of the budget in use, 0..1."""
        return min(1.0, self.used / self.blocks)

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """The pool as vLLM made it, for what must see every block."""
        withheld, self.withheld = self.withheld, 0
        try:
            yield
        finally:
            self.withheld = withheld
