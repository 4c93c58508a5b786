"""Blocks of prompts: names that say which prompts begin alike."""

import numpy as np
import pytest

from jaxserve.sim.traffic.prompt_blocks import from_ids


def blocks(ids, lengths, usual=4):
    """Blocks of prompts of these lengths."""
    found = from_ids(ids, np.array(lengths), usual)
    assert found is not None
    return found


def test_names_stand_for_all_that_is_before_them():
    """The same id behind another beginning is another block."""
    found = blocks([[1, 2], [3, 2], [1, 2]], [8, 8, 8])
    assert found.of(0).tolist() == found.of(2).tolist()
    assert not set(found.of(0)) & set(found.of(1))
    assert found.repeated_share(np.array([8, 8, 8], np.int32)) == pytest.approx(1 / 3)


def test_the_last_block_counts_what_the_prompt_fills():
    """A prompt that ends inside a block has fewer tokens there; ids beyond its end are dropped."""
    found = blocks([[1, 2], [1, 2, 9, 9], [1, 2, 3]], [6, 6, 12])
    assert found.starts.tolist() == [0, 2, 4, 7]
    lengths = np.array([6, 6, 12], np.int32)
    assert found.block_tokens(lengths).tolist() == [4, 2, 4, 2, 4, 4, 4]


@pytest.mark.parametrize("tokens", [16, 64, 512, 4096])
@pytest.mark.parametrize("whole", [True, False])
def test_the_size_of_blocks_follows_from_their_number(tokens, whole):
    """Traces of other makers have other blocks, and leave out the last one or not."""
    lengths = np.random.default_rng(0).integers(1, 50_000, 200)
    counts = lengths // tokens if whole else -(-lengths // tokens)
    assert blocks([list(range(n)) for n in counts], lengths, 512).tokens == tokens


def test_only_some_prompts_can_be_chosen():
    """Failed requests leave with their blocks."""
    found = blocks([[1, 2], [3], [1, 4]], [8, 4, 8]).chosen(np.array([True, False, True]))
    assert found.starts.tolist() == [0, 2, 4]
    assert found.of(0)[0] == found.of(1)[0]


def test_without_ids_there_are_no_blocks():
    """Traces whose rows have none are like those of other formats."""
    assert from_ids([[], []], np.array([4, 4]), 512) is None
