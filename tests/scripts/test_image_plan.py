"""The Dockerfile, read as the image plan reads it."""

from __future__ import annotations

import importlib
import re

from scripts.image_plan import ROOT, instructions

STEPS = list(instructions((ROOT / "Dockerfile").read_text()))


def test_the_image_can_do_what_the_documentation_says() -> None:
    """It has what live episodes, the gateway and the mock engine import, and the build tries it."""
    (install,) = (rest for name, rest in STEPS if name == "RUN" and "uv sync" in rest)
    assert set(re.findall(r"--extra (\w+)", install)) == {"server", "gateway"}
    (tried,) = (rest for name, rest in STEPS if name == "RUN" and "server.wiring" in rest)
    modules = re.findall(r'"import (.*?)"', tried)[0].split(", ")
    assert {"server.live.service", "jaxserve.gateway.app.serve"} <= set(modules)
    for module in modules:
        importlib.import_module(module)
