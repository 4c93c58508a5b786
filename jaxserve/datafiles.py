"""Places of packaged data, and writing of files that are never left half written."""

import functools
import hashlib
import json
import os
import secrets
import shutil
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jaxserve.errors import InputError

UNREADABLE_ARCHIVE = (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)
"""Errors of reading a damaged .npz archive; which one depends on the place of the damage."""


@functools.cache
def data_dir() -> Path:
    """Directory of the packaged data: ``jaxserve/data`` in a wheel, ``data`` in a source
    checkout."""
    package = Path(__file__).resolve().parent
    installed = package / "data"
    return installed if installed.is_dir() else package.parent / "data"


def source_digest(*folders: str) -> bytes:
    """Digest of the package's modules at the top and of those in ``folders``, because kept results
    of another version mean nothing."""
    root = Path(__file__).parent
    inside = (path for folder in folders for path in (root / folder).rglob("*.py"))
    digest = hashlib.sha256()
    for path in sorted([*root.glob("*.py"), *inside]):
        digest.update(path.read_bytes())
    return digest.digest()


def load_json(name: str) -> Any:
    """Parse the data file ``name`` (relative to ``data_dir()``).

    Raises:
      InputError: the file is missing or is not readable JSON.
    """
    what = f"data file {name!r}"
    return read_json(data_dir() / name, what, f"{what} does not exist under {data_dir()}")


def read_json(path: Path, what: str, missing: str | None = None) -> Any:
    """Parse a JSON file.

    Args:
      what: names the file in an error.
      missing: the error where there is no such file.

    Raises:
      InputError: the file is missing or is not readable JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(missing or f"{what} does not exist") from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{what} is not readable JSON: {error}") from None


def check_folder(path: Path, mark: str) -> None:
    """Makes sure that a folder of results can be written, before the work starts.

    Args:
      path: the folder that ``--out`` names.
      mark: file that a folder of earlier results holds, which may be replaced.

    Raises:
      InputError: the folder exists and holds other files, or cannot be made.
    """
    parent = path.resolve().parent
    if path.exists():
        if not path.is_dir():
            raise InputError(f"--out is {path}, a file; name a folder")
        if any(path.iterdir()) and not (path / mark).is_file():
            raise InputError(f"--out is {path}, which holds other files; name a new folder")
    if not parent.is_dir():
        raise InputError(f"--out is {path}, but the folder {parent} does not exist")
    if not os.access(parent, os.W_OK):
        raise InputError(f"--out is {path}, but {parent} is not writable")


def write_folder(path: Path, write: Callable[[Path], Any]) -> None:
    """Writes a folder at once, in place of an earlier one.

    Args:
      path: the folder, which ``check_folder`` has passed.
      write: writes all files into the folder that it is given.

    Raises:
      InputError: the file system refuses it; the folder is as it was.
    """
    path = path.resolve()
    made = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        made.mkdir()
        write(made)
        if path.exists():
            shutil.rmtree(path)
        made.rename(path)
    except OSError as error:
        raise InputError(f"--out is {path}, but writing it failed: {error.strerror}") from None
    finally:
        shutil.rmtree(made, ignore_errors=True)


def write_atomic(path: Path | str, data: bytes, mode: int = 0o666) -> None:
    """Write ``data`` to ``path`` through a temporary file in the same directory and ``os.replace``.

    An interrupted run leaves the old file or the new one, never a mixture.

    Args:
      mode: of the file, less what the umask takes; at no moment has it more.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        made = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with open(made, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
