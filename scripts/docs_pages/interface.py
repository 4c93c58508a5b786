"""Tables of the interface, from the code and its data: fields, options, presets, examples."""

from __future__ import annotations

import ast
import inspect
import shlex
from dataclasses import MISSING, fields
from pathlib import Path

from docs_pages.markdown import code, number, table
from jaxserve.env import FEATURE_NAMES
from jaxserve.fields import Bound
from jaxserve.file_formats import file_formats
from jaxserve.live.measured import MEASURED
from jaxserve.rollouts.presets import Preset, load_preset, preset_names
from jaxserve.sim.machine.acceptance import profile_names
from jaxserve.sim.table.file import read_table_file, table_names
from jaxserve.spaces import KNOB_FIELDS, OBSERVATION_FIELDS


def action_table() -> str:
    """One knob a row."""
    rows = [
        [code(name), _range(knob.bound), knob.unit, number(knob.default), knob.text]
        for name, knob in KNOB_FIELDS.items()
    ]
    return table(["knob", "allowed", "unit", "default", "what it is"], rows)


def grid_table() -> str:
    """Values of knobs for learners and adapters, one knob a row."""
    rows = [
        [code(name), ", ".join(f"{value:g}" for value in knob.grid)]
        for name, knob in KNOB_FIELDS.items()
    ]
    return table(["knob", "grid"], rows)


def observation_table() -> str:
    """One entry a row."""
    rows = [
        [code(name), _range(entry.bound), entry.unit, entry.meaning]
        for name, entry in OBSERVATION_FIELDS.items()
    ]
    return table(["entry", "bounds", "unit", "what it is"], rows)


def measured_table() -> str:
    """One entry of the observation a row, with its source on a real deployment."""
    rows = [
        [code(name), source.kind, source.how, source.error] for name, source in MEASURED.items()
    ]
    return table(["entry", "source", "how", "largest error"], rows)


def format_table() -> str:
    """One format of files a row."""
    rows = [
        [
            code(each.name),
            each.written_by,
            ", ".join(each.gives) or "nothing",
            each.cannot_tell,
            each.note,
        ]
        for each in file_formats()
    ]
    return table(["format", "written by", "gives", "cannot tell", "note"], rows)


def feature_list() -> str:
    """Entries of the vector for networks, in order."""
    return code(*FEATURE_NAMES)


def pair_table() -> str:
    """One packaged latency table a row."""
    found = [read_table_file(name).metadata for name in table_names()]
    rows = [[code(one.hardware), code(one.model), f"{one.tensor_parallel}"] for one in found]
    return table(["hardware", "model", "tensor_parallel"], sorted(rows))


def profile_list() -> str:
    """Names of the profiles of draft acceptance."""
    return code(*profile_names())


def option_table(settings: type) -> str:
    """One option a row, with its default."""
    docs = field_docs(settings)
    rows = []
    for field in fields(settings):
        default = "" if field.default in (MISSING, None, ()) else code(str(field.default))
        option = code("--" + field.name.replace("_", "-"))
        rows.append([option, default, docs[field.name].replace("``", "`")])
    return table(["option", "default", "what it is"], rows)


def record_table(kind: type) -> str:
    """One field of a record a row."""
    docs = field_docs(kind)
    rows = [[code(name), " ".join(text.replace("``", "`").split())] for name, text in docs.items()]
    return table(["field", "what it is"], rows)


def field_docs(kind: type) -> dict[str, str]:
    """The string below each field of a class."""
    (definition,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(definition, ast.ClassDef)
    found: dict[str, str] = {}
    for field, below in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
            assert isinstance(field.target, ast.Name) and isinstance(below.value, ast.Constant)
            found[field.target.id] = str(below.value.value)
    return found


def preset_table() -> str:
    """One preset a row: package, dialect and tried versions."""
    rows = [_preset_row(load_preset(name)) for name in preset_names()]
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


def example_table(folder: Path) -> str:
    """One example a row: title and output, from its docstring."""
    rows = []
    for path in sorted(folder.glob("*.py")):
        docs = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        title, _, rest = docs.partition("\n")
        prints = rest.strip().split("\n\n")[0]
        rows.append([f"[`{path.name}`](../examples/{path.name})", title, prints])
    return table(["file", "what it shows", "what it prints"], rows)


def _range(bound: Bound) -> str:
    kind = " (whole)" if bound.integer else ""
    return f"{number(bound.low)} to {number(bound.high)}{kind}"


def _preset_row(preset: Preset) -> list[str]:
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
