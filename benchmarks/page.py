"""What a benchmark prints, and keeps in a file."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import jax

from jaxserve.errors import InputError
from jaxserve.show.outputs import check_output, write_output


def publish(measure: Callable[[], str], markdown: Path | None) -> int:
    """Measures, prints the text and writes it to ``markdown``; exit code 2 after bad input."""
    try:
        check_output(markdown, "--markdown")
        # Seconds to compile are those of a first run.
        jax.config.update("jax_enable_compilation_cache", False)
        text = measure()
        print(text)
        if markdown is not None:
            write_output(markdown, text.encode(), "--markdown")
    except InputError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 2
    return 0
