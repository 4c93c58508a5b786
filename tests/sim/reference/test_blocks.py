"""KV block pools."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxserve.sim.reference.blocks import BlockPool, CachingBlockPool
from jaxserve.sim.reference.request import Request

CAPACITY = 24
STEPS = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 12), st.booleans()), max_size=60)


def sequence(id, ids=(), prompt_tokens=None):
    """A request whose blocks of one token have the names ``ids``."""
    prompt = len(ids) if prompt_tokens is None else prompt_tokens
    return Request(id, 0.0, max(prompt, 1), 1, prefix_ids=np.array(ids, int), prefix_tokens=1)


def chain(branch, length):
    """Names of a prompt: four tokens that all begin with, then a branch's own."""
    return [*range(min(length, 4)), *range(100 * (branch + 1) + 4, 100 * (branch + 1) + length)]


class ListedBlocks:
    """The same cache with every block listed: [name or None, holders, number of its name], the free
    ones in order. Of several blocks of a name the one that was named first is found."""

    def __init__(self, capacity):
        self.blocks = [[None, 0, 0] for _ in range(capacity)]
        self.named = 0
        self.free = list(self.blocks)
        self.held = {}

    def find(self, names):
        found = []
        for name in names:
            copies = [block for block in self.blocks if block[0] == name]
            if not copies:
                break
            found.append(min(copies, key=lambda block: block[2]))
        return found

    def take(self, owner, names, blocks):
        found = self.find(names[:blocks])
        for block in found:
            if not block[1]:
                self.free = [one for one in self.free if one is not block]
            block[1] += 1
        fresh = [self.free.pop(0) for _ in range(blocks - len(found))]
        for block in fresh:
            block[:] = [None, 1, 0]
        self.held[owner] = found + fresh
        return len(found)

    def give_back(self, owner, names):
        owned = self.held.pop(owner)
        for block, name in zip(owned, names, strict=False):
            if block[0] is None:
                self.named += 1
                block[0], block[2] = name, self.named
        for block in reversed(owned):
            block[1] -= 1
            if not block[1] and block[0] is not None:
                self.free.append(block)
            elif not block[1]:
                self.free.insert(0, block)


@given(STEPS)
def test_cache_matches_a_cache_that_lists_every_block(steps):
    """Prompts find exactly the prefixes that eviction in order of release has left them."""
    pool, listed = CachingBlockPool(CAPACITY, 1), ListedBlocks(CAPACITY)
    held = {}
    for owner, blocks, keeps_the_last in steps:
        if owner in held:
            request, count, found = held.pop(owner)
            full = count if keeps_the_last else max(count - 1, found)
            pool.release(request, count, full)
            listed.give_back(owner, request.block_names(1, full))
        else:
            request = sequence(owner, chain(owner % 3, 6), prompt_tokens=max(blocks, 1))
            names = request.block_names(1, blocks)
            found, unheld = pool.find(request, blocks)
            if blocks - (found - unheld) <= pool.free:
                pool.reuse(request, found)
                pool.allocate(blocks - found)
                assert listed.take(owner, names, blocks) == found
                held[owner] = (request, blocks, found)
        assert pool.free == len(listed.free)
        assert pool.used == sum(block[1] > 0 for block in listed.blocks)


def test_blocks_that_are_not_full_are_taken_first():
    """A full block of a preempted sequence outlives everything that was free before it."""
    pool, first, other = CachingBlockPool(10, 16), sequence(1, prompt_tokens=99), sequence(2)
    pool.allocate(4)
    pool.release(first, 4, 3)
    pool.allocate(7)
    assert pool.find(first, 4) == (3, 3)
    pool.reuse(first, 3)
    pool.release(first, 3, 3)
    pool.release(other, 7, 0)
    pool.allocate(8)
    assert pool.find(first, 4) == (2, 2)


def test_a_running_sequence_shares_its_prompt():
    """What a running sequence holds costs another nothing, and outlives either of the two."""
    pool = CachingBlockPool(10, 1)
    first, second = sequence(1, range(6)), sequence(2, range(6))
    pool.allocate(6)
    assert pool.find(second, 6) == (0, 0)
    pool.publish(first, 6)
    assert pool.find(second, 5) == (5, 0)
    pool.reuse(second, 5)
    assert pool.used == 6
    pool.release(first, 6, 6)
    assert pool.used == 5
    pool.allocate(5)
    assert pool.find(first, 6) == (5, 0)


def test_a_block_without_content_is_not_found():
    """A preempted sequence forgets what it had published but not yet computed."""
    pool, first = CachingBlockPool(10, 1), sequence(1, range(6))
    pool.allocate(6)
    pool.publish(first, 6)
    pool.release(first, 6, 2)
    assert pool.find(sequence(2, range(6)), 6) == (2, 2)


@pytest.mark.parametrize(("block_tokens", "shareable"), [(1, 10), (4, 2), (16, 0)])
def test_names_tell_prompts_apart_from_the_first_block_that_differs(block_tokens, shareable):
    """Two prompts of 10 tokens share names up to the first block with other tokens."""
    one, other = (
        Request(i, 0.0, 10, 5, prefix_ids=np.array(ids), prefix_tokens=4)
        for i, ids in enumerate(([7, 8, 9], [7, 8, 3]))
    )
    assert one.shareable_blocks(block_tokens) == shareable
    names = [request.block_names(block_tokens, shareable + 2) for request in (one, other)]
    alike = [a == b for a, b in zip(*names, strict=True)]
    assert alike == [True] * (8 // block_tokens) + [False] * (shareable + 2 - 8 // block_tokens)
    assert len({*names[0], *names[1]}) == 2 * (shareable + 2) - sum(alike)


def test_without_caching_nothing_is_found_again():
    """Preemption by recompute loses all KV."""
    pool, request = BlockPool(10, 1), sequence(1, range(4))
    pool.allocate(4)
    pool.release(request, 4, 4)
    assert pool.find(request, 4) == (0, 0)


@pytest.mark.parametrize("kind", [BlockPool, CachingBlockPool])
def test_a_lowered_capacity_shows_as_negative_free_blocks(kind):
    """Holders keep their blocks when the pool shrinks, and nothing is free until they return."""
    pool, request = kind(10, 16), sequence(1)
    pool.allocate(8)
    pool.resize(5)
    assert pool.free == -3
    pool.release(request, 8, 8)
    assert (pool.used, pool.free) == (0, 5)
    assert pool.find(request, 8)[0] == (5 if kind is CachingBlockPool else 0)
    pool.allocate(5)
    pool.resize(20)
    pool.allocate(15)
    assert pool.free == 0
    pool.clear()
    assert pool.free == 20
    pool.allocate(20)
