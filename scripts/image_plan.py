"""The Dockerfile's steps without Docker: in an empty folder, then a server from what they made.

    python scripts/image_plan.py --markdown docs/image.md

Copies only what .dockerignore lets through, and runs every RUN line of both stages with the stage's
environment. Starts the image's command without capabilities and without the right to write to /app.
Waits until the health check passes, plays a step, and prints what is in the image and its sizes.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import httpx  # noqa: E402

from jaxserve.errors import InputError  # noqa: E402
from jaxserve.runtime.child_processes import own_process  # noqa: E402
from jaxserve.show.outputs import check_output, write_output  # noqa: E402
from server.local import free_port  # noqa: E402

_START_S = 600.0
_NETWORK = (
    r"PIP_|UV_(INDEX|DEFAULT|SYSTEM|NATIVE|CACHE)|SSL_|REQUESTS_|CURL_|(?i:https?_proxy|no_proxy)"
)
"""Variables that say how packages are fetched on this machine."""
_GROUPS = {
    "jaxlib, jax": ("jax", "jaxlib"),
    "scipy, numpy": ("scipy", "scipy.libs", "numpy", "numpy.libs"),
    "pyarrow, without Flight and S3": ("pyarrow", "pyarrow.libs"),
}
_BASE_IMAGE = "python:3.11-slim"
_BASE_IMAGE_MB = 125
"""Unpacked; it cannot be measured without Docker."""


@dataclass
class Stage:
    """One stage of the build: a folder that stands for ``/``."""

    root: Path
    name: str
    workdir: str = "/"
    variables: dict[str, str] = field(default_factory=dict)
    command: list[str] = field(default_factory=list)
    health: list[str] = field(default_factory=list)

    def at(self, path: str) -> Path:
        """Where a path of the image is."""
        return self.root / str(Path(self.workdir) / path).lstrip("/")

    def moved(self, text: str) -> str:
        """The image's absolute paths in ``text``, as they are here."""
        return re.sub(r"(?<![\w./])/(app|sessions|tmp/state)\b", rf"{self.root}/\1", text)

    def environment(self) -> dict[str, str]:
        """What a command of the stage sees."""
        own = {name: self.moved(value) for name, value in self.variables.items()}
        python = self.root / "usr/local/bin"
        path = own.pop("PATH", "$PATH").replace("$PATH", f"{python}:{os.environ['PATH']}")
        kept = {name: os.environ[name] for name in os.environ if re.match(_NETWORK, name)}
        return {"HOME": str(self.root / "home"), "PATH": path, **kept, **own}


def main() -> int:
    """Returns the exit code: 1 if a step fails, 2 after bad input."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="file to write the table to")
    chosen = parser.parse_args()
    try:
        check_output(chosen.markdown, "--markdown")
        with tempfile.TemporaryDirectory(prefix="image-") as folder:
            page = build(Path(folder), ROOT)
        print(page)
        if chosen.markdown is not None:
            write_output(chosen.markdown, page.encode(), "--markdown")
    except InputError as error:
        print(f"image_plan: {error}", file=sys.stderr)
        return 2
    except (RuntimeError, subprocess.CalledProcessError) as error:
        print(f"image_plan: {error}", file=sys.stderr)
        return 1
    return 0


def build(folder: Path, context: Path) -> str:
    """Runs all steps of ``context/Dockerfile`` below ``folder``; returns the page.

    Raises:
      RuntimeError: a step is unknown, or the server does not answer.
      subprocess.CalledProcessError: a step fails.
    """
    stages: dict[str, Stage] = {}
    stage: Stage | None = None
    for instruction, rest in instructions((context / "Dockerfile").read_text()):
        if instruction == "FROM":
            image, _, name = rest.partition(" AS ")
            if image != _BASE_IMAGE:
                raise RuntimeError(f"base image {image!r} is not {_BASE_IMAGE}")
            stage = Stage(folder / f"stage-{len(stages)}", name)
            _empty_image(stage)
            stages[name] = stage
        elif stage is None:
            raise RuntimeError(f"{instruction} comes before FROM")
        else:
            _carry_out(stage, instruction, rest, stages, context)
    assert stage is not None
    healthy_s = _serve(stage)
    return _page(stage, healthy_s)


def instructions(text: str) -> Iterator[tuple[str, str]]:
    """Name and argument of each instruction, continued lines joined."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    for joined in re.sub(r"\\\n\s*", " ", "\n".join(lines)).splitlines():
        if joined.strip():
            name, _, rest = joined.strip().partition(" ")
            yield name, rest.strip()


def _empty_image(stage: Stage) -> None:
    """The base image's Python."""
    (stage.root / "home").mkdir(parents=True)
    subprocess.run([sys.executable, "-m", "venv", stage.root / "usr/local"], check=True)


def _carry_out(
    stage: Stage, instruction: str, rest: str, stages: Mapping[str, Stage], context: Path
) -> None:
    match instruction:
        case "WORKDIR":
            stage.workdir = rest
            stage.at(".").mkdir(parents=True, exist_ok=True)
        case "ENV":
            stage.variables |= dict(part.split("=", 1) for part in rest.split())
        case "ARG":
            name, _, value = rest.partition("=")
            stage.variables[name] = value
        case "COPY":
            _copy(stage, rest.split(), stages, context)
        case "RUN" if rest.startswith("useradd"):
            # Makes the user and the folder of sessions; here the user is nobody.
            stage.at("/sessions").mkdir()
        case "RUN":
            print(f"+ {rest}", flush=True)
            subprocess.run(
                ["sh", "-c", rest], cwd=stage.at("."), env=stage.environment(), check=True
            )
        case "CMD":
            stage.command = json.loads(rest)
        case "HEALTHCHECK":
            stage.health = json.loads(rest.partition("CMD ")[2])
        case "USER" | "EXPOSE":
            pass
        case _:
            raise RuntimeError(f"{instruction} is not known here")


def _copy(stage: Stage, words: list[str], stages: Mapping[str, Stage], context: Path) -> None:
    options = dict(word[2:].split("=", 1) for word in words if word.startswith("--"))
    *sources, target = [word for word in words if not word.startswith("--")]
    for source in sources:
        if "from" in options:
            found = stages[options["from"]].at(source)
        else:
            found = context / source
            if source not in _let_through(context) | {"Dockerfile"}:
                raise RuntimeError(f".dockerignore keeps {source} out of the build")
        into = stage.at(target) / (found.name if target.endswith("/") else "")
        if found.is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(found, into, symlinks=True, ignore=ignored, dirs_exist_ok=True)
        else:
            shutil.copy2(found, into)


def _let_through(context: Path) -> set[str]:
    lines = (context / ".dockerignore").read_text().splitlines()
    return {line[1:] for line in lines if line.startswith("!")}


def _serve(stage: Stage) -> float:
    """Seconds until the image's health check passes."""
    environment = stage.environment()
    with tempfile.TemporaryDirectory(prefix="image-tmp-") as scratch:
        environment |= {"TMPDIR": scratch, "XDG_STATE_HOME": scratch, "HOME": "/nonexistent"}
        port = free_port()
        command = [*_powerless(), *_with_port(stage.command, port)]
        _write_protect(stage.at("/app"))
        started = time.monotonic()
        try:
            with own_process(command, cwd=stage.at("."), env=environment) as server:
                healthy_s = _healthy_after_s(server, stage, environment, port, started)
                url = f"http://127.0.0.1:{port}"
                for path, body in (("/reset", {"task_id": 1}), ("/step", {"action": {}})):
                    httpx.post(url + path, json=body, timeout=60.0).raise_for_status()
        finally:
            _write_protect(stage.at("/app"), on=False)
    return healthy_s


def _healthy_after_s(
    server: subprocess.Popen[bytes],
    stage: Stage,
    environment: Mapping[str, str],
    port: int,
    started: float,
) -> float:
    """Seconds from ``started``.

    Raises:
      RuntimeError: it ends before, or takes too long.
    """
    probe = [word.replace("7860", str(port)) for word in stage.health]
    while subprocess.run(probe, env=environment, capture_output=True).returncode:
        if server.poll() is not None or time.monotonic() - started > _START_S:
            raise RuntimeError("the server of the image does not become healthy")
    return time.monotonic() - started


def _with_port(command: list[str], port: int) -> list[str]:
    """The image's command with its first port replaced and without the others."""
    first = command.index("--port")
    return [*command[:first], "--port", str(port)]


def _powerless() -> list[str]:
    """What makes root obey the rights of files: docker-compose.yml drops all capabilities, too."""
    if os.geteuid() != 0:
        return []
    return ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]


def _write_protect(folder: Path, on: bool = True) -> None:
    """Takes, or gives back, everybody's right to write below ``folder``."""
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            mode = path.stat().st_mode
            path.chmod(mode & ~0o222 if on else mode | 0o200)


def _page(stage: Stage, healthy_s: float) -> str:
    app = stage.at("/app")
    packages = next(app.glob(".venv/lib/python3*/site-packages"))
    environment_mb, compiled_mb = _size_mb(app / ".venv"), _size_mb(app / ".jax_cache")
    known = {
        name: sum(_size_mb(packages / part) for part in parts) for name, parts in _GROUPS.items()
    }
    rows = {
        f"{_BASE_IMAGE}, published size": float(_BASE_IMAGE_MB),
        **known,
        "everything else that is installed": environment_mb - sum(known.values()),
        "jaxserve, its data and the server": _size_mb(app) - environment_mb - compiled_mb,
        "compiled programs": compiled_mb,
    }
    lines = [
        "# Image",
        "",
        "Printed by `python scripts/image_plan.py`, which runs the Dockerfile's steps in an empty",
        "folder and starts a server from the result.",
        "",
        "| part | MB |",
        "|---|--:|",
        *(f"| {name} | {size:,.0f} |" for name, size in rows.items()),
        f"| together | {sum(rows.values()):,.0f} |",
        "",
        f"A server started from it was healthy after {healthy_s:.0f} s.",
    ]
    return "\n".join(lines) + "\n"


def _size_mb(path: Path) -> float:
    """As ``du --apparent-size``, in 10^6 bytes."""
    if path.is_file():
        return path.stat().st_size / 1e6
    files = (file for file in path.rglob("*") if file.is_file() and not file.is_symlink())
    return sum(file.stat().st_size for file in files) / 1e6


if __name__ == "__main__":
    sys.exit(main())
