"""``python -m server.baseline_inference``: the name that an earlier project gave to
``server.players.baseline_inference``."""

import sys

from server.players.baseline_inference import main

if __name__ == "__main__":
    sys.exit(main())
