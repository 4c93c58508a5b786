"""KV block pools."""

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.sim.reference.blocks import BlockPool, CachingBlockPool

SEQUENCES = st.lists(
    st.tuples(st.integers(0, 7), st.integers(1, 12), st.booleans(), st.integers(0, 12)),
    max_size=60,
)


class ListedBlocks:
    """The same cache with every free block listed: (owner, position) or None, next one first."""

    def __init__(self, capacity: int) -> None:
        self.free: deque[tuple[int, int] | None] = deque([None] * capacity)

    def reuse(self, owner: int) -> int:
        cached = 0
        while (owner, cached) in self.free:
            self.free.remove((owner, cached))
            cached += 1
        return cached

    def allocate(self, blocks: int) -> None:
        for _ in range(blocks):
            self.free.popleft()

    def release(self, blocks: int, full_blocks: int) -> None:
        self.free.extendleft([None] * (blocks - full_blocks))
        self.free.extend([None] * full_blocks)

    def evict(self, owner: int, blocks: int, full_blocks: int) -> None:
        self.free.extendleft([None] * (blocks - full_blocks))
        self.free.extend((owner, position) for position in reversed(range(full_blocks)))


@given(SEQUENCES)
def test_cache_of_segments_matches_a_cache_of_single_blocks(steps):
    """A preempted sequence finds exactly the prefix that reuse has left it."""
    pool, listed = CachingBlockPool(40), ListedBlocks(40)
    held: dict[int, int] = {}
    left: dict[int, int] = {}
    for owner, blocks, finishes, full in steps:
        if owner in held:
            count = held.pop(owner)
            full = min(full, count)
            if finishes:
                pool.release(count, full)
                listed.release(count, full)
            else:
                left[owner] = full
                pool.evict(owner, count, full)
                listed.evict(owner, count, full)
        elif (blocks := max(blocks, left.pop(owner, 0))) <= pool.free:
            cached = pool.reuse(owner)
            assert cached == listed.reuse(owner)
            pool.allocate(blocks - cached)
            listed.allocate(blocks - cached)
            held[owner] = blocks
        assert pool.used == sum(held.values())
        assert pool.free == len(listed.free)


def test_blocks_that_are_not_full_are_reused_first():
    """A full block of a preempted sequence outlives everything that was free before it."""
    pool = CachingBlockPool(10)
    pool.allocate(4)
    pool.evict(1, 4, 3)
    pool.allocate(7)
    assert pool.reuse(1) == 3
    pool.evict(1, 3, 3)
    pool.release(7, 0)
    pool.allocate(8)
    assert pool.reuse(1) == 2


def test_without_caching_nothing_is_found_again():
    """Preemption by recompute loses all KV."""
    pool = BlockPool(10)
    pool.allocate(4)
    pool.evict(1, 4, 4)
    assert pool.reuse(1) == 0


@pytest.mark.parametrize("kind", [BlockPool, CachingBlockPool])
def test_a_lowered_capacity_shows_as_negative_free_blocks(kind):
    """Holders keep their blocks when the pool shrinks, and nothing is free until they return."""
    pool = kind(10)
    pool.allocate(8)
    pool.resize(5)
    assert pool.free == -3
    pool.evict(1, 8, 8)
    assert (pool.used, pool.free) == (0, 5)
    pool.allocate(5)
    pool.resize(20)
    pool.allocate(15)
    assert pool.free == 0
    pool.clear()
    assert pool.free == 20
    pool.allocate(20)
