"""Pages of benchmarks, printed and written to files."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path

import jax

from jaxserve.errors import InputError
from jaxserve.show.outputs import check_output, write_output

_BLOCK = re.compile(r"(<!-- benchmark -->\n).*?(<!-- end -->)", re.DOTALL)


def page_parser(program: str, about: str | None) -> argparse.ArgumentParser:
    """Parser of a benchmark's command, with ``--markdown``.

    Args:
      program: dotted name of the module.
      about: first text of the help.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m {program}",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="file to write the page to")
    return parser


def publish(measure: Callable[[], str], markdown: Path | None) -> int:
    """Measures, prints the text and writes it to ``markdown``, see ``placed``; exit code 2 after
    bad input."""
    try:
        check_output(markdown, "--markdown")
        # Seconds to compile are those of a first run.
        jax.config.update("jax_enable_compilation_cache", False)
        text = measure()
        print(text)
        if markdown is not None:
            page = markdown.read_text(encoding="utf-8") if markdown.is_file() else ""
            write_output(markdown, placed(page, text).encode(), "--markdown")
    except InputError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 2
    return 0


def missed(misses: bool) -> str:
    """Words after an aim that a figure misses."""
    return ", miss" if misses else ""


def placed(page: str, text: str) -> str:
    """``page`` with ``text`` between ``<!-- benchmark -->`` and ``<!-- end -->``; where it has no
    such block, ``text`` alone."""
    if not _BLOCK.search(page):
        return text
    return _BLOCK.sub(lambda found: f"{found[1]}{text.strip()}\n{found[2]}", page)
