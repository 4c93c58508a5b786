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
    """The same cache with every free block listed: (owner, position) or None, oldest first."""

    def __init__(self, capacity: int) -> None:
        self.free = deque([None] * capacity)

    def admit(self, owner: int, blocks: int) -> int:
        cached = 0
        while cached < blocks and (owner, cached) in self.free:
            self.free.remove((owner, cached))
            cached += 1
        for _ in range(blocks - cached):
            self.free.popleft()
        return cached

    def evict(self, owner: int, blocks: int, full_blocks: int) -> None:
        for position in reversed(range(blocks)):
            self.free.append((owner, position) if position < full_blocks else None)

    def release(self, blocks: int) -> None:
        self.free.extend([None] * blocks)


@given(SEQUENCES)
def test_cache_of_segments_matches_a_cache_of_single_blocks(steps):
    """A preempted sequence finds exactly the prefix that oldest-first reuse has left it."""
    pool, listed = CachingBlockPool(40), ListedBlocks(40)
    held: dict[int, int] = {}
    left: dict[int, int] = {}
    for owner, blocks, finishes, full in steps:
        if owner in held:
            count = held.pop(owner)
            if finishes:
                pool.release(count)
                listed.release(count)
            else:
                left[owner] = min(full, count)
                pool.evict(owner, count, left[owner])
                listed.evict(owner, count, left[owner])
        elif (blocks := max(blocks, left.pop(owner, 0))) <= pool.free:
            assert pool.admit(owner, blocks) == listed.admit(owner, blocks)
            held[owner] = blocks
        assert pool.used == sum(held.values())
        assert pool.free == len(listed.free)


def test_without_caching_nothing_is_found_again():
    """Preemption by recompute loses all KV."""
    pool = BlockPool(10)
    assert pool.admit(1, 4) == 0
    pool.evict(1, 4, 4)
    assert pool.admit(1, 4) == 0


@pytest.mark.parametrize("kind", [BlockPool, CachingBlockPool])
def test_a_lowered_capacity_shows_as_negative_free_blocks(kind):
    """Holders keep their blocks when the pool shrinks, and nothing is free until they return."""
    pool = kind(10)
    pool.admit(1, 8)
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
