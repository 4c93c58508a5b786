"""The folder of a plan: all files or none."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from pathlib import Path

from jaxserve.errors import InputError
from jaxserve.plan.answer import plan_json
from jaxserve.plan.plan import Plan
from jaxserve.plan.report import report_html
from jaxserve.plan.start import start_files
from jaxserve.plan.start_split import split_files
from jaxserve.plan.task import write_task


def check_folder(path: Path) -> None:
    """Makes sure that the folder can be written, before the search starts.

    Raises:
      InputError: the folder exists and holds other than a plan, or cannot be made.
    """
    if path.exists():
        if not path.is_dir():
            raise InputError(f"--out is {path}, a file; name a folder")
        if any(path.iterdir()) and not (path / "plan.json").is_file():
            raise InputError(f"--out is {path}, which holds other files; name a new folder")
    parent = path.resolve().parent
    if not parent.is_dir():
        raise InputError(f"--out is {path}, but the folder {parent} does not exist")
    if not os.access(parent, os.W_OK):
        raise InputError(f"--out is {path}, but {parent} is not writable")


def kept_file(path: Path) -> Path:
    """File beside the folder that keeps the runs of a search that was cut off."""
    path = path.resolve()
    return path.with_name(f".{path.name}.runs.jsonl")


def write_folder(path: Path, plan: Plan) -> list[str]:
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
    path = path.resolve()
    made = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        made.mkdir()
        for name, text in files.items():
            (made / name).write_text(text, encoding="utf-8")
            if name.endswith(".sh"):
                (made / name).chmod(0o755)
        names = [*files, *write_task(made, plan)]
        if path.exists():
            shutil.rmtree(path)
        made.rename(path)
    except OSError as error:
        raise InputError(f"--out is {path}, but writing it failed: {error.strerror}") from None
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return sorted(names)
