"""Files of measured servers that tests write."""

import csv
from pathlib import Path
from typing import Any

from jaxserve.studies.fidelity.served_rows import FILE


def write_served(directory: Path, row: dict[str, Any], *changes: dict[str, Any]) -> Path:
    """Writes ``row`` once with each of the changes; returns the directory that holds the file."""
    path = directory / FILE
    path.parent.mkdir()
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, row)
        writer.writeheader()
        writer.writerows([row | change for change in changes])
    return directory
