"""The folder of a plan: all files or none."""

from __future__ import annotations

import json
from pathlib import Path

from jaxserve.datafiles import write_folder
from jaxserve.plan.answer import plan_json
from jaxserve.plan.plan import Plan
from jaxserve.plan.report import report_html
from jaxserve.plan.start import start_files
from jaxserve.plan.start_split import split_files
from jaxserve.plan.task import write_task


def kept_file(path: Path) -> Path:
    """File beside the folder that keeps the runs of a search that was cut off."""
    path = path.resolve()
    return path.with_name(f".{path.name}.runs.jsonl")


def write_plan(path: Path, plan: Plan) -> list[str]:
    """Writes all files of a plan at once, in place of those of an earlier one.

    Returns:
      the names of the files.

    Raises:
      InputError: the file system refuses it; the folder is as it was.
    """
    by, inputs = plan.best.deployment, plan.inputs
    if by.prefill:
        files = split_files(by, inputs.model, inputs.model_length)
    else:
        files = start_files(by, inputs.model, inputs.model_length, inputs.objective)
    files["plan.json"] = json.dumps(plan_json(plan), indent=1, allow_nan=False) + "\n"
    files["report.html"] = report_html(plan, files)
    names = list(files)

    def write(folder: Path) -> None:
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
            if name.endswith(".sh"):
                (folder / name).chmod(0o755)
        names.extend(write_task(folder, plan))

    write_folder(path, write)
    return sorted(names)
