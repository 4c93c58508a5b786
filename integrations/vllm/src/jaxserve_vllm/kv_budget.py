"""A budget on the KV cache."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class KvBudget:
    """Withholds blocks of a vLLM block pool: the pool reports fewer free blocks than it has.

    vLLM asks the pool before it admits or extends a request. Over the budget vLLM acts as with a
    smaller cache: it admits no request, and preempts if a running request must grow. No memory is
    freed, and cached prefixes in withheld blocks stay.
    """

    def __init__(self, pool: Any) -> None:
        self.total = pool.num_gpu_blocks - 1  # block 0 is a placeholder
        self.withheld = 0
        self._truly_free = pool.get_num_free_blocks
        hand_out = pool.get_new_blocks

        def get_new_blocks(count: int) -> Any:
            # vLLM has already decided to take these blocks, under an earlier budget.
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
        """Blocks in use; may exceed the budget for a while after the budget shrinks."""
        return self.total - self._truly_free()

    def usage(self) -> float:
        """Share of the budget in use, 0..1."""
        return min(1.0, self.used / self.blocks)

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """Context in which vLLM sees every block of the pool."""
        withheld, self.withheld = self.withheld, 0
        try:
            yield
        finally:
            self.withheld = withheld
