"""The table of agents, from their presets."""

from __future__ import annotations

import shlex

from docs_pages.markdown import code, table
from jaxserve.rollouts.presets import Preset, load_preset, preset_names


def preset_table() -> str:
    """One preset a row: package, dialect and tried versions."""
    rows = [_row(load_preset(name)) for name in preset_names()]
    headings = ["preset", "agent", "package", "dialect", "version tried"]
    headings += ["what was seen", "over MCP"]
    return table(headings, rows)


def preset_commands() -> str:
    """Command of each preset, from its data file."""
    rows = []
    for name in preset_names():
        preset = load_preset(name)
        told = "standard input" if preset.stdin else ""
        rows.append([code(name), f"`` {shlex.join(preset.argv)} ``", told, code(*preset.files)])
    return table(["preset", "command", "told by", "files"], rows)


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
