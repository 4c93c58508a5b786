"""Routings: each chooses which of the engines that have a place gets a request.

Prefix affinity is production-stack's: the share of the prompt that an engine has seen, less a part
of its relative load. The gateway does not see an engine's cache; it remembers what it sent where,
in chunks of the prompt's JSON, each known by the hash of everything up to its end.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import orjson

from jaxserve.gateway.settings import RoutingName

if TYPE_CHECKING:
    from jaxserve.gateway.engines.admission import Replica

LOAD_WEIGHT = 0.5
"""Weight of an engine's relative load against the share of the prompt that it has seen; also that
of the reference simulator (``jaxserve.sim.reference.routing``)."""
_CHUNK_BYTES = 256
_MOST_BYTES = 1024 * _CHUNK_BYTES
"""Length of a prompt's beginning that is looked at: 256 KiB."""
_REMEMBERED = 100_000
"""Chunks that are remembered, the last used ones: 25 MiB of prompts."""
_PROMPT = ("model", "tools", "system", "instructions", "messages", "input", "contents", "prompt")
"""Fields of the prompt in all dialects, in the order in which templates write them."""


class EngineRouting(ABC):
    """Chooses the engine of a request."""

    def prefix(self, fields: Mapping[str, Any]) -> Sequence[bytes]:
        """The part of a request's body that ``choose`` needs: nothing, for most routings."""
        del fields
        return ()

    @abstractmethod
    def choose(self, able: Sequence[Replica], prefix: Sequence[bytes]) -> Replica:
        """The engine that gets the request, which a routing with a memory notes.

        Args:
          able: engines that have a place, at least one.
          prefix: as ``prefix`` returned it.
        """


class LeastLoaded(EngineRouting):
    """Orders engines by load, among equals by the number of the last request."""

    def choose(self, able: Sequence[Replica], prefix: Sequence[bytes]) -> Replica:
        """See ``EngineRouting``."""
        del prefix
        return min(able, key=lambda one: (one.in_flight, one.last_used))


class RoundRobin(EngineRouting):
    """Gives engines requests in turn, whatever their load."""

    def choose(self, able: Sequence[Replica], prefix: Sequence[bytes]) -> Replica:
        """See ``EngineRouting``."""
        del prefix
        return min(able, key=lambda one: one.last_used)


class PrefixAffinity(EngineRouting):
    """Weighs what engines have seen of a prompt against their load."""

    def __init__(self) -> None:
        """Begins with nothing seen."""
        self._seen: OrderedDict[bytes, set[str]] = OrderedDict()
        """names of the engines that got a chunk, the chunk used last at the end."""

    def prefix(self, fields: Mapping[str, Any]) -> Sequence[bytes]:
        """Hashes of the prompt's chunks, each of all text up to its end."""
        text = bytearray()
        for name in _PROMPT:
            if name in fields and len(text) < _MOST_BYTES:
                text += orjson.dumps(fields[name])
        found, so_far = [], hashlib.blake2b(digest_size=12)
        for start in range(0, min(len(text), _MOST_BYTES), _CHUNK_BYTES):
            so_far.update(text[start : start + _CHUNK_BYTES])
            found.append(so_far.digest())
        return found

    def choose(self, able: Sequence[Replica], prefix: Sequence[bytes]) -> Replica:
        """See ``EngineRouting``."""
        most = max(one.in_flight for one in able) or 1

        def rank(one: Replica) -> tuple[float, int]:
            score = self._matched(one.spec.name, prefix) - LOAD_WEIGHT * one.in_flight / most
            return -score, one.last_used

        chosen = min(able, key=rank)
        self._note(chosen.spec.name, prefix)
        return chosen

    def _note(self, name: str, prefix: Sequence[bytes]) -> None:
        """Notes that an engine has seen a prompt, and forgets the chunks used longest ago."""
        for chunk in prefix:
            self._seen.setdefault(chunk, set()).add(name)
            self._seen.move_to_end(chunk)
        while len(self._seen) > _REMEMBERED:
            self._seen.popitem(last=False)

    def _matched(self, name: str, prefix: Sequence[bytes]) -> float:
        """Share of a prompt's chunks that an engine has seen, from the first one on."""
        matched = 0
        for chunk in prefix:
            if name not in self._seen.get(chunk, ()):
                break
            matched += 1
        return matched / max(len(prefix), 1)


ROUTINGS: Mapping[RoutingName, Callable[[], EngineRouting]] = {
    "least_loaded": LeastLoaded,
    "round_robin": RoundRobin,
    "prefix_affinity": PrefixAffinity,
}
"""Makes of every routing, with nothing remembered."""
