"""Time of an all-reduce, by the three algorithms that serving engines choose from by size.

Small messages: every GPU reads all others' at once (one-shot). Larger ones: each GPU reduces a
share and the shares are gathered (two-shot). Largest: the communication library's ring.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class AllReduce:
    """Constants of one kind of link; seconds and bytes."""

    one_shot_s: float
    """latency where every GPU reads all others'."""
    one_shot_bytes_per_s: float
    """rate at which one GPU reads from all others together."""
    two_shot_s: float
    """latency of reducing shares and gathering them."""
    two_shot_bytes_per_s: float
    """rate of its traffic, 2 (n - 1) / n of the message."""
    ring_s: float
    """latency of the communication library."""
    ring_bytes_per_s: float
    """rate of its traffic, the same share."""
    largest_custom_bytes: float
    """largest message that the engine reduces itself."""

    def lines(self, gpus: int, bytes_per_token: float) -> list[tuple[float, float, float]]:
        """Largest number of tokens, seconds and seconds per token of each algorithm, by size.

        Args:
          gpus: GPUs that share the message, at least 2.
          bytes_per_token: its size for each token of an iteration.
        """
        traffic = 2 * (gpus - 1) / gpus * bytes_per_token
        one = (gpus - 1) * bytes_per_token / self.one_shot_bytes_per_s
        two = traffic / self.two_shot_bytes_per_s
        custom = self.largest_custom_bytes / bytes_per_token
        ring = (float("inf"), self.ring_s, traffic / self.ring_bytes_per_s)
        if one <= two:  # two GPUs exchange nothing but the message itself
            return [(custom, self.one_shot_s, one), ring]
        crossing = (self.two_shot_s - self.one_shot_s) / (one - two)
        small = (min(max(crossing, 0.0), custom), self.one_shot_s, one)
        return [small, (custom, self.two_shot_s, two), ring]

    def seconds(self, gpus: int, message_bytes: float) -> float:
        """Seconds of one all-reduce of ``message_bytes`` over ``gpus`` GPUs; 0 on one."""
        if gpus < 2:
            return 0.0
        for largest, fixed_s, per_byte_s in self.lines(gpus, 1.0):
            if message_bytes <= largest:
                return fixed_s + per_byte_s * message_bytes
        raise AssertionError("the last line has no limit")
