"""Promises of the all-reduce."""

from hypothesis import given
from hypothesis import strategies as st

from jaxserve.sim.machine.collectives import AllReduce

LINK = AllReduce(4e-6, 260e9, 7e-6, 270e9, 22e-6, 330e9, 2**23)
sizes = st.floats(1, 1e10)
gpus = st.sampled_from([2, 4, 8])


@given(gpus, sizes, sizes)
def test_more_bytes_take_longer(count: int, one: float, other: float) -> None:
    """Time grows with the message, and the switch of algorithms takes nothing away."""
    small, large = sorted((one, other))
    assert LINK.seconds(count, small) <= LINK.seconds(count, large) * (1 + 1e-9)


@given(sizes)
def test_one_gpu_has_nothing_to_exchange(size: float) -> None:
    """A group of one pays nothing, a larger one at least its latency."""
    assert LINK.seconds(1, size) == 0
    assert LINK.seconds(8, size) >= LINK.one_shot_s
