"""KV blocks of one GPU, with and without prefix caching."""

from __future__ import annotations

import itertools
from collections import OrderedDict

from jaxserve.sim.reference.request import Request


class BlockPool:
    """Counts the KV blocks in use. A sequence that gives its blocks back loses its KV."""

    def __init__(self, capacity: int, block_tokens: int) -> None:
        self.capacity = capacity
        self.block_tokens = block_tokens
        self.used = 0

    @property
    def free(self) -> int:
        """Blocks that no sequence holds; negative where the capacity is below the use."""
        return self.capacity - self.used

    def allocate(self, blocks: int) -> None:
        """Takes ``blocks``, which must not exceed ``free``."""
        self.used += blocks

    def find(self, request: Request, most: int) -> tuple[int, int]:
        """Number of the first ``most`` blocks of ``request`` that are cached, and how many of them
        no sequence holds."""
        return 0, 0

    def reuse(self, request: Request, blocks: int) -> None:
        """Takes the first ``blocks`` of ``request``, which ``find`` has found."""

    def publish(self, request: Request, full_blocks: int) -> None:
        """Lets others find the first ``full_blocks`` that ``request`` holds, as far as their
        content can be that of others."""

    def release(self, request: Request, blocks: int, full_blocks: int) -> None:
        """Gives back all ``blocks`` of ``request``, the first ``full_blocks`` of them full."""
        self.used -= blocks

    def resize(self, capacity: int) -> None:
        """Changes the capacity; sequences that hold blocks keep them."""
        self.capacity = capacity

    def clear(self) -> None:
        """Empties the pool: the process that held it is gone."""
        self.used = 0


class CachingBlockPool(BlockPool):
    """Free blocks are reused in an order, and until then their content can be found again.

    This is vLLM's automatic prefix cache (v1, ``BlockPool`` and ``KVCacheManager``): a full block
    has a name that stands for its tokens and all before it. Whoever has a prompt with that name
    holds the block as well. When the last holder gives it back it waits behind all other free
    blocks; a sequence gives its last blocks back first, so what is left of it when others have
    taken blocks is always a prefix. Blocks that are not full have no name and are taken first.
    Two sequences that compute the same tokens at a time have a copy each, as in vLLM.
    """

    def __init__(self, capacity: int, block_tokens: int) -> None:
        super().__init__(capacity, block_tokens)
        self.clear()

    def allocate(self, blocks: int) -> None:
        super().allocate(blocks)
        self._evict_to_fit()

    def find(self, request: Request, most: int) -> tuple[int, int]:
        found = unheld = 0
        for name in request.block_names(self.block_tokens, most):
            block = self._found.get(name)
            if block is None:
                break
            found += 1
            unheld += self._holders[block] == 0
        return found, unheld

    def reuse(self, request: Request, blocks: int) -> None:
        held = self._held.setdefault(request.id, [])
        for name in request.block_names(self.block_tokens, blocks):
            block = self._found[name]
            if self._holders[block] == 0:
                del self._waiting[block]
                self.used += 1
            self._holders[block] += 1
            held.append(block)

    def publish(self, request: Request, full_blocks: int) -> None:
        self._name(request, min(full_blocks, request.shareable_blocks(self.block_tokens)))

    def release(self, request: Request, blocks: int, full_blocks: int) -> None:
        self._name(request, full_blocks)
        held = self._held.pop(request.id, [])
        self.used -= blocks - len(held)
        for place in reversed(range(len(held))):
            block = held[place]
            self._holders[block] -= 1
            if self._holders[block] == 0:
                self.used -= 1
                if place < full_blocks:
                    self._waiting[block] = None
                else:
                    self._drop(block)
        self._evict_to_fit()

    def resize(self, capacity: int) -> None:
        super().resize(capacity)
        self._evict_to_fit()

    def clear(self) -> None:
        super().clear()
        self._numbers = itertools.count()
        # Everything is kept in integers: so many objects would keep the garbage collector busy.
        self._names: dict[int, int] = {}
        """name of each named block, by its number."""
        self._holders: dict[int, int] = {}
        """sequences that hold each of them."""
        self._found: dict[int, int] = {}
        """the oldest block of each name."""
        self._copies: dict[int, list[int]] = {}
        """the younger ones, where there are any."""
        self._waiting: OrderedDict[int, None] = OrderedDict()
        """named blocks that no sequence holds, the next one to be taken first."""
        self._held: dict[int, list[int]] = {}
        """named blocks of each sequence, from its first token on."""

    def _name(self, request: Request, full_blocks: int) -> None:
        """Gives the first ``full_blocks`` of ``request`` their names."""
        held = self._held.setdefault(request.id, [])
        if full_blocks <= len(held):
            return
        for name in request.block_names(self.block_tokens, full_blocks)[len(held) :]:
            block = next(self._numbers)
            self._names[block] = name
            self._holders[block] = 1
            if self._found.setdefault(name, block) != block:
                self._copies.setdefault(name, []).append(block)
            held.append(block)

    def _evict_to_fit(self) -> None:
        """Forgets the blocks that have waited longest, as many as others have taken."""
        for _ in range(len(self._waiting) - max(self.free, 0)):
            self._drop(self._waiting.popitem(last=False)[0])

    def _drop(self, block: int) -> None:
        """Forgets a block that no sequence holds."""
        name = self._names.pop(block)
        del self._holders[block]
        copies = self._copies.get(name)
        if copies is None:
            del self._found[name]
            return
        if self._found[name] == block:
            self._found[name] = copies.pop(0)
        else:
            copies.remove(block)
        if not copies:
            del self._copies[name]
