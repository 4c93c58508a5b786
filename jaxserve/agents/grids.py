"""Old place of ``jaxserve.grids``."""

from jaxserve.grids import KNOB_GRIDS, action_at, grid_sizes, nearest_indices

__all__ = ["KNOB_GRIDS", "action_at", "grid_sizes", "nearest_indices"]
