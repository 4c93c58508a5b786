"""Where the measurements lie that the simulators are compared with: outside the package."""

import os
from pathlib import Path

from jaxserve.datafiles import data_dir

ENVIRONMENT_VARIABLE = "JAXSERVE_SHARED"


def shared_data() -> Path | None:
    """Directory of measured data, or None where there is none.

    Taken from the environment variable ``JAXSERVE_SHARED``; otherwise ``shared/data`` beside the
    source checkout.
    """
    named = os.environ.get(ENVIRONMENT_VARIABLE)
    path = Path(named) if named else data_dir().parent.parent / "shared" / "data"
    return path if path.is_dir() else None
