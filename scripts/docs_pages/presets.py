"""The table of agents, from their presets."""

from __future__ import annotations

import shlex

from docs_pages.markdown import code, table
from jaxserve.rollouts.presets import Preset, load_preset, preset_names


def preset_table() -> str:
    """The table of presets: package, dialect, and outcome of the trials."""
    rows = [_row(load_preset(name)) for name in preset_names()]
    headings = ["preset", "agent", "package", "dialect", "version tried"]
    headings += ["with its shell", "over MCP"]
    return table(headings, rows)


def preset_commands() -> str:
    """The table of the presets' commands, as in their data files."""
    rows = []
    for name in preset_names():
        preset = load_preset(name)
        source = "standard input" if preset.stdin else ""
        rows.append([code(name), f"`` {shlex.join(preset.argv)} ``", source, code(*preset.files)])
    return table(["preset", "command", "instruction by", "files"], rows)


def _row(preset: Preset) -> list[str]:
    streams = ", streaming" if preset.streaming else ""
    versions = ", ".join(trial.version for trial in preset.tried) or "none"
    seen = " ".join(trial.seen for trial in preset.tried)
    if not seen:
        of_ones_own = "Tests run commands with it."
        unseen = "Nothing was run; only its configuration is tested, to the letter."
        seen = unseen if preset.package else of_ones_own
    dialect = f"{preset.dialect}{streams if preset.dialect != 'any' else ''}"
    package = code(preset.package) if preset.package else ""
    seen = f"{seen} {preset.note}".rstrip()
    over_mcp = " ".join(trial.over_mcp for trial in preset.tried)
    return [code(preset.name), preset.title, package, dialect, versions, seen, over_mcp]
