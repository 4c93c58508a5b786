"""The fast simulator against a real vLLM run."""

from typing import Any

import numpy as np
import pytest

from jaxserve.sim.table.grid import BATCH_SIZES, LEAST_BUCKETS, PROMPT_LENGTHS
from jaxserve.studies.fidelity import vllm_run_fast
from jaxserve.studies.fidelity.measurements import shared_data

SHARED = shared_data()


class LinearTimer:
    """A millisecond, and a microsecond for each token that is computed."""

    def iteration_s(self, *, decode_seqs: int, chunks: Any = (), **rest: Any) -> float:
        return 1e-3 + 1e-6 * (decode_seqs + sum(chunk for chunk, _ in chunks))


def test_a_table_has_what_the_timer_says() -> None:
    """Prompts are cut by what a batch leaves of the token budget; alone each chunk is a step."""
    table = vllm_run_fast.profile_table(LinearTimer(), 1024)
    assert table.lengths == LEAST_BUCKETS
    row = np.asarray(table.seconds)[: 19 * LEAST_BUCKETS].reshape(19, LEAST_BUCKETS)
    lengths, batches = np.array(PROMPT_LENGTHS[:LEAST_BUCKETS]), np.array(BATCH_SIZES)
    np.testing.assert_allclose(row[:9], np.tile(1e-3 + 1e-6 * batches[:, None], 8), rtol=1e-5)
    np.testing.assert_allclose(row[9:18], np.tile(1e-6 * lengths, (9, 1)), rtol=1e-3)
    np.testing.assert_allclose(row[18], 1e-3 * np.ceil(lengths / 1024) + 1e-6 * lengths, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.skipif(
    SHARED is None or not (SHARED / vllm_run_fast.DIRECTORY).is_dir(),
    reason="the run of a real server is not here",
)
def test_the_run_is_met() -> None:
    """Queueing for minutes and the time per token are those of the real server."""
    assert SHARED is not None
    rows = vllm_run_fast.vllm_fast_fidelity(SHARED)
    assert len(rows) == 3
    for row in rows:
        assert row.passed, row
