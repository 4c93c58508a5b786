"""KV blocks of one GPU, with and without prefix caching."""

from __future__ import annotations

from collections import OrderedDict


class BlockPool:
    """Counts the KV blocks in use. A sequence that gives its blocks back loses its KV."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.used = 0

    @property
    def free(self) -> int:
        """Blocks nobody holds; negative after the capacity was lowered below what is in use."""
        return self.capacity - self.used

    def allocate(self, blocks: int) -> None:
        """Takes ``blocks``, which must not exceed ``free``."""
        self.used += blocks

    def reuse(self, owner: int) -> int:
        """Takes the free blocks that still hold KV of sequence ``owner``; returns how many."""
        return 0

    def release(self, blocks: int, full_blocks: int = 0) -> None:
        """Gives back ``blocks`` whose content nobody will ask for, ``full_blocks`` of them full."""
        self.used -= blocks

    def evict(self, owner: int, blocks: int, full_blocks: int) -> None:
        """Gives back the ``blocks`` of sequence ``owner``, which is preempted."""
        self.release(blocks, full_blocks)

    def resize(self, capacity: int) -> None:
        """Changes the capacity; whoever holds blocks keeps them."""
        self.capacity = capacity

    def clear(self) -> None:
        """Empties the pool: the process that held it is gone."""
        self.used = 0


class CachingBlockPool(BlockPool):
    """Free blocks are reused in an order, and until then their content can be found again.

    This is vLLM's automatic prefix cache for distinct prompts: the only prefix that ever matches
    is a preempted sequence's own. Blocks that are not full cannot be found and are reused next;
    full ones wait behind those that were freed before them. A sequence gives its last blocks back
    first, so what is left of it when others have taken blocks is always a prefix. The free blocks
    therefore form a queue of segments, each the remaining prefix of one sequence or blocks that
    nobody will ask for.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._segments: OrderedDict[int, int] = OrderedDict()
        self._anonymous = 0
        self._forget()

    def allocate(self, blocks: int) -> None:
        super().allocate(blocks)
        while blocks > 0:
            owner, available = next(iter(self._segments.items()))
            taken = min(blocks, available)
            blocks -= taken
            if taken == available:
                del self._segments[owner]
            else:
                self._segments[owner] = available - taken

    def reuse(self, owner: int) -> int:
        cached = self._segments.pop(owner, 0)
        self.used += cached
        return cached

    def release(self, blocks: int, full_blocks: int = 0) -> None:
        self._enqueue(self._label(), blocks, full_blocks)

    def evict(self, owner: int, blocks: int, full_blocks: int) -> None:
        self._enqueue(owner, blocks, full_blocks)

    def resize(self, capacity: int) -> None:
        super().resize(capacity)
        self._forget()

    def clear(self) -> None:
        super().clear()
        self._forget()

    def _label(self) -> int:
        """Key of a segment that nobody will ask for; request ids are never negative."""
        self._anonymous -= 1
        return self._anonymous

    def _forget(self) -> None:
        self._segments.clear()
        if self.free > 0:
            self._segments[self._label()] = self.free

    def _enqueue(self, owner: int, blocks: int, full_blocks: int) -> None:
        for label, count, at_the_end in (
            (self._label(), blocks - full_blocks, False),
            (owner, full_blocks, True),
        ):
            queued = max(self.free, 0)
            self.used -= count
            # Blocks beyond a lowered capacity are gone.
            kept = max(self.free, 0) - queued
            if kept > 0:
                self._segments[label] = kept
                self._segments.move_to_end(label, last=at_the_end)
