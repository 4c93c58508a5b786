"""A KV cache that is used in part."""

import pytest

from jaxserve_vllm.kv_budget import KvBudget


class Pool:
    """As vLLM's block pool: one block is a placeholder, and one cannot take what is not there."""

    def __init__(self, blocks: int) -> None:
        self.num_gpu_blocks = blocks + 1
        self.free = blocks

    def get_num_free_blocks(self) -> int:
        return self.free

    def get_new_blocks(self, count: int) -> list[int]:
        if count > self.get_num_free_blocks():
            raise ValueError("not that many")
        self.free -= count
        return list(range(count))

    def get_usage(self) -> float:
        return 1 - self.get_num_free_blocks() / (self.num_gpu_blocks - 1)


def test_blocks_beyond_the_budget_are_not_free() -> None:
    """Usage is a share of the budget."""
    pool = Pool(100)
    budget = KvBudget(pool)
    pool.get_new_blocks(20)
    assert (pool.get_num_free_blocks(), pool.get_usage()) == (80, 0.2)
    budget.blocks = 40
    assert (pool.get_num_free_blocks(), pool.get_usage()) == (20, 0.5)
    budget.blocks = 100
    assert (pool.get_num_free_blocks(), pool.get_usage()) == (80, 0.2)


def test_a_budget_below_what_is_in_use() -> None:
    """Nothing is free, usage is 1, and both are right again once enough has come back."""
    pool = Pool(100)
    budget = KvBudget(pool)
    pool.get_new_blocks(60)
    budget.blocks = 50
    assert (pool.get_num_free_blocks(), pool.get_usage(), budget.used) == (0, 1.0, 60)
    pool.free += 20
    assert (pool.get_num_free_blocks(), pool.get_usage(), budget.used) == (10, 0.8, 40)


def test_what_is_there_can_be_taken() -> None:
    """An allocation that vLLM has decided on does not fail for the budget."""
    pool = Pool(100)
    KvBudget(pool).blocks = 10
    assert len(pool.get_new_blocks(30)) == 30
    with pytest.raises(ValueError, match="not that many"):
        pool.get_new_blocks(71)
    assert pool.get_num_free_blocks() == 0


def test_the_budget_can_be_lifted() -> None:
    """For as long as a block of code runs, even if that fails."""
    pool = Pool(100)
    budget = KvBudget(pool)
    budget.blocks = 10
    with pytest.raises(RuntimeError), budget.lifted():
        assert pool.get_num_free_blocks() == 100
        raise RuntimeError
    assert pool.get_num_free_blocks() == 10
