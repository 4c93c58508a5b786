"""Writes data/traces/synthetic_conversation.csv: made-up requests that look like a chat service.

Nothing in the file was recorded. Its columns are those of the Azure LLM inference traces, and its
rate, burstiness and length percentiles those of that data set's 2023 conversation trace
(github.com/Azure/AzurePublicDataset, CC BY 4.0); prompt and output length are independent, as they
nearly are there (rank correlation .07). The date in the file is plainly invented.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from jaxserve.datafiles import write_atomic
from jaxserve.sim.bursts import fit_mmpp
from jaxserve.sim.lengths import from_percentiles

SEED = 2023
DURATION_S = 15 * 60.0
EPOCH = np.datetime64("2000-01-01T00:00:00", "ns")

ARRIVALS = fit_mmpp(mean_rate_rps=5.53, gap_cv=1.094, dispersion_1s=1.386, dispersion_10s=3.868)
PROMPTS = from_percentiles(
    {0.1: 207, 0.25: 396, 0.5: 1020, 0.75: 1189, 0.9: 2734, 0.99: 4142}, low=2, high=14_050
)
OUTPUTS = from_percentiles(
    {0.1: 54, 0.25: 85, 0.5: 129, 0.75: 395, 0.9: 424, 0.99: 601}, low=7, high=1000
)


def synthetic_trace() -> str:
    """The text of the file; always the same."""
    generator = np.random.default_rng(SEED)
    arrival_s = ARRIVALS.sample(DURATION_S, generator)
    prompt = PROMPTS.sample(generator.random(len(arrival_s)))
    output = OUTPUTS.sample(generator.random(len(arrival_s)))
    # Seven fractional digits, like the original.
    times = EPOCH + np.floor(arrival_s * 1e7).astype(np.int64) * np.timedelta64(100, "ns")
    stamps = [stamp[:27].replace("T", " ") for stamp in np.datetime_as_string(times)]
    rows = zip(stamps, prompt, output, strict=True)
    return "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
        f"{time},{prompt_tokens},{output_tokens}\n" for time, prompt_tokens, output_tokens in rows
    )


if __name__ == "__main__":
    default = Path(__file__).parent.parent / "data" / "traces" / "synthetic_conversation.csv"
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--out", type=Path, default=default, metavar="FILE", help="default %(default)s"
    )
    write_atomic(parser.parse_args().out, synthetic_trace().encode())
