"""Writes the generated parts of the documentation: tables from code, tasks and the server's schema.

    python scripts/generate_docs.py            # writes what has changed
    python scripts/generate_docs.py --check    # only names what is out of date, exit code 1

Pages of tasks and of the server's routes are generated whole. In other pages, what stands between
``<!-- generated NAME -->`` and ``<!-- end -->`` is.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path

# The server's schema needs no accelerator.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from docs_pages.interface import (  # noqa: E402
    action_table,
    example_table,
    feature_list,
    format_table,
    grid_table,
    measured_table,
    observation_table,
    option_table,
    pair_table,
    preset_commands,
    preset_table,
    profile_list,
    record_table,
)
from docs_pages.server_api import server_api_page  # noqa: E402
from docs_pages.tasks import task_list, task_pages, task_table  # noqa: E402

from jaxserve.datafiles import write_atomic  # noqa: E402
from jaxserve.gateway.measure.records import RequestRecord  # noqa: E402
from jaxserve.gateway.recording.records import CompletionRecord  # noqa: E402
from jaxserve.gateway.settings import GatewaySettings  # noqa: E402
from jaxserve.mock_engine.settings import MockEngineSettings  # noqa: E402

DOCS = ROOT / "docs"
_BLOCK = re.compile(r"(<!-- generated (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def main() -> int:
    """Writes or checks; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing, report differences")
    check = parser.parse_args().check
    pages = generated_pages()
    extra = {path for path in (DOCS / "tasks").glob("*.md")} - set(pages)
    stale = [path for path, text in pages.items() if _text(path) != text]
    for path in sorted([*stale, *extra]):
        print(f"{'out of date' if check else 'wrote'}: {path.relative_to(ROOT)}")
    if check:
        return int(bool(stale or extra))
    for path in stale:
        write_atomic(path, pages[path].encode())
    for path in extra:
        path.unlink()
    return 0


def generated_pages() -> dict[Path, str]:
    """Current text of every page that is generated or has generated blocks."""
    pages = {DOCS / name: text for name, text in task_pages().items()}
    pages[DOCS / "server_api.md"] = server_api_page()
    blocks = {
        "actions": action_table(),
        "completion_records": record_table(CompletionRecord),
        "examples": example_table(ROOT / "examples"),
        "features": feature_list(),
        "formats": format_table(),
        "gateway_options": option_table(GatewaySettings),
        "gateway_records": record_table(RequestRecord),
        "grids": grid_table(),
        "measured": measured_table(),
        "mock_engine_options": option_table(MockEngineSettings),
        "observations": observation_table(),
        "pairs": pair_table(),
        "preset_commands": preset_commands(),
        "presets": preset_table(),
        "profiles": profile_list(),
        "task_list": task_list(),
        "tasks": task_table(),
    }
    for path in sorted(DOCS.glob("*.md")):
        text = _text(path)
        if "<!-- generated " in text:
            pages[path] = _BLOCK.sub(
                lambda found: f"{found[1]}{blocks[found[2]]}\n{found[3]}", text
            )
    return pages


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


if __name__ == "__main__":
    sys.exit(main())
