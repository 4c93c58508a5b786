"""How bursty recorded arrivals are: the figures by which samples and traces are compared."""

import numpy as np


def gap_cv(arrival_s: np.ndarray) -> float:
    """Coefficient of variation of the times between arrivals; 1 for Poisson."""
    gaps = np.diff(arrival_s)
    return float(gaps.std() / gaps.mean())


def dispersion(arrival_s: np.ndarray, window_s: float) -> float:
    """Variance / mean of the arrivals in windows of ``window_s`` seconds; 1 for Poisson."""
    windows = int((arrival_s[-1] - arrival_s[0]) / window_s)
    index = ((arrival_s - arrival_s[0]) / window_s).astype(np.int64)
    # The incomplete window at the end is left out.
    counts = np.bincount(index[index < windows], minlength=windows)
    return float(counts.var(ddof=1) / counts.mean())
